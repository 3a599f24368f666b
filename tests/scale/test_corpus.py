"""`embed --ray` on a cluster of its own: shards, manifest, refusals, and workers that are killed."""

import contextlib
import functools
import json
import os
import signal
import subprocess
import sys
import threading

import numpy as np
import pytest

import elmo_fast
from elmo_fast import BiLm
from elmo_fast.embed.corpus import Target
from elmo_fast.embed.form import Form
from tests.scale.cluster import KILLS, TEXTS, cluster_settings, kill_one, wait_until, workers_below
from tests.support.files import ROOT, names, run, write_model

pytestmark = pytest.mark.long
pytest.importorskip("ray", reason="Ray is not installed: make test-integrations")

from elmo_fast.scale.corpus import Pool, embed_on_ray  # noqa: E402
from elmo_fast.scale.workers import Settings  # noqa: E402


@pytest.fixture(scope="module", autouse=True)
def quiet():
    with pytest.MonkeyPatch.context() as monkeypatch, cluster_settings(monkeypatch):
        yield
    assert workers_below(os.getpid()) == []


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def corpus(tmp_path):
    path = tmp_path / "corpus.txt"
    path.write_text("".join(f"{text}\n" for text in TEXTS), encoding="utf-8")
    return path


def assert_shards(folder, expected, texts=TEXTS):
    """Every text once, in order, with the vectors of one process; nothing else in the directory."""
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["complete"] is True and manifest["texts"] == len(texts)
    assert names(folder) == [*(shard["file"] for shard in manifest["shards"]), "manifest.json"]
    with elmo_fast.open_embeddings(folder) as found:
        assert list(found.keys) == [str(number) for number in range(len(texts))]
        assert [found.text(number) for number in range(len(texts))] == [text.strip() for text in texts]
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_array_equal(one, other)
    return manifest


def test_the_command(capfd, tmp_path, corpus, model):
    """Ray itself is silent."""
    out = tmp_path / "vectors"
    status, _, errors = run(capfd, "embed", corpus, out, "--top", "--state", "zero", "--model", model, "--allow-blank",
                            "--quiet", "--batch-size", 5, "--ray")
    assert (status, errors) == (0, "")
    assert names(tmp_path) == ["corpus.txt", "vectors"]
    manifest = assert_shards(out, elmo_fast.load(model).embed(TEXTS, "top", "zero"))
    assert len(manifest["shards"]) == 1
    fingerprint = elmo_fast.load(model).bilm.fingerprint()
    assert manifest["fingerprint"]["model"] == fingerprint and manifest["form"]["layers"] == "top"


def test_refusals(capfd, tmp_path, corpus, model):
    (tmp_path / "there").mkdir()
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / "bad.txt").write_bytes(b"one\n\xff\n")
    (tmp_path / "bad.jsonl").write_text('{"text": "one"}\n{"text": 3}\n')
    kept, warm = names(tmp_path), ("--state", "warm")
    for message, arguments in {
            "state: expected zero or warm, got carry: ": [corpus, "out", "--ray"],
            "state: expected zero or warm": [corpus, "out", "--state", "carry", "--ray", "local"],
            "input file: expected files with --ray": ["-", "out", *warm, "--ray"],
            "--forget-sentences, --use-sentence-keys: ": [corpus, "out", *warm, "--forget-sentences", "--ray"],
            "--cuda-device: expected --ray-gpus": [corpus, "out", *warm, "--cuda-device", 0, "--ray"],
            "--resume: expected a run without --ray": [corpus, "out", *warm, "--resume", "--ray"],
            "layout: expected": [corpus, "out.h5", *warm, "--ray"],
            "output: expected a directory of shards": [corpus, "out.parquet", *warm, "--allow-blank", "--ray"],
            "input file: expected a sentence on every line": [corpus, "out", *warm, "--ray"],
            "input file: expected one tokenized sentence": [tmp_path / "empty.txt", "out", *warm, "--ray"],
            "text: expected a string or a list of strings, got 3": [tmp_path / "bad.jsonl", "out", *warm, "--ray"],
            "input file: expected UTF-8 text": [tmp_path / "bad.txt", "out", *warm, "--ray"],
            "output file: expected a new directory": [corpus, "there", *warm, "--allow-blank", "--ray"],
            "--ray: expected the address of a cluster that this": [corpus, "out", *warm, "--allow-blank",
                                                                   "--ray", "ray://127.0.0.1:1"]}.items():
        path, name, *more = arguments
        status, out, errors = run(capfd, "embed", path, tmp_path / name, "--all", "--model", model, *more)
        assert (status, out) == (2, "") and errors.startswith(f"elmo-fast: error: {message}"), (message, errors)
        assert errors.count("\n") == 1
        assert names(tmp_path) == kept


def settings():
    return Settings(Form("all"), "warm", 2, 1, False)


def target(folder, layout="parquet"):
    return Target(folder / "out", layout, Form("all"))


def test_errors_of_readers_and_of_workers_end_the_run(tmp_path, corpus, model):
    class Dies(BiLm):
        def run(self, *_):
            os.abort()

    readable = functools.partial(elmo_fast.open_texts, corpus, allow_blank=True)
    blank = functools.partial(elmo_fast.open_texts, corpus)
    died = "shard 0, from text 0 on: expected a worker to embed it, 4 have died of it"
    for texts, kind, error, message in [(blank, BiLm, ValueError, "got a blank line at index 7"),
                                        (readable, Dies, OSError, died)]:
        with pytest.raises(error, match=message):
            embed_on_ray(texts, kind.from_model(model), target(tmp_path), settings(), Pool(workers=1))
        assert names(tmp_path) == ["corpus.txt"]


def test_no_texts(tmp_path, model):
    embed_on_ray(functools.partial(contextlib.nullcontext, ()), BiLm.from_model(model), target(tmp_path), settings(),
                 Pool(workers=1))
    assert_shards(tmp_path / "out", [], [])


@pytest.mark.parametrize("layout", ["packed", "arrow"])
def test_shards_of_other_layouts(tmp_path, corpus, model, layout):
    embed_on_ray(functools.partial(elmo_fast.open_texts, corpus, allow_blank=True), BiLm.from_model(model),
                 target(tmp_path, layout), settings(), Pool(), shard_tokens=9000)
    assert len(assert_shards(tmp_path / "out", elmo_fast.load(model).embed(TEXTS))["shards"]) == 3


@pytest.mark.parametrize("time", range(KILLS))
def test_a_killed_worker_loses_and_doubles_nothing(tmp_path, corpus, model, time):
    """The one whose shard is not yet there, when the first is."""
    killed = []

    def kill():
        wait_until(lambda: list(tmp_path.glob("out.*.part/*.parquet")))
        killed.append(kill_one(os.getpid()))
        killed.append(len(list(tmp_path.glob("out.*.part/*.parquet"))))

    thread = threading.Thread(target=kill)
    thread.start()
    embed_on_ray(functools.partial(elmo_fast.open_texts, corpus, allow_blank=True), BiLm.from_model(model),
                 target(tmp_path), settings(), Pool(workers=2), shard_tokens=300)
    thread.join()
    manifest = assert_shards(tmp_path / "out", elmo_fast.load(model).embed(TEXTS))
    assert killed[1] < len(manifest["shards"]) - 1
    assert names(tmp_path) == ["corpus.txt", "out"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_leaves_nothing(tmp_path, corpus, model, number):
    corpus.write_text("a long line of text .\n" * 200_000)
    command = [sys.executable, "-m", "elmo_fast.cli", "embed", corpus, tmp_path / "out", "--all", "--state", "warm",
               "--model", model, "--batch-size", "1", "--ray"]
    process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
    wait_until(lambda: list(tmp_path.glob("out.*.part/*.parquet")))
    process.send_signal(number)
    assert process.communicate(timeout=60)[1] == "elmo-fast: error: interrupted; no output was left behind\n"
    assert process.returncode == 1 and names(tmp_path) == ["corpus.txt"]


def test_a_killed_command_leaves_no_output_and_the_next_one_cleans_up(tmp_path, corpus, model):
    command = [sys.executable, "-m", "elmo_fast.cli", "embed", corpus, tmp_path / "out", "--all", "--state", "warm",
               "--model", model, "--allow-blank", "--quiet", "--batch-size", "1", "--ray"]
    process = subprocess.Popen(command, cwd=ROOT)
    wait_until(lambda: list(tmp_path.glob("out.*.part")))
    process.kill()
    process.wait()
    assert not (tmp_path / "out").exists()
    assert subprocess.run(command, cwd=ROOT).returncode == 0
    assert_shards(tmp_path / "out", elmo_fast.load(model).embed(TEXTS))
    assert names(tmp_path) == ["corpus.txt", "out"]
