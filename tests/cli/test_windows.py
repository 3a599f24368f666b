"""The command and its processes on a simulated Windows (`tests/support/windows.py`): long jobs, kills, workers."""

import importlib.util
import json
import re
import signal

import h5py
import pytest

from elmo_fast import open_embeddings
from tests.support import windows
from tests.support.files import kill, names, python, read_hdf5, until, write_model
from tests.support.training import TINY, write_corpus

pytestmark = pytest.mark.long

JOBS = """
vocab part-*.txt words.txt --processes 2
embed text.txt a.h5 --all
embed text.txt a.h5 --all --use-sentence-keys
embed text.txt a.npz --average --pool max
embed text.txt a.npy --top --pool mean --allow-blank
embed text.txt b.h5 --top --dtype float16
cache vocab.txt table.h5
cache vocab.txt table.h5 --storage float16
embed text.txt t.h5 --top --token-table table.h5 --state zero
seqvec -i in.fasta -o proteins.h5 --cpu --id -1
seqvec -i in.fasta -o proteins.npz --cpu --id -1 --protein
compare kata lo -o c.html
compare kata kata -o c.png
nearest text.txt --word ka -o n.html
nearest b.h5 --word ka
train run --train part-*.txt --heldout part-0.txt --vocab vocab.txt --options-file options.json --max-steps 4 @
train run --resume --max-steps 8
train with --train part-*.txt --vocab vocab.txt --options-file options.json --max-steps 4 @ --workers 2
export run exported --softmax
export run exported --float16
perplexity run part-*.txt --batch-size 5
score part-0.txt --model exported
substitutes part-0.txt --model exported
info exported
import-tf missing imported
bench --seconds 1 --json bench.json
doctor
models
""".replace("@", "--quiet --evaluate-batch-size 5 --checkpoint-every 2 --keep 1")
PROGRAM = """
import json, sys
from elmo_fast import cli
from elmo_fast.text import corpus

corpus._CHUNK = 200
if __name__ == "__main__":
    for arguments in json.loads(sys.argv[1]):
        print(arguments, cli.main(arguments), file=sys.stderr)
"""
SLOW = """
import sys
from elmo_fast import cli
from elmo_fast.embed import run

run.COMMIT_SECONDS = 0
cli.main(sys.argv[1:])
"""
COUNTING = """
import time
from elmo_fast.text import corpus

def slow(text):
    print("counting", flush=True)
    time.sleep(100)

if __name__ == "__main__":
    corpus._CHUNK = 100
    list(corpus.map_chunks(slow, ["part-0.txt", "part-1.txt"], processes=2))
"""
EMBED = "embed", "in.txt", "out.h5", "--all", "--batch-size", 1, "--quiet", "--model", "model"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return write(tmp_path)


def write(folder):
    write_corpus(folder)
    write_model(folder / "model")
    (folder / "options.json").write_text(json.dumps(TINY))
    (folder / "in.fasta").write_text(">p1\nMKTAYIAK\n>p2\nGGG\n")
    (folder / "in.txt").write_text("a b c\n" * 100)
    (folder / "text.txt").write_text("ka naïvné ka\nlo\nmita ka 中\n", encoding="utf-8")
    for name, text in (("jobs.py", PROGRAM), ("slow.py", SLOW), ("counting.py", COUNTING)):
        (folder / name).write_text(text)
    return folder


def test_every_command_has_the_outputs_of_linux(folder, monkeypatch):
    jobs = [line.split() for line in JOBS.strip().splitlines()]
    if importlib.util.find_spec("pyarrow"):
        jobs += ["embed text.txt a.parquet --all".split(), "embed text.txt parts --top --layout arrow".split(),
                 *2 * ["embed text.txt a.arrow --top".split()],
                 "nearest a.parquet --word ka".split(), "nearest a.arrow --word ka".split()]
    models = {"embed", "cache", "seqvec", "compare", "nearest", "bench"}
    jobs = [[*job, "--model", "model"] if job[0] in models else job for job in jobs]
    out, errors = windows.run(folder, "jobs.py", json.dumps(jobs))
    statuses = [int(line.rpartition(" ")[2]) for line in errors.splitlines() if line.startswith("[")]
    assert statuses == [2 if job[0] == "import-tf" else 0 for job in jobs], errors
    assert "Error" not in errors and "Traceback" not in errors
    assert not [name for name in names(folder) if re.search(r"\.(lock|db|part|index)", name)]
    (folder / "here").mkdir()
    monkeypatch.chdir(write(folder / "here"))
    result = python("-c", f"import os, sys; os.chdir({str(folder / 'here')!r}); sys.argv[1:] = [{json.dumps(jobs)!r}]\n"
                    + PROGRAM, ELMO_FAST_NO_NATIVE="1")
    assert {*names(folder)} - {".processes", "here"} == {*names(folder / "here")}
    for name in ("a.npz", "a.npy", "a.json", "words.txt", "c.html", "n.html", "exported/options.json"):
        assert (folder / name).read_bytes() == (folder / "here" / name).read_bytes(), name
    for name in ("table.h5", "exported/weights.hdf5", "exported/softmax.hdf5"):  # HDF5 files contain the time
        assert _digests(folder / name) == _digests(folder / "here" / name), name
    for name in ("a.h5", "b.h5", "t.h5", "proteins.h5"):
        with open_embeddings(folder / name) as simulated, open_embeddings(folder / "here" / name) as native:
            assert all((a == b).all() for a, b in zip(simulated, native, strict=True))
    assert "\u00e9" in out and _without_times(out) == _without_times(result.stdout)


def _digests(path):
    """The bytes of a file's datasets by name, also in groups."""
    digests = {}
    with h5py.File(path) as file:
        file.visititems(lambda name, item: digests.update({name: item[()].tobytes()} if hasattr(item, "shape") else {}))
    return digests


def _without_times(out):
    differing = r"engine|torch|peak|^text generated"
    return [line for line in out.splitlines() if not re.search(differing, line)]


def test_a_killed_command_is_resumed_on_windows(folder):
    windows.command(folder, *EMBED)
    expected = read_hdf5(folder / "out.h5")
    (folder / "out.h5").unlink()
    process = windows.start(folder, "slow.py", *EMBED)
    until(lambda: len(list(folder.glob("out.h5.part/parts/*.h*"))) > 2)
    kill(process)
    _, errors = windows.command(folder, *EMBED, status=2)
    assert "found a partial result of" in errors
    windows.run(folder, "slow.py", *EMBED, "--resume")
    arrays = read_hdf5(folder / "out.h5")
    assert arrays.keys() == expected.keys() and all((arrays[key] == expected[key]).all() for key in expected)
    assert not list(folder.glob("out.h5.*"))


def test_a_stopped_command_prints_a_line_on_windows(folder):
    process = windows.start(folder, "slow.py", *EMBED)
    until(lambda: list(folder.glob("out.h5.part/progress.npz")))
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert re.fullmatch(r"elmo-fast: error: interrupted; \d+ texts are done; resume \(--resume\) goes on after them, "
                        r"from .*out.h5.part\n", errors)


def test_workers_end_with_a_killed_parent_on_windows(folder):
    parent = windows.start(folder, "counting.py")
    assert parent.stdout.readline().startswith("counting")
    parent.kill()
    parent.communicate(timeout=30)  # ends when no process holds the pipe
