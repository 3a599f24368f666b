"""Damaged, old and foreign checkpoints: refused in a line that names the file and the next step, or read as before."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from elmo_fast import ConfigurationError
from elmo_fast.text.corpus import read_shards
from elmo_fast.train import checkpoint
from elmo_fast.train.evaluate import perplexity_of
from elmo_fast.train.setup import start_or_resume
from tests.support.grid import mostly_long
from tests.support.training import QUIET, check_refusals, corpus_arguments, final

ENTRIES = ("optimizer", "streams", "shards", "evaluations")


@pytest.fixture(scope="module", params=mostly_long(["adagrad", "adamw"]))
def base_run(tmp_path_factory, request):
    """A run with the checkpoints of steps 2 and 4, and a best checkpoint."""
    folder = tmp_path_factory.mktemp(request.param)
    start_or_resume(folder / "run", **corpus_arguments(folder), **QUIET, max_steps=4, checkpoint_every=2,
                    evaluate_every=2, optimizer=request.param)
    return folder / "run"


@pytest.fixture
def run(base_run, tmp_path):
    return shutil.copytree(base_run, tmp_path / "run")


def weights(run):
    return checkpoint.read(checkpoint.in_order(run)[-1], *ENTRIES)["weights"]


def test_damage_is_harmless_or_refused_with_the_next_step(run, capsys):
    first, last = checkpoint.in_order(run)
    content, intact, messages = last.read_bytes(), checkpoint.read(last, *ENTRIES), []
    generator = np.random.default_rng(0)
    for position in generator.integers(0, len(content), 60):
        damaged = bytearray(content)
        damaged[position] ^= 1 << int(generator.integers(8))
        last.write_bytes(damaged)
        try:
            torch.testing.assert_close(checkpoint.read(last, *ENTRIES)["weights"], intact["weights"], rtol=0, atol=0)
        except ConfigurationError as error:
            messages.append(str(error))
    assert len(messages) > 20 and not any("\n" in message for message in messages)
    assert all(message.startswith(f"checkpoint {last}: expected") and
               message.endswith(f"; name another one with --resume-from or --checkpoint: {first}")
               for message in messages)
    for size in (0, 10, len(content) // 2, len(content) - 1):
        last.write_bytes(content[:size])
        kind = "a checkpoint of elmo-fast train, got another or a truncated file"
        check_refusals(capsys, (["train", run, "--resume"], f"checkpoint {last}: expected {kind}"))


def test_a_run_is_resumed_from_the_checkpoint_before_a_damaged_one(run, tmp_path, capsys):
    whole = shutil.copytree(run, tmp_path / "whole")
    start_or_resume(whole, resume=True, max_steps=8)
    first, last = checkpoint.in_order(run)
    content = last.read_bytes()
    last.write_bytes(content[: len(content) // 2] + b"?" * 200 + content[len(content) // 2 + 200 :])
    check_refusals(capsys, (["train", run, "--resume"], f"with --resume-from or --checkpoint: {first}"),
                   (["train", run, "--resume-from", last], f"checkpoint {last}: expected "),
                   (["train", run, "--resume-from", run / "no"], "checkpoint: expected a file, found none at"))
    start_or_resume(run, resume_from=first, max_steps=8)
    assert [path.name for path in checkpoint.in_order(run)] == [path.name for path in checkpoint.in_order(whole)]
    torch.testing.assert_close(weights(run), weights(whole), rtol=0, atol=0)


@pytest.mark.parametrize("name", ["options.json", "vocab.txt"])
def test_a_damaged_file_of_the_run_is_refused(run, tmp_path, capsys, name):
    """The changed byte leaves options and vocabulary readable, with the same sizes."""
    text = tmp_path / "text.txt"
    text.write_text("ka lo\n" * 9)
    file, last = run / name, checkpoint.in_order(run)[-1]
    intact = file.read_bytes()
    damaged = intact.replace(b'"cell_clip": 0.3', b'"cell_clip": 0.7').replace(b"\nkas\n", b"\nkaz\n")
    file.write_bytes(damaged)
    export = ["export", run, tmp_path / "out"]
    for arguments, path in ((export, run / "best.pt"), (["train", run, "--resume", "--max-steps", "6"], last),
                            (["perplexity", run, text, "--batch-size", "4"], run / "best.pt"),
                            ([*export, "--checkpoint", last], last)):
        place = "options.json: lstm" if name == "options.json" else name
        message = f"run {run}: {place}: expected what {path} was written with, found something else: it was damaged"
        check_refusals(capsys, (arguments, message))
    assert not (tmp_path / "out").exists()
    if name == "vocab.txt":  # the run's vocabulary is not read
        (tmp_path / "vocab.txt").write_bytes(intact)
        assert perplexity_of(run, str(text), vocab_file=tmp_path / "vocab.txt", batch_size=4).batches > 0
    file.write_bytes(intact)
    start_or_resume(run, resume=True, max_steps=6)
    assert final(run)[0]["files"] == checkpoint.described_files(run)


def test_checkpoints_fit_the_options_of_a_resumed_run(run):
    early = checkpoint.in_order(run)[0]
    start_or_resume(run, resume=True, max_steps=5)
    start_or_resume(run, resume=True, n_epochs=0.5, max_steps=6)
    for path in (*checkpoint.in_order(run), run / "best.pt"):
        checkpoint.weights_of_run(run, path)
    assert not early.exists()


def test_checkpoints_of_format_2_are_loaded_and_resumed(run, tmp_path):
    """Their `files` has a digest of the options, which is not compared."""
    whole = shutil.copytree(run, tmp_path / "whole")
    start_or_resume(whole, resume=True, max_steps=6)
    for path in (*checkpoint.in_order(run), run / "best.pt"):
        content = checkpoint.read(path)
        torch.save({**content, "format": 2, "files": {**content["files"], "options.json": "0" * 64}}, path)
    start_or_resume(run, resume=True, max_steps=6)
    torch.testing.assert_close(weights(run), weights(whole), rtol=0, atol=0)


@pytest.mark.parametrize("change, message", [
    ({"train": {"a": 1}}, "train: expected paths, got {'a': 1}"),
    ({"train": [3]}, "train: expected paths, got 3"),
    ({"format": 3}, "format: expected one of text, conllu"), ({"tokenizer": 3}, "tokenizer: expected auto"),
    ({"field": 3}, "field: expected files of csv"),
    ({"train": None}, "a difference in their number"),
    ({"heldout": 3}, "heldout: expected paths, got 3"),
    ({"precision": "low"}, "precision: expected one of highest, high, medium, got 'low'"),
    ({"precision": None}, "precision: expected one of"),
    *(({name: value}, f"{name}: expected") for name in ("evaluate_every", "evaluate_batch_size", "checkpoint_every",
                                                       "keep", "log_every", "patience") for value in (0, "3", 2**70)),
    *(({name: 3}, f"{name}: expected true or false, got 3") for name in ("tensorboard", "quiet"))])
def test_damaged_settings_are_refused(run, capsys, change, message):
    content = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps({**content, **change}))
    check_refusals(capsys, (["train", run, "--resume", "--max-steps", "6"], message))


@pytest.mark.parametrize("number", [None, 0, 1, 4, "2", torch.zeros(3, 1)])
def test_another_format_is_refused(run, number):
    last = checkpoint.in_order(run)[-1]
    torch.save({**checkpoint.read(last), "format": number}, last)
    with pytest.raises(ConfigurationError, match="expected format 3 of elmo-fast train, got another file"):
        checkpoint.read(last)


def test_another_text_of_the_same_size_and_another_heldout_text_are_refused(tmp_path, capsys):
    corpus = corpus_arguments(tmp_path)
    start_or_resume(tmp_path / "run", **corpus, **QUIET, max_steps=2)
    shard = read_shards(corpus["train"], "train")[1]
    path = Path(shard.path)
    content = path.read_bytes()
    path.write_text(path.read_text(encoding="utf-8").replace("ka", "lo", 1), encoding="utf-8")
    new_shard = read_shards(corpus["train"], "train")[1]
    assert new_shard[:4] == shard[:4] and new_shard != shard
    resume = ["train", tmp_path / "run", "--resume", "--max-steps", "4", "--quiet"]
    check_refusals(capsys, (resume, "unchanged, found a difference in part-1.txt"))
    path.write_bytes(content)
    with open(read_shards(corpus["heldout"], "heldout")[0].path, "a") as file:
        file.write("ka lo\n")
    check_refusals(capsys, (resume, "heldout: expected the 1 files that the run began with, unchanged"))
