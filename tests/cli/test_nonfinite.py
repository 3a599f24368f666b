"""Subcommands refuse models with NaN and infinities, and take them with `--allow-nonfinite`."""

import shutil

import numpy as np
import pytest
import torch

from elmo_fast.train import checkpoint
from elmo_fast.train.setup import start_or_resume
from tests.support.files import paths, run, spoil, tiny
from tests.support.softmax import write_softmax_model
from tests.support.tf_checkpoints import imported, made_up
from tests.support.training import QUIET, check_refusals, corpus_arguments, write_corpus

REFUSED = "that are NaN or infinite; allow_nonfinite=True loads them"


@pytest.fixture
def model(tmp_path):
    folder = write_softmax_model(tmp_path / "model", tiny(lstm__dim=12))
    spoil(folder / "weights.hdf5")
    (tmp_path / "text.txt").write_text("the cat\nOne\n")
    (tmp_path / "proteins.fasta").write_text(">p|1\nSEQWENCE\n")
    return folder


def check(capsys, *arguments, status=0):
    check_refusals(capsys, (arguments, REFUSED))
    actual, _, errors = run(capsys, *arguments, "--allow-nonfinite")
    assert actual == status, errors


@pytest.mark.parametrize("name", ["embed", "cache", "info", "score", "substitutes", "seqvec", "perplexity", "compare",
                                  "nearest"])
def test_a_model(model, tmp_path, capsys, name):
    text, out, files = tmp_path / "text.txt", tmp_path / "out.h5", ("--options-file", "--weight-file")
    flags = [part for pair in zip(files, paths(model)) for part in pair]
    check(capsys, name, *{
        "embed": [text, out, "--all", "--quiet", *flags], "cache": [model / "vocab.txt", out, "--quiet", *flags],
        "info": [model], "score": [text, "--model", model], "substitutes": [text, "--model", model],
        "seqvec": ["-i", tmp_path / "proteins.fasta", "-o", out, "--model", model, "--cpu", "--silent"],
        "compare": ["the cat", "One", "--model", model],
        "nearest": [text, "--word", "the", "--sentence", "the cat", "--model", model],
        "perplexity": [model, text, "--batch-size", 2, "--quiet"]}[name])


def test_a_model_to_fine_tune(model, tmp_path, capsys):
    pattern, vocabulary = write_corpus(tmp_path / "corpus")
    (model / "softmax.hdf5").unlink()
    tune = ["train", tmp_path / "run", "--train", pattern, "--vocab", vocabulary, "--from-model", model, "--quiet",
            "--batch-size", 3, "--unroll-steps", 4, "--negatives", 7, "--max-steps", 1]
    check(capsys, *tune, status=1)  # the loss is NaN
    resume = ["train", tmp_path / "run", "--resume", "--allow-nonfinite"]
    check_refusals(capsys, (resume, "--allow-nonfinite: expected no such argument beside --resume"))


def test_a_run(tmp_path, capsys):
    folder, corpus = tmp_path / "run", corpus_arguments(tmp_path)
    start_or_resume(folder, **{**corpus, "heldout": None}, **QUIET, max_steps=1)
    last = checkpoint.in_order(folder)[-1]
    content = checkpoint.read(last)
    content["weights"]["softmax/b"][3] = torch.inf
    checkpoint.write(last, content)
    check(capsys, "perplexity", folder, corpus["train"][0], "--batch-size", 4, "--quiet")
    check(capsys, "export", folder, tmp_path / "out", "--softmax")


@pytest.mark.parametrize("name, more", [("lm/softmax/b", ""), ("lm/softmax/b/Adagrad", "above 0, found 1.0 to inf")])
def test_an_import(tmp_path, name, more):
    values = made_up()
    values[name] = np.full_like(values[name], np.inf)
    values[name][0] = 1
    with pytest.raises(ValueError, match=more or f"variable {name}: expected finite .* {REFUSED}"):
        imported(tmp_path, values)
    if not more:
        shutil.rmtree(tmp_path / "tf")
        assert imported(tmp_path, values, allow_nonfinite=True)[1].variables
