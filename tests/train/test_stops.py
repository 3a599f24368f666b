"""Training that is stopped by signals, and two runs in one directory."""

import json
import multiprocessing
import os
import signal

import pytest

from elmo_fast.files import stops
from elmo_fast.files.lock import locked
from elmo_fast.text.corpus import make_vocabulary
from elmo_fast.train import checkpoint, export
from elmo_fast.train.export import export_run
from elmo_fast.train.loop import Trainer
from elmo_fast.train.setup import start_or_resume
from tests.support.files import names, run, until
from tests.support.grid import mostly_long
from tests.support.training import QUIET, check_refusals, command_arguments, corpus_arguments, final


@pytest.fixture
def corpus(tmp_path):
    return corpus_arguments(tmp_path)


@pytest.mark.parametrize("stops, changes", mostly_long([
    ([4, 5, 8], {"accumulate": 2}), ([3], {}), ([12], {}), ([4, 5, 8], {}), ([3], {"accumulate": 2}),
    ([12], {"accumulate": 2})], quick=2), ids=str)
def test_the_log_of_a_stopped_run_is_that_of_an_uninterrupted_one(tmp_path, corpus, monkeypatch, stops, changes):
    arguments = {**corpus, **QUIET, **changes, "checkpoint_every": 5, "evaluate_every": 6, "max_steps": 12}
    start_or_resume(tmp_path / "whole", **arguments)
    step = Trainer.step

    def stepping(trainer):
        if trainer.step_number + 1 in stops:
            signal.raise_signal(signal.SIGTERM if trainer.step_number % 2 else signal.SIGINT)
        return step(trainer)

    monkeypatch.setattr(Trainer, "step", stepping)
    for number, stop in enumerate(stops):
        with pytest.raises(KeyboardInterrupt, match=f"interrupted after step {stop} of 12; --resume continues"):
            start_or_resume(tmp_path / "parts", **({"resume": True} if number else arguments))
        assert final(tmp_path / "parts")[0]["step"] == stop
    start_or_resume(tmp_path / "parts", resume=True)
    assert final(tmp_path / "parts")[1] == final(tmp_path / "whole")[1]
    assert names(tmp_path / "parts") == names(tmp_path / "whole")


def test_a_checkpoint_of_an_earlier_version_has_no_losses(tmp_path, corpus):
    arguments = {**corpus, **QUIET, "checkpoint_every": 3}
    start_or_resume(tmp_path / "run", **arguments, max_steps=3)
    path = checkpoint.in_order(tmp_path / "run")[-1]
    content = checkpoint.read(path)
    del content["losses"]
    checkpoint.write(path, content)
    start_or_resume(tmp_path / "run", resume=True, max_steps=6)
    assert final(tmp_path / "run")[0]["step"] == 6


def test_a_second_run_in_a_directory_is_refused(tmp_path, corpus, capsys):
    start_or_resume(tmp_path / "new", **corpus, **QUIET, max_steps=2)
    child = os.fork()
    if not child:
        with locked(tmp_path / "new"):
            (tmp_path / "ready").touch()
            signal.pause()
    try:
        until((tmp_path / "ready").exists)
        before = names(tmp_path / "new")
        for more in (["--resume", "--max-steps", "4"], command_arguments(corpus, tmp_path)[2:]):
            check_refusals(capsys, (["train", tmp_path / "new", *more],
                                    "expected no other process or thread to write it, found one that has locked"))
        assert names(tmp_path / "new") == before
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    (tmp_path / "new" / "checkpoints" / "step-00000001.pt.0123abcd.part").touch()
    start_or_resume(tmp_path / "new", resume=True, max_steps=4)
    assert names(tmp_path / "new" / "checkpoints") == ["step-00000002.pt", "step-00000004.pt"]
    assert "new.lock" not in names(tmp_path)


def test_an_export_appears_whole_or_not_at_all(tmp_path, corpus, monkeypatch):
    out = tmp_path / "out"
    start_or_resume(tmp_path / "run", **corpus, **QUIET, max_steps=2)
    write, before = export.write_weights, None

    def failing(path, *arguments, **keywords):
        if path.name == "softmax.hdf5":
            raise OSError(28, "No space left on device")
        write(path, *arguments, **keywords)

    def contents():
        return {path.name: path.read_bytes() for path in out.iterdir()} if out.exists() else None

    for float16 in (False, True):
        with monkeypatch.context() as patched, pytest.raises(OSError, match="No space left"):
            patched.setattr(export, "write_weights", failing)
            export_run(tmp_path / "run", out, softmax=True, float16=float16)
        assert contents() == before
        export_run(tmp_path / "run", out, softmax=True, float16=float16)
        whole, before = before, contents()
    assert before.keys() == whole.keys() and len(before["weights.hdf5"]) < len(whole["weights.hdf5"])
    assert json.loads(before["options.json"])


def test_a_stopped_export_leaves_nothing(tmp_path, corpus, monkeypatch, capsys):
    start_or_resume(tmp_path / "run", **corpus, **QUIET, max_steps=2)
    before, write = names(tmp_path), export.write_weights
    monkeypatch.setattr(export, "write_weights", lambda *arguments, **keywords: signal.raise_signal(signal.SIGINT)
                        or write(*arguments, **keywords))
    found = run(capsys, "export", tmp_path / "run", tmp_path / "out")
    assert found == (1, "", "elmo-fast: error: interrupted; no output was left behind\n") and names(tmp_path) == before


def test_a_stopped_count_ends_its_processes(tmp_path, monkeypatch):
    monkeypatch.setattr("elmo_fast.text.corpus._CHUNK", 1000)
    (tmp_path / "text.txt").write_text("a b c d\n" * 2000)
    checked = stops.checked

    def with_a_stop(results):
        for number, found in enumerate(checked(results)):
            assert number < 3
            if number == 2:
                signal.raise_signal(signal.SIGINT)
            yield found

    monkeypatch.setattr(stops, "checked", with_a_stop)
    with pytest.raises(KeyboardInterrupt):
        make_vocabulary(str(tmp_path / "text.txt"), tmp_path / "vocab.txt", processes=2)
    assert names(tmp_path) == ["text.txt"] and not multiprocessing.active_children()
