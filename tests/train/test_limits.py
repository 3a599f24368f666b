"""Settings of a run that no text or memory could serve, and a damaged run.json, are refused in a line."""

import json
import shutil

import pytest

from elmo_fast.train.setup import start_or_resume
from tests.support.training import QUIET, TINY, check_refusals, command_arguments, corpus_arguments, write_options


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return corpus_arguments(tmp_path_factory.mktemp("corpus"))


@pytest.fixture(scope="module")
def trained(tmp_path_factory, corpus):
    folder = tmp_path_factory.mktemp("trained") / "run"
    start_or_resume(folder, **corpus, **QUIET, max_steps=2)
    return folder


@pytest.mark.parametrize("value", [10**7, 2**31, 2**62, 2**63, 2**70, 10**30])
def test_steps_larger_than_the_text_are_refused_before_memory_is_spent(tmp_path, corpus, capsys, value):
    large = "expected at most "
    check_refusals(
        capsys, *((command_arguments(corpus, tmp_path, **{f"{flag}": value}), f"{name}: {large}") for flag, name in (
            ("batch-size", "batch_size"), ("unroll-steps", "unroll_steps"), ("negatives", "n_negative_samples_batch"))))
    check_refusals(capsys, (command_arguments(corpus, tmp_path, accumulate=value), "expected at most "))
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("flag", ["batch-size", "max-steps", "seed"])
def test_a_count_is_an_integer(tmp_path, corpus, capsys, flag):
    check_refusals(capsys, *((command_arguments(corpus, tmp_path, **{flag: value}), f"--{flag}: expected an integer")
                             for value in ("1e30", "nan", "2.0", "")))


@pytest.mark.parametrize("change, message", [
    ({"lstm": {**TINY["lstm"], "n_layers": 2**63}}, "n_layers: expected at most 1,000"),
    ({"warmup_steps": 10**400}, "warmup_steps: expected at most 9,223,372,036,854,775,807"),
    ({"optimizer": []}, "optimizer: expected adagrad or adamw, got []")])
def test_options_of_a_run(tmp_path, corpus, capsys, change, message):
    path = write_options(tmp_path / "options.json", **change)
    check_refusals(capsys, (command_arguments(corpus, tmp_path, **{"options-file": path}), message))


@pytest.mark.parametrize("change, message", [
    ({"train": {"a": 1}}, "train: expected paths of text, got {'a': 1}"),
    ({"train": [3]}, "train: expected paths of text, got [3]"),
    ({"train": None}, "a difference in their number"),
    ({"heldout": 3}, "heldout: expected paths of text, got 3"),
    ({"precision": "a"}, "precision: expected one of"), ({"precision": None}, "precision: expected one of"),
    *(({name: value}, f"{name}: expected") for name in ("evaluate_every", "evaluate_batch_size", "checkpoint_every",
                                                       "keep", "log_every", "patience") for value in (0, "3", 2**70)),
    *(({name: 3}, f"{name}: expected true or false, got 3") for name in ("tensorboard", "quiet"))])
def test_a_damaged_run_file_is_refused(trained, tmp_path, capsys, change, message):
    run = shutil.copytree(trained, tmp_path / "run")
    content = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps({**content, **change}))
    check_refusals(capsys, (["train", run, "--resume", "--max-steps", "4"], message))
