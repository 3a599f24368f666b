"""`embed --ray` on clusters of this machine: shards, manifest, refusals, and workers that are killed."""

import contextlib
import json
import logging
import os
import signal
import subprocess
import sys
import threading

import numpy as np
import pytest

import elmo_fast
from elmo_fast import BiLm
from elmo_fast.scale import Cluster
from elmo_fast.vectors.spec import OutputSpec, Target
from tests.scale.cluster import KILLS, TEXTS, cluster_settings, kill_one, workers_below
from tests.support.files import ROOT, names, run, until

pytestmark = pytest.mark.long
ray = pytest.importorskip("ray", reason="Ray is not installed: make test-integrations")

from elmo_fast.scale.run import Shard, _connected, _write_shards, embed_on_ray  # noqa: E402
from elmo_fast.scale.workers import Settings  # noqa: E402


@pytest.fixture(autouse=True)
def none_is_left():
    yield
    until(lambda: not workers_below(os.getpid()), 240)


@pytest.fixture
def corpus(tmp_path):
    path = tmp_path / "corpus.txt"
    path.write_text("".join(f"{text}\n" for text in TEXTS), encoding="utf-8")
    return path


def assert_shards(folder, expected, texts=TEXTS):
    """Every text once, in order, with the vectors of one process; nothing else in the directory."""
    manifest = json.loads((folder / "_manifest.json").read_text())
    assert manifest["complete"] is True and manifest["texts"] == len(texts)
    assert names(folder) == [*(shard["file"] for shard in manifest["shards"]), "_manifest.json"]
    with elmo_fast.open_embeddings(folder) as found:
        assert list(found.keys) == [str(number) for number in range(len(texts))]
        assert [found.text(number) for number in range(len(texts))] == [text.strip() for text in texts]
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_array_equal(one, other)
    return manifest


def test_the_command(capfd, tmp_path, corpus, model, monkeypatch):
    """On a cluster of its own. Ray itself is silent."""
    out = tmp_path / "vectors"
    with cluster_settings(monkeypatch):
        status, _, errors = run(capfd, "embed", corpus, out, "--top", "--state", "zero", "--model", model,
                                "--allow-blank", "--quiet", "--batch-size", 5, "--precision", "low", "--ray")
    assert (status, errors) == (0, "")
    assert names(tmp_path) == ["corpus.txt", "vectors"]
    manifest = assert_shards(out, elmo_fast.load(model, precision="low").embed(TEXTS, "top", "zero"))
    assert len(manifest["shards"]) == 1 and manifest["fingerprint"]["precision"] == "low"
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
            "--forget-sentences, --use-sentence-keys: ": [corpus, "out", *warm, "--forget-sentences", "--ray"],
            "--device: expected --ray-gpus": [corpus, "out", *warm, "--cuda-device", 0, "--ray"],
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
    return Settings(OutputSpec("all"), "warm", 2, 1)


def target(folder, layout="parquet"):
    return Target(folder / "out", layout, OutputSpec("all"))


def test_errors_of_readers_and_of_workers_end_the_run(tmp_path, corpus, model, address):
    class Dies(BiLm):
        def run(self, *_):
            os.abort()

    readable = elmo_fast.open_texts(corpus, allow_blank=True)
    blank = elmo_fast.open_texts(corpus)
    died = "shard 0, from text 0 on: expected a worker to embed it, 4 have died of it"
    for texts, kind, error, message in [(blank, BiLm, ValueError, "got none on line 8"),
                                        (readable, Dies, OSError, died)]:
        with pytest.raises(error, match=message):
            embed_on_ray(texts, kind.from_model(model), target(tmp_path), settings(), Cluster(address, workers=1))
        assert names(tmp_path) == ["corpus.txt"]


def test_a_cluster_that_does_not_start_leaves_nothing(tmp_path, corpus, model, address, monkeypatch):
    """Ray's `Exception` of a busy machine is an error in a line, and the next run connects."""
    def late(*_, **__):
        real(address, logging_level=logging.ERROR, log_to_driver=False)
        raise Exception("The current node timed out during startup.")

    def embed():
        embed_on_ray(elmo_fast.open_texts(corpus, allow_blank=True), BiLm.from_model(model),
                     target(tmp_path), settings(), Cluster(address, workers=1))

    real = ray.init
    with monkeypatch.context() as patched, pytest.raises(OSError, match="expected Ray to start.*timed out"):
        patched.setattr(ray, "init", late)
        embed()
    assert names(tmp_path) == ["corpus.txt"] and not ray.is_initialized()
    embed()


def test_an_error_of_rays_own_is_no_traceback(address):
    class Fails:
        def __init__(self):
            raise ValueError("The actor never ran.")

    with (pytest.raises(OSError, match="(?s)--ray: expected Ray to run the workers .*never ran"),
          _connected(Cluster(address))):
        list(_write_shards([Shard(0, 0, [])], [ray.remote(Fails).remote()]))


def test_no_texts(tmp_path, model, address):
    embed_on_ray((), BiLm.from_model(model), target(tmp_path), settings(),
                 Cluster(address, workers=1))
    assert_shards(tmp_path / "out", [], [])


@pytest.mark.parametrize("layout", ["packed", "arrow"])
def test_shards_of_other_layouts(tmp_path, corpus, model, layout, address):
    embed_on_ray(elmo_fast.open_texts(corpus, allow_blank=True), BiLm.from_model(model),
                 target(tmp_path, layout), settings(), Cluster(address), shard_tokens=9000)
    assert len(assert_shards(tmp_path / "out", elmo_fast.load(model).embed(TEXTS))["shards"]) == 3


@pytest.mark.parametrize("time", range(KILLS))
def test_a_killed_worker_loses_and_doubles_nothing(tmp_path, corpus, model, time, address):
    """The one whose shard is not yet there, when the first is."""
    killed = []

    def kill():
        until(lambda: list(tmp_path.glob("out.*.part/*.parquet")), 240)
        killed.append(kill_one(os.getpid()))
        killed.append(len(list(tmp_path.glob("out.*.part/*.parquet"))))

    thread = threading.Thread(target=kill)
    thread.start()
    embed_on_ray(elmo_fast.open_texts(corpus, allow_blank=True), BiLm.from_model(model),
                 target(tmp_path), settings(), Cluster(address, workers=2), shard_tokens=300)
    thread.join()
    manifest = assert_shards(tmp_path / "out", elmo_fast.load(model).embed(TEXTS))
    assert killed[1] < len(manifest["shards"]) - 1
    assert names(tmp_path) == ["corpus.txt", "out"]


@contextlib.contextmanager
def started(folder, corpus, model, *arguments):
    """A process of the command, which does not outlive the body."""
    process = subprocess.Popen([sys.executable, "-m", "elmo_fast.cli", "embed", corpus, folder / "out", "--all",
                                "--state", "warm", "--model", model, "--batch-size", "1", *arguments], cwd=ROOT,
                               stderr=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("number, is_joined", [(signal.SIGTERM, False), (signal.SIGINT, True)])
def test_a_stop_leaves_nothing(tmp_path, corpus, model, address, monkeypatch, number, is_joined):
    """Of a command that has joined a cluster, and of one that has its own, with the token that Ray gives it."""
    if not is_joined:
        monkeypatch.delenv("RAY_AUTH_MODE")
    corpus.write_text("a long line of text .\n" * 200_000)
    with started(tmp_path, corpus, model, "--ray", *[address] * is_joined) as process:
        until(lambda: list(tmp_path.glob("out.*.part/*.parquet")), 240)
        process.send_signal(number)
        assert process.communicate(timeout=240)[1] == "elmo-fast: error: interrupted; no output was left behind\n"
    assert process.returncode == 1 and names(tmp_path) == ["corpus.txt"]


def test_a_killed_command_leaves_no_output_and_the_next_one_cleans_up(tmp_path, corpus, model, address):
    arguments = tmp_path, corpus, model, "--allow-blank", "--quiet", "--ray", address
    with started(*arguments):
        until(lambda: list(tmp_path.glob("out.*.part")), 240)
    assert not (tmp_path / "out").exists()
    with started(*arguments) as process:
        assert process.communicate(timeout=240)[1] == "" and process.returncode == 0
    assert_shards(tmp_path / "out", elmo_fast.load(model).embed(TEXTS))
    assert names(tmp_path) == ["corpus.txt", "out"]
