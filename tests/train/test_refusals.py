"""What a training run refuses, before anything is written."""

import json

import pytest

from elmo_fast.train import checkpoint
from elmo_fast.train.corpus import read_shards
from elmo_fast.train.setup import start_or_resume
from tests.support.training import (
    QUIET,
    check_refusals,
    command_arguments,
    corpus_arguments,
    with_lstm,
    write_options,
)


@pytest.fixture
def corpus(tmp_path):
    return corpus_arguments(tmp_path)


@pytest.mark.parametrize("changes, message", [
    ({"train": "absent/*.txt"}, "train: expected files of text, found none at"),
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
def test_bad_arguments(tmp_path, corpus, capsys, changes, message):
    check_refusals(capsys, (command_arguments(corpus, tmp_path, **changes), message))
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("argument, content, message", [
    ("train", b"", "train: expected sentences in every file, found no token in"),
    ("train", b"\n\n", "found no token in"),
    ("train", b"a\nb c\n\xff\xfe\n", "bad.txt, line 3: expected UTF-8 text, got undecodable bytes"),
    ("vocab", b"</S>\n<UNK>\na\n", "missing <S>"),
    ("heldout", b"a b\n" * 4, "--evaluate-batch-size: expected at most the 4 sentences"),
    ("options-file", {"batch_size": 0}, "batch_size: expected an integer of at least 1, got 0"),
    ("options-file", {"optimizer": "sgd"}, "optimizer: expected adagrad or adamw, got 'sgd'"),
    ("options-file", {"dropout": "a"}, "dropout: expected a number from 0 to 1, got 'a'"),
    ("options-file", {"learning_rate": 0}, "learning_rate: expected a number above 0, got 0"),
    ("options-file", {"bidirectional": 1}, "bidirectional: expected true or false, got 1"),
    ("options-file", {"share_embedding_softmax": True}, "share_embedding_softmax: expected false"),
    ("options-file", {"lstm": {}}, "the key dim is missing"),
])
def test_bad_files(tmp_path, corpus, capsys, argument, content, message):
    path = tmp_path / "bad.txt"
    if isinstance(content, dict):
        write_options(path, **content)
    else:
        path.write_bytes(content)
    check_refusals(capsys, (command_arguments(corpus, tmp_path, **{argument: path}), message))
    assert not (tmp_path / "new").exists()


def test_what_cannot_be_resumed(tmp_path, corpus, capsys):
    folder = tmp_path / "new"
    resume = ["train", folder, "--resume"]
    more = [*resume, "--max-steps", "5"]
    check_refusals(capsys, (resume, "expected a run to resume, found no options.json"))
    start_or_resume(folder, **corpus, **QUIET, max_steps=4)
    check_refusals(capsys, (command_arguments(corpus, tmp_path), "expected a new directory, found checkpoints"),
                   ([*resume, "--batch-size", "4"], "--batch-size: expected no such argument beside --resume"))
    last, options = checkpoint.in_order(folder)[-1], json.loads((folder / "options.json").read_text())
    complete = last.read_bytes()
    last.write_bytes(complete[: len(complete) // 2])
    check_refusals(capsys, (more, "got another or a truncated file"))
    last.write_bytes(complete)
    for change, message in ((with_lstm(dim=13), "expected shape"),
                            ({"batch_size": 4}, "checkpoint: expected states of shapes"),
                            ({"accumulate": 2}, "checkpoint: expected 2 streams"),
                            ({"n_tokens_vocab": 29}, "vocab.txt: expected 29 words, got 28")):
        write_options(folder / "options.json", {**options, **change})
        check_refusals(capsys, (more, message))
    write_options(folder / "options.json", options)
    with open(read_shards(corpus["train"], "train")[0].path, "a") as file:
        file.write("one more\n")
    check_refusals(capsys, (more, "expected the 3 files that the run began with, unchanged"))
