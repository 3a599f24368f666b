"""What a training run refuses, and that nothing is written before it does."""

import json

import pytest

from elmo_fast.train import checkpoint
from elmo_fast.train.corpus import read_shards
from elmo_fast.train.setup import start_or_resume
from tests.support.files import run
from tests.support.training import TINY, command_arguments, corpus_arguments, write_options

FAST = {"quiet": True, "evaluate_batch_size": 5}


@pytest.fixture
def corpus(tmp_path):
    return corpus_arguments(tmp_path)


@pytest.mark.parametrize("changes, message", [
    ({"train": "absent/*.txt"}, "absent/*.txt"),
    ({"train": None}, "--train: expected files for a new run, got none"),
    ({"vocab": None}, "--vocab: expected files for a new run, got none"),
    ({"vocab": "absent.txt"}, "absent.txt"),
    ({"options-file": "absent.json"}, "absent.json"),
    ({"unroll-steps": "100000"}, "unroll_steps: expected at most"),
    ({"negatives": "29"}, "n_negative_samples_batch: expected at most the 28 words of the vocabulary, got 29"),
    ({"patience": "2"}, "--patience: expected --heldout beside it"),
    ({"size": "small"}, "--size: expected none beside --options-file"),
    ({"device": "nowhere"}, "device: expected an available device, got 'nowhere'"),
    ({"dropout": "1"}, "dropout: expected a number from 0 to 1, got 1"),
    ({"from-model": "absent"}, "model: expected one of"),
])
def test_bad_arguments_are_refused_before_anything_is_written(tmp_path, corpus, capsys, changes, message):
    status, _, errors = run(capsys, *command_arguments(corpus, tmp_path, **changes))
    assert status == 2 and message in errors and errors.count("\n") == 1
    assert not (tmp_path / "new").exists()


def test_bad_files_are_refused(tmp_path, corpus, capsys):
    path = tmp_path / "bad.txt"
    for content, message in ((b"", "found no token in"), (b"\n\n", "found no token in"),
                             (b"a\n\xff\xfe\n", "bad.txt, line 2: expected UTF-8 text")):
        path.write_bytes(content)
        status, _, errors = run(capsys, *command_arguments(corpus, tmp_path, train=path))
        assert status == 2 and message in errors
    path.write_text("</S>\n<UNK>\na\n")
    status, _, errors = run(capsys, *command_arguments(corpus, tmp_path, vocab=path))
    assert status == 2 and "missing <S>" in errors
    few = tmp_path / "few.txt"
    few.write_text("a b\n" * 4)
    status, _, errors = run(capsys, *command_arguments(corpus, tmp_path, heldout=few))
    assert status == 2 and "--evaluate-batch-size: expected at most the 4 sentences" in errors
    for change, message in (({"batch_size": 0}, "batch_size: expected an integer of at least 1, got 0"),
                            ({"optimizer": "sgd"}, "optimizer: expected adagrad or adamw, got 'sgd'"),
                            ({"dropout": "a"}, "dropout: expected a number from 0 to 1, got 'a'"),
                            ({"bidirectional": 1}, "bidirectional: expected true or false, got 1"),
                            ({"share_embedding_softmax": True}, "share_embedding_softmax: expected false"),
                            ({"lstm": {}}, "the key dim is missing")):
        options = write_options(tmp_path / "o.json", **change)
        status, _, errors = run(capsys, *command_arguments(corpus, tmp_path, **{"options-file": options}))
        assert status == 2 and message in errors, errors
    assert not (tmp_path / "new").exists()


def test_what_cannot_be_resumed_is_refused(tmp_path, corpus, capsys):
    folder = tmp_path / "run"
    assert run(capsys, "train", folder, "--resume")[2].count("expected a run to resume, found no options.json") == 1
    start_or_resume(folder, **corpus, **FAST, max_steps=4)
    assert "expected a new directory, found checkpoints" in run(
        capsys, *command_arguments(corpus, tmp_path)[:1], folder, *command_arguments(corpus, tmp_path)[2:])[2]
    assert "--batch-size: expected no such argument beside --resume" in run(
        capsys, "train", folder, "--resume", "--batch-size", "4")[2]
    last = checkpoint.in_order(folder)[-1]
    whole = last.read_bytes()
    last.write_bytes(whole[: len(whole) // 2])
    assert "got another or a truncated file" in run(capsys, "train", folder, "--resume", "--max-steps", "5")[2]
    last.write_bytes(whole)
    options = json.loads((folder / "options.json").read_text())
    for change, message in (({"lstm": {**TINY["lstm"], "dim": 13}}, "expected shape"),
                            ({"batch_size": 4}, "checkpoint: expected states of shapes"),
                            ({"accumulate": 2}, "checkpoint: expected 2 streams")):
        write_options(folder / "options.json", options, **change)
        status, _, errors = run(capsys, "train", folder, "--resume", "--max-steps", "5")
        assert status == 2 and message in errors
    write_options(folder / "options.json", options)
    shard = read_shards(corpus["train"], "train")[0].path
    with open(shard, "a") as file:
        file.write("one more\n")
    assert "expected the 3 files that the run began with, unchanged" in run(
        capsys, "train", folder, "--resume", "--max-steps", "5")[2]
