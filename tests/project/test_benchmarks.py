"""The benchmarks in dry runs, at sizes that measure nothing: results that agree, and none that do not."""

import itertools
import json
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from benchmarks import bench_embed, bench_io, bench_table, bench_train, common, latency, models, precisions, workloads
from benchmarks.gpu import host, table
from benchmarks.peers import layer
from benchmarks.state_policies import main as compare_policies
from elmo_fast.train.export import export_run
from elmo_fast.train.setup import start_or_resume
from tests.support.engines import needs_native
from tests.support.files import names, program, python
from tests.support.training import TINY, write_corpus, write_options

RUN = common.ROOT / "benchmarks" / "gpu" / "run.sh"
# processes of xdist time nothing
HERE = os.environ | {"PYTHON": sys.executable, "OMP_NUM_THREADS": "1", "PYTEST_XDIST_WORKER": ""}
EMBED = "--model tiny --batch-size 3 --batches 3 --peer-batches 1 --rounds 2"
COMMANDS = {
    "embed": (bench_embed, EMBED), "latency": (bench_embed, f"{EMBED} --latency --threads 2"),
    **{workload: (bench_embed, f"{EMBED} --precisions highest --workload {workload.replace(' ', '_')}")
       for workload in workloads.TEXTS},
    "files": (bench_io, "--parts speed stages --models tiny --sentences 20 --rounds 2 --slots 4 --folder ."),
    "memory": (bench_io, "--parts memory --most 40 --models tiny --sentences 20 --rounds 2 --slots 4 --folder ."),
    "tables": (bench_table, ("--model tiny --text-models tiny --batch-size 3 --batches 2 --residues 20 "
                             "--batch-residues 60 --words 90 --reference-words 30 --rounds 2 --precisions highest")),
    "training": (bench_train, ("--model tiny --steps 6 --turn 2 --heldout-rows 4 --threads 1 --train TEXT "
                               "--heldout TEXT")),
    "precisions": (precisions, "--model tiny --sentences 70 --rounds 2"),
    "peers": (layer, "--size tiny --rows 3 17 --rounds 2 --torch-lstm")}


@pytest.fixture
def bench(dry_run, monkeypatch, tmp_path):
    """Run a command: its document, or the error on stderr of a run without a file."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(bench_embed, "SENTENCE_SECONDS", 0.01)
    monkeypatch.setattr(latency, "SECONDS", 0.01)
    monkeypatch.setattr(workloads, "DOCUMENT_TOKENS", 70)
    monkeypatch.setattr(workloads, "RESIDUES", 50)
    monkeypatch.setitem(bench_train.SIZES, "tiny", (*bench_train.SIZES["tiny"][:5], 7, 28))

    def run(name, *more):
        module, arguments = COMMANDS[name]
        text = write_corpus(tmp_path / "text", sentences=60)[0] if "TEXT" in arguments else ""
        words = (text if word == "TEXT" else word.replace("_", " ") for word in arguments.split())
        return dry_run(module, *words, *more)

    return run


# Files are compared to the bit, which the products of NumPy and torch do not keep from batch to batch.
@pytest.mark.parametrize("name", [pytest.param(name, marks=needs_native if name == "files" else pytest.mark.long)
                                  for name in COMMANDS])
def test_a_command_has_results_that_agree(name, bench):
    document = bench(name)
    assert document["results"] and document["machine"]["cpu"]["model"]
    for row in document["results"]:
        assert row.get("error", 0) <= row.get("limit", 1)
        assert row.get("p20", 0) <= row.get("median", 0) <= row.get("p80", 0)


@pytest.mark.parametrize("name, more, message", [
    ("embed", ["--precisions", "highest"], "batches in highest against reference: relative error"),
    ("files", [], "tiny, the engine against reference: relative error"),
    ("tables", ["--lines", "text"], "text in tiny: largest difference from the path without a table")])
def test_a_disagreement_ends_the_run(name, more, message, bench, monkeypatch):
    build, seeds = models.build, itertools.count()
    monkeypatch.setattr(models, "build", lambda size, **settings: build(size, **{**settings, "seed": next(seeds)}))
    assert message in bench(name, *more)


@pytest.mark.long
def test_single_ops_give_rows(tmp_path):
    pytest.importorskip("pytest_benchmark")
    python("-m", "pytest", "-q", "-p", "no:cacheprovider", "benchmarks/bench_ops", "--benchmark-only", "-k",
           "test_projected_lstm and small and b1 and torch", "--benchmark-min-rounds=2", "--rows",
           tmp_path / "ops.json", timeout=100, PYTEST_XDIST_WORKER="")  # xdist's processes time nothing
    row, = json.loads((tmp_path / "ops.json").read_text())["results"]
    assert (row["model"], row["variant"]) == ("small", "torch") and 0 <= row["error"] <= row["limit"]


@pytest.mark.long
def test_state_policies_agree_where_they_must(tmp_path):
    train, vocabulary = write_corpus(tmp_path / "text", sentences=60)
    start_or_resume(tmp_path / "run", train=[train], vocab=str(vocabulary), max_steps=30, quiet=True,
                    options_file=write_options(tmp_path / "o.json", TINY))
    export_run(tmp_path / "run", tmp_path / "model", softmax=True)
    text = tmp_path / "one.txt"
    text.write_text("ka lo mi\npo ru\nka ka\n")
    report = compare_policies([str(tmp_path / "model"), str(text), "--output", str(tmp_path / "r.json")])
    assert report["zero"]["loss"] == pytest.approx(report["carry"]["loss"])  # one batch: carried starts from zeros too
    assert report["zero"]["distance_from_carried"] == 0 < report["warm"]["distance_from_carried"]


def run(*arguments, **environment):
    return subprocess.run([RUN, *map(str, arguments)], capture_output=True, text=True, timeout=300,
                          env=HERE | {name: str(value) for name, value in environment.items()})


def archive(folder):
    """The texts in the archive of a run by name. No more files lie beside it than come back from a GPU's machine."""
    assert names(folder) == ["results.tar.gz", "stages.txt", "table.md"]
    with tarfile.open(folder / "results.tar.gz") as packed:
        return {Path(member.name).name: packed.extractfile(member).read().decode()
                for member in packed if member.isfile()}


# By stage: the end of its process; arguments of a stand-in, and its action after it has written its file of rows.
ENDS = {"trial": ("exit 139", "*doctor*", "exit 139"), "host": ("exit 124", "*gpu.host*", "sleep 60 & wait"),
        "fenced-build": ("exit 3", "*FENCED_READS*", "exit 3")}
ON_CPU = ["micro", "trial", "text", "peers", "accuracy", "steps", "host", "training", "encoder"]
ON_GPU = ["micro", "build", "trial", "trial-memcheck", *ON_CPU[2:-1], *(f"tests-{group}" for group in range(1, 6)),
          "ncu", "encoder", "race", "fenced-build", "fenced-steps"]


@pytest.mark.long
@pytest.mark.parametrize("device", ["cpu", "gpu"])
def test_a_stage_that_dies_or_overruns_loses_no_results(device, tmp_path):
    """On the CPU the other stages do their work, tiny; for a GPU, that is not there, they write a file."""
    rows = json.dumps({"results": [{"way": "slots of 64", "median": 6.0}, {"variant": "clusters_of_8", "median": 15}]})
    works = program(tmp_path / "works", f"""echo "$@"
for word; do [ -z "$next" ] || echo '{rows}' >"$word"; case $word in --rows | --out) next=1 ;; *) next= ;; esac; done
case "$*" in {" ".join(f"{arguments}) {action} ;;" for _, arguments, action in ENDS.values())} esac""")
    for tool in ("nvidia-smi", "ncu", "compute-sanitizer"):
        program(tmp_path / tool, "echo NVIDIA H100 80GB HBM3; echo NVIDIA H200")
    stand_in = "*" if device == "gpu" else "*doctor* | *gpu.host*"
    timeout = f"exec {shutil.which('timeout')} -k 1"  # limits are for an idle machine with a GPU
    program(tmp_path / "timeout", f'shift 3; case "$*" in {stand_in}) {timeout} 2 {works} "$@" ;; esac; '
                                  f'{timeout} 250 "$@"')
    more = ["--dry-run"] if device == "cpu" else ["--allennlp", tmp_path]
    process = run("--out", tmp_path / "out", *more, PATH=f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    assert process.returncode == 1, process.stdout + process.stderr
    folder, = (tmp_path / "out").iterdir()
    kept, stages = archive(folder), ON_CPU if device == "cpu" else ON_GPU
    assert folder.name == {"cpu": "dry-run", "gpu": "h100-80gb-hbm3"}[device]
    assert [line.split(": ")[:2] for line in kept["stages.txt"].splitlines()] == [
        [stage, ENDS.get(stage, ("exit 0",))[0]] for stage in stages]
    assert {f"{stage}.txt" for stage in stages} < kept.keys()
    assert "| the host alone, 64 slots, us a token | 1.5 | 6 | 4.00 |" in kept["table.md"]
    assert "off by 4.00: the host alone, 64 slots, us a token. It decides the host's share." in kept["table.md"]
    for name in kept.keys() & {f"{stage}.json" for stage in stages if device == "cpu"} - {"host.json"}:
        for path in (common.ROOT, Path.home(), tmp_path, sys.prefix):
            assert f"{path}/" not in kept[name]
        for case in json.loads(kept[name])["results"]:
            assert case["p20"] <= case["median"] <= case["p80"] and case.get("error", 0) <= case.get("limit", 0)
    if device == "cpu":
        empty = {"trial"} | ({"accuracy"} if not (common.shared_folder() / "fixtures").is_dir() else set())
        assert all(json.loads(kept[f"{stage}.json"])["results"] for stage in stages if stage not in empty)
        return
    for stage, words in {"build": "--no-index", "trial": "doctor --gpu", "trial-memcheck": "--tool memcheck",
                         "text": f"--allennlp {tmp_path}", "training": "--device cuda", "tests-1": "-m gpu",
                         "ncu": "--clock-control none", "race": "--tool racecheck",
                         "fenced-build": "-DELMO_FAST_FENCED_READS", "fenced-steps": "--seconds 32"}.items():
        assert words in kept[f"{stage}.txt"]
    assert kept["host.json"] == f"{rows}\n"  # its process was ended after that
    again = run("--out", tmp_path / "out", "--stage", "micro", PATH=f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    assert again.returncode == 0 and archive(folder).keys() == kept.keys()


def test_a_machine_without_a_gpu_is_named(tmp_path):
    if shutil.which("nvidia-smi"):
        pytest.skip("this machine has nvidia-smi")
    process = run("--out", tmp_path / "out")
    assert process.returncode == 2 and "no NVIDIA GPU answers nvidia-smi; --dry-run" in process.stderr
    assert not list(tmp_path.iterdir())


def test_the_hosts_time_is_that_of_both_streams(dry_run):
    document = dry_run(host, "--sentences", 30, "--rounds", 2)
    assert [case["way"] for case in document["results"]] == ["slots of 64", "slots of 512"]
    assert all(0 < case["p20"] <= case["median"] for case in document["results"])


def test_a_claim_that_is_off_is_named_with_what_it_decides():
    claims = {claim.what: claim for claim in table.CLAIMS}
    claim = claims["graph over persistent, a step of 64 slots"]
    for graph, is_off in ((20.0, False), (9.0, True), (50.0, True)):  # us, beside 10: 2 is predicted
        rows = {"steps": [{"variant": path, "precision": "medium", "slots": 64, "us_per_step": us}
                          for path, us in (("persistent", 10.0), ("graph", graph))]}
        assert claim.measured(rows) == graph / 10
        assert (f": {claim.what}. It decides {claim.decides}" in table.table(rows)) == is_off
    assert table.table({}).count("| not measured | - |") == len(table.CLAIMS) == len(claims)
