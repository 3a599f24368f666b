"""Training that is stopped by signals, and two runs in one directory."""

import json
import os
import signal

import pytest

from elmo_fast.files.lock import locked
from elmo_fast.train.export import export_run
from elmo_fast.train.loop import Trainer
from elmo_fast.train.setup import start_or_resume
from tests.support.files import full_disk, names, until
from tests.support.grid import mostly_long
from tests.support.training import QUIET, check_refusals, command_arguments, corpus_arguments, final


@pytest.fixture
def corpus(tmp_path):
    return corpus_arguments(tmp_path)


@pytest.mark.parametrize("stops, changes", mostly_long([
    ([4, 5, 8], {"accumulate": 2}), ([3], {}), ([12], {}), ([4, 5, 8], {}), ([3], {"accumulate": 2}),
    ([12], {"accumulate": 2})], quick=2), ids=str)
def test_the_log_of_a_stopped_run_is_that_of_an_uninterrupted_run(tmp_path, corpus, monkeypatch, stops, changes):
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
    (tmp_path / "new" / "checkpoints" / "step-00000001.pt.elmo-0123abcd.part").touch()
    start_or_resume(tmp_path / "new", resume=True, max_steps=4)
    assert names(tmp_path / "new" / "checkpoints") == ["step-00000002.pt", "step-00000004.pt"]
    assert "new.lock" not in names(tmp_path)


def test_an_export_appears_whole_or_not_at_all(tmp_path, corpus):
    out = tmp_path / "out"
    start_or_resume(tmp_path / "run", **corpus, **QUIET, max_steps=2)

    def contents():
        return {path.name: path.read_bytes() for path in out.iterdir()} if out.exists() else None

    for float16 in (False, True):
        before = contents()
        with full_disk(), pytest.raises(OSError, match="File too large"):
            export_run(tmp_path / "run", out, softmax=True, float16=float16)
        assert contents() == before
        export_run(tmp_path / "run", out, softmax=True, float16=float16)
    assert contents().keys() == before.keys() and len(contents()["weights.hdf5"]) < len(before["weights.hdf5"])
    assert json.loads(contents()["options.json"])
