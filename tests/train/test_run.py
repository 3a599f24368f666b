"""Runs: started, stopped in every way, resumed exactly, in two processes, evaluated, logged, refused."""

import glob
import gzip
import json
import logging
import multiprocessing
import os
import signal
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from elmo_fast import ConfigurationError
from elmo_fast.text.corpus import read_shards
from elmo_fast.train import checkpoint
from elmo_fast.train.checkpoint import load_language_model
from elmo_fast.train.config import OptimizerConfig
from elmo_fast.train.evaluate import perplexity
from elmo_fast.train.run_files import read_log
from elmo_fast.train.setup import start_or_resume
from tests.support.files import full_disk, names, python, run, start, until
from tests.support.grid import mostly_long
from tests.support.training import (
    QUIET,
    TINY,
    WORD_INPUT,
    check_refusals,
    command_arguments,
    corpus_arguments,
    final,
    with_lstm,
    write_options,
)


@pytest.fixture
def corpus(tmp_path):
    return corpus_arguments(tmp_path)


def log_of(folder, kind):
    return [line for line in read_log(folder) if line["kind"] == kind]


def assert_same_run(folder, expected_folder):
    """Weights, optimizer, states, positions and losses agree to the bit."""
    (state, log), (expected, expected_log) = final(folder), final(expected_folder)
    for key in ("step", "weights", "optimizer", "streams"):
        torch.testing.assert_close(state[key], expected[key], rtol=0, atol=0)
    actual, expected = ([line for line in lines if line["kind"] == "train"] for lines in (log, expected_log))
    assert actual == expected and len(actual) > 0
    return log, expected_log


@pytest.mark.parametrize("changes", mostly_long([
    {}, {"optimizer": "adamw"}, {"accumulate": 2}, {"bidirectional": False}, {"reset_states": 0.3}], quick=2), ids=str)
def test_a_resumed_run_is_the_uninterrupted_run(tmp_path, corpus, changes):
    common = {**corpus, **QUIET, **changes, "checkpoint_every": 3, "evaluate_every": 6, "decay": "constant"}
    start_or_resume(tmp_path / "whole", **common, max_steps=12)
    start_or_resume(tmp_path / "parts", **common, max_steps=3)
    (tmp_path / "parts" / "best.pt").unlink()
    start_or_resume(tmp_path / "parts", resume=True, max_steps=9)
    start_or_resume(tmp_path / "parts", resume=True, max_steps=12, workers=2)
    assert not multiprocessing.active_children()
    log, _ = assert_same_run(tmp_path / "parts", tmp_path / "whole")
    assert [line["step"] for line in log if line["kind"] == "train"] == [3, 6, 9, 12]


@pytest.mark.parametrize("name, convert, reading", mostly_long([
    ("gz", lambda text: text, {}),
    ("tsv.gz", lambda text: "id\tbody\n" + "".join(f"x\t{line}\n" for line in text.splitlines()), {"field": "body"}),
    ("fa.gz", lambda text: text.replace("ta", "t-a"), {"format": "text", "tokenizer": "tests.train.test_run:joined"}),
], quick=1))
def test_a_text_of_any_form_trains_as_plain_text(tmp_path, corpus, capsys, name, convert, reading):
    """Compressed files, columns and tokenizers, also when the run is resumed, whose arguments name none of them."""
    common = {**corpus, **QUIET, "checkpoint_every": 3}
    start_or_resume(tmp_path / "plain", **common, max_steps=6)
    packed = {part: [packed_text(corpus[part][0], tmp_path / f"packed-{part}", name, convert)]
              for part in ("train", "heldout")}
    start_or_resume(tmp_path / "run", **{**common, **packed, **reading}, max_steps=3)
    start_or_resume(tmp_path / "run", resume=True, max_steps=6)
    assert_same_run(tmp_path / "run", tmp_path / "plain")
    assert not list(tmp_path.glob("*.part"))
    flags = [word for key, value in reading.items() for word in (f"--{key}", value)]
    results = [run(capsys, "perplexity", tmp_path / "plain", texts[0], "--batch-size", 4, "--quiet", *more)
               for texts, more in ((corpus["heldout"], []), (packed["heldout"], flags))]
    assert results[0] == results[1] and results[0][0] == 0


def packed_text(pattern, folder, name="gz", convert=str):
    """Write the files of a pattern in another form, compressed, into a new folder; returns their pattern."""
    folder.mkdir()
    for path in map(Path, glob.glob(pattern)):
        content = convert(path.read_text(encoding="utf-8"))
        (folder / f"{path.stem}.{name}").write_bytes(gzip.compress(content.encode()))
    return str(folder / "*.gz")


def joined(text):
    """A tokenizer of the test above."""
    return text.replace("t-a", "ta").split()


def test_a_signal_to_all_processes_saves(tmp_path, corpus):
    """`timeout`, systemd and torchrun send signals also to the processes that prepare batches."""
    process = start([*command_arguments(corpus, tmp_path), "--max-steps", "1000000", "--log-every", "1", "--workers",
                     "1"], start_new_session=True)
    until(lambda: len(read_log(tmp_path / "new")) > 2 or process.poll() is not None, seconds=120)
    os.killpg(process.pid, signal.SIGTERM)
    _, errors = process.communicate(timeout=60)
    state, _ = final(tmp_path / "new")
    assert process.returncode == 1 and f"interrupted after step {state['step']} of 1000000" in errors


def test_epochs_replace_the_number_of_steps(tmp_path, corpus):
    """Epochs of the command replace the steps of the options file or of the run."""
    corpus["options_file"] = str(write_options(tmp_path / "o.json", max_steps=2))
    epoch = sum(shard.predictions for shard in read_shards(corpus["train"], "train")) // (3 * 4)
    start_or_resume(tmp_path / "run", **corpus, **QUIET, n_epochs=3.5 / epoch)
    assert final(tmp_path / "run")[0]["step"] == 3
    start_or_resume(tmp_path / "run", resume=True, max_steps=4)
    start_or_resume(tmp_path / "run", resume=True, n_epochs=6.5 / epoch)
    assert final(tmp_path / "run")[0]["step"] == 6
    with pytest.raises(ConfigurationError, match="got learning_rat"):
        start_or_resume(tmp_path / "run", resume=True, learning_rat=3)


def test_patterns_in_a_directory_with_special_characters(tmp_path, corpus, monkeypatch):
    (tmp_path / "x[1]").mkdir()
    (tmp_path / "text").rename(tmp_path / "x[1]" / "text")
    monkeypatch.chdir(tmp_path / "x[1]")
    start_or_resume("run", **{**corpus, "train": ["text/part-*.txt"], "vocab": "text/vocab.txt"}, **QUIET, max_steps=2)
    monkeypatch.chdir(tmp_path)
    start_or_resume("x[1]/run", resume=True, max_steps=3)
    assert final(tmp_path / "x[1]" / "run")[0]["step"] == 3


def test_a_full_disk_loses_no_checkpoint(tmp_path, corpus):
    folder = tmp_path / "run"
    start_or_resume(folder, **{**corpus, "heldout": None}, **QUIET, max_steps=10, checkpoint_every=5)
    before = {path.name: path.read_bytes() for path in checkpoint.in_order(folder)}
    with full_disk(), pytest.raises(OSError, match=r"too large \(earlier checkpoints are unchanged\).*-00000015.pt"):
        start_or_resume(folder, resume=True, max_steps=20)
    assert {path.name: path.read_bytes() for path in (folder / "checkpoints").iterdir()} == before
    start_or_resume(folder, resume=True, max_steps=20)
    assert final(folder)[0]["step"] == 20


def test_the_files_of_a_run(tmp_path, corpus):
    folder = tmp_path / "run"
    start_or_resume(folder, **corpus, **QUIET, n_epochs=1, checkpoint_every=5, keep=3, evaluate_every=7, seed=3)
    shards = read_shards(corpus["train"], "train")
    steps = sum(shard.predictions for shard in shards) // (3 * 4)
    assert names(folder) == ["best.pt", "checkpoints", "log.jsonl", "loss.png", "options.json", "run.json", "vocab.txt"]
    numbers = sorted({*range(5, steps + 1, 5), steps})[-3:]
    assert names(folder / "checkpoints") == [f"step-{step:08d}.pt" for step in numbers]
    expected = {"n_train_tokens": sum(shard.tokens for shard in shards), "n_tokens_vocab": 28, "seed": 3,
                "batch_size": 3, "bidirectional": True, "all_clip_norm_val": 10}
    assert expected.items() <= json.loads((folder / "options.json").read_text()).items()
    heldout = {line["step"]: line["perplexity"] for line in log_of(folder, "heldout")}
    assert list(heldout) == sorted({*range(7, steps + 1, 7), steps})
    best = checkpoint.read(folder / "best.pt")
    assert best["perplexity"] == min(heldout.values()) == heldout[best["step"]]
    rows = log_of(folder, "train")
    assert rows[-1]["step"] == steps and rows[-1]["epoch"] == pytest.approx(1)
    assert all(line["perplexity"] == pytest.approx(np.exp(line["loss"])) for line in rows)
    model, vocabulary = load_language_model(folder)
    result = perplexity(model, read_shards(corpus["heldout"], "heldout"), vocabulary, 5)
    assert result.total == pytest.approx(best["perplexity"], rel=1e-6)


def test_an_early_stop_leaves_the_best(tmp_path, corpus, caplog):
    folder = tmp_path / "run"
    start_or_resume(folder, **corpus, **QUIET, max_steps=400, learning_rate=5.0, evaluate_every=2, patience=3)
    values = [line["perplexity"] for line in log_of(folder, "heldout")]
    end = {"kind": "end", "step": 2 * len(values), "why": "early stop"}
    assert read_log(folder)[-1] == end and len(values) < 200
    assert values.index(min(values)) == len(values) - 4
    assert checkpoint.read(folder / "best.pt")["perplexity"] == min(values)
    with caplog.at_level(logging.WARNING):
        start_or_resume(folder, resume=True)  # nothing left to do
    assert "3 evaluations without a new best perplexity have ended the run; a larger --patience" in caplog.text
    assert final(folder)[0]["step"] == 2 * len(values)


def test_learning_rates_warm_up_and_decay():
    linear = OptimizerConfig(learning_rate=2.0, warmup_steps=4, decay="linear")
    assert [linear.rate(step, 12) for step in (0, 1, 3, 4, 8, 12)] == [0.5, 1.0, 2.0, 2.0, 1.0, 0.0]
    cosine = OptimizerConfig(learning_rate=2.0, decay="cosine")
    assert [round(cosine.rate(step, 8), 6) for step in (0, 4, 8)] == [2.0, 1.0, 0.0]
    assert OptimizerConfig(learning_rate=0.2).rate(10**6, 10) == 0.2


def test_an_infinite_loss_ends_the_run_before_a_checkpoint(tmp_path, corpus):
    folder = tmp_path / "run"
    with pytest.raises(RuntimeError, match="the loss or its gradient is not finite around step"):
        start_or_resume(folder, **corpus, **QUIET, max_steps=400, checkpoint_every=4, learning_rate=1e38,
                        all_clip_norm_val=1e30, optimizer="adamw", warmup_steps=0)
    for path in checkpoint.in_order(folder):
        assert all(torch.isfinite(value).all() for value in checkpoint.read(path)["weights"].values())


def test_extras_are_optional_without_a_warning(tmp_path, corpus, monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with caplog.at_level(logging.WARNING):
        start_or_resume(tmp_path / "run", **corpus, **QUIET, max_steps=3)
    last = read_log(tmp_path / "run")[-1]
    assert last["kind"] == "note" and 'pip install "elmo-fast[plots]"' in last["text"]
    assert "loss.png" not in names(tmp_path / "run") and not caplog.records
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(ImportError, match=r'pip install "elmo-fast\[tensorboard\]"'):
        start_or_resume(tmp_path / "other", **corpus, **QUIET, max_steps=3, tensorboard=True)


def torchrun(folder, *arguments, processes=2, status=0):
    """Run `torchrun -m elmo_fast.train` on the loopback device, and return its stderr."""
    return python("-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}", "-m",
                  "elmo_fast.train", folder, *arguments, status=status, timeout=240, GLOO_SOCKET_IFNAME="lo",
                  CUDA_VISIBLE_DEVICES="").stderr


def test_a_warm_up_longer_than_the_run_gives_a_warning(tmp_path, corpus, caplog):
    for steps, expected in ((3, ["the warm-up takes 3 steps and the run 2: the learning rate never reaches its 0.001"]),
                            (2, [])):
        caplog.clear()
        start_or_resume(tmp_path / f"run{steps}", **corpus, **QUIET, max_steps=2, optimizer="adamw", warmup_steps=steps)
        assert [record.getMessage().partition(";")[0] for record in caplog.records] == expected


@pytest.mark.long
def test_two_processes_update_as_one_with_both_batches(tmp_path, corpus):
    """Both runs leave the same files; each of the two processes reads the compressed text by itself."""
    arguments = {"optimizer": "adagrad", "evaluate_batch_size": 5, "log_every": 3, "decay": "constant", "max_steps": 6,
                 "checkpoint_every": 3}
    flags = [part for name, value in arguments.items() for part in (f"--{name.replace('_', '-')}", value)]
    packed = packed_text(corpus["train"][0], tmp_path / "packed")
    new = command_arguments(corpus, tmp_path, train=packed, heldout=corpus["heldout"][0])[2:]
    torchrun(tmp_path / "two", *new, *flags)
    start_or_resume(tmp_path / "one", **corpus, **arguments, quiet=True, accumulate=2)
    (state, log), (expected, expected_log) = final(tmp_path / "two"), final(tmp_path / "one")
    torch.testing.assert_close(state["weights"], expected["weights"], rtol=1e-5, atol=2e-6)
    first, second = state["streams"]
    assert not torch.equal(first["position"], second["position"])
    for stream, truth in zip((first, second), expected["streams"], strict=True):
        assert torch.equal(stream["position"], truth["position"]) and torch.allclose(stream["c"], truth["c"], atol=1e-5)
    assert [(line["step"], line["kind"]) for line in log] == [(line["step"], line["kind"]) for line in expected_log]
    perplexities = [[line["perplexity"] for line in lines if "perplexity" in line] for lines in (log, expected_log)]
    assert perplexities[0] == pytest.approx(perplexities[1], rel=1e-5)
    assert names(tmp_path / "two") == names(tmp_path / "one")


@pytest.mark.long
def test_two_processes_resume_exactly_and_only_as_two(tmp_path, corpus):
    new = [*command_arguments(corpus, tmp_path)[2:], "--device", "cpu"]
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    for folder, *arguments in ((whole, *new, "--max-steps", 6), (parts, *new, "--max-steps", 2),
                               (parts, "--resume", "--max-steps", 6)):
        torchrun(folder, *arguments)
    torch.testing.assert_close(final(parts)[0]["weights"], final(whole)[0]["weights"], rtol=0, atol=0)
    errors = torchrun(parts, "--resume", "--max-steps", 8, processes=1, status=1)
    assert "checkpoint: expected 1 streams (processes times accumulate), got 2" in errors


@pytest.mark.parametrize("content", [TINY, WORD_INPUT], ids=["characters", "words"])
def test_the_command_from_text_to_perplexity(tmp_path, corpus, capsys, content):
    options = write_options(tmp_path / "o.json", content)
    status, out, _ = run(capsys, "vocab", corpus["train"][0], tmp_path / "v.txt", "--max-size", 20)
    assert status == 0 and "20 words, from" in out
    arguments = command_arguments(corpus, tmp_path, vocab=tmp_path / "v.txt", **{"options-file": options})
    status, _, errors = run(capsys, *arguments, "--max-steps", 5, "--batch-size", 2, "--full-softmax", "--seed", 4)
    assert status == 0, errors
    status, out, _ = run(capsys, "perplexity", tmp_path / "new", corpus["heldout"][0], "--batch-size", 4, "--quiet")
    assert status == 0 and out.startswith("perplexity ") and "forward" in out
    assert json.loads((tmp_path / "new" / "options.json").read_text())["sample_softmax"] is False


@pytest.mark.parametrize("argument, value, message", [
    ("train", "absent/*.txt", "train: expected files, found none at"),
    ("train", None, "--train: expected files for a new run, got none"),
    ("train", b"", "train: expected sentences in every file, found no token in"),
    ("train", b"\n\n", "found no token in"),
    ("train", b"a\nb c\n\xff\xfe\n", "bad.txt, line 3: expected UTF-8 text, got undecodable bytes"),
    ("vocab", None, "--vocab: expected files for a new run, got none"),
    ("vocab", "absent.txt", "absent.txt"),
    ("vocab", b"</S>\n<UNK>\na\n", "missing <S>"),
    ("heldout", b"a b\n" * 4, "--evaluate-batch-size: expected at most the 4 sentences"),
    ("unroll-steps", "100000", "unroll_steps: expected at most"),
    ("negatives", "29", "n_negative_samples_batch: expected at most the 28 words of the vocabulary, got 29"),
    ("patience", "2", "--patience: expected --heldout beside it"),
    ("size", "small", "--size: expected none beside --options-file"),
    ("device", "nowhere", "device: expected an available device, got 'nowhere'"),
    *((flag, "0", f"argument --{flag}: expected a finite number above 0") for flag in ("epochs", "learning-rate")),
    ("dropout", "1", "dropout: expected a number of at least 0 and below 1, got 1"),
    ("from-model", "absent", "model: expected one of"),
    ("options-file", "absent.json", "absent.json"),
    ("options-file", {"batch_size": 0}, "batch_size: expected an integer of at least 1, got 0"),
    ("options-file", {"dropout": "a"}, "dropout: expected a number of at least 0 and below 1, got 'a'"),
    ("options-file", {"learning_rate": 0}, "learning_rate: expected a number above 0, got 0"),
    ("options-file", {"bidirectional": 1}, "bidirectional: expected true or false, got 1"),
    ("options-file", {"share_embedding_softmax": True}, "share_embedding_softmax: expected false"),
    ("options-file", {"lstm": {}}, "the key dim is missing"),
    ("options-file", with_lstm(n_layers=2**63), "n_layers: expected at most 1,000"),
    ("options-file", {"warmup_steps": 10**400}, "warmup_steps: expected at most 9,223,372,036,854,775,807"),
    *(("options-file", {"optimizer": x}, f"optimizer: expected adagrad or adamw, got {x!r}") for x in ("sgd", [])),
    *((flag, value, f"{name}: expected at most ") for value in (10**7, 2**31, 2**62, 2**63, 2**70, 10**30)
      for flag, name in (("batch-size", "batch_size"), ("unroll-steps", "unroll_steps"), ("accumulate", ""),
                         ("negatives", "n_negative_samples_batch"))),
    *((flag, value, f"--{flag}: expected an integer") for flag in ("batch-size", "max-steps", "seed")
      for value in ("1e30", "nan", "2.0", "")),
])
def test_bad_arguments(tmp_path, corpus, capsys, argument, value, message):
    """Bytes and dictionaries are the contents of files. Sizes beyond any memory allocate nothing."""
    path = tmp_path / "bad.txt"
    if isinstance(value, dict):
        write_options(path, **value)
    elif isinstance(value, bytes):
        path.write_bytes(value)
    changes = {argument: path if path.exists() else value}
    check_refusals(capsys, (command_arguments(corpus, tmp_path, **changes), message))
    assert not (tmp_path / "new").exists()


def test_runs_that_cannot_be_resumed(tmp_path, corpus, capsys):
    folder = tmp_path / "new"
    resume = ["train", folder, "--resume"]
    more = [*resume, "--max-steps", "5"]
    check_refusals(capsys, (resume, "expected a run to resume, found no options.json"))
    start_or_resume(folder, **corpus, **QUIET, max_steps=4)
    check_refusals(capsys, (command_arguments(corpus, tmp_path), "expected a new directory, found checkpoints"),
                   ([*resume, "--batch-size", "4"], "--batch-size: expected no such argument beside --resume"))
    last, options = checkpoint.in_order(folder)[-1], json.loads((folder / "options.json").read_text())
    content = checkpoint.read(last)
    for change, message in ((with_lstm(dim=13), "expected shape"),
                            ({"batch_size": 4}, "checkpoint: expected states of shapes"),
                            ({"accumulate": 2}, "checkpoint: expected 2 streams"),
                            ({"n_tokens_vocab": 29}, "vocab.txt: expected the 29 words of the softmax, got 28")):
        write_options(folder / "options.json", {**options, **change})
        checkpoint.write(last, {**content, "files": checkpoint.described_files(folder)})
        check_refusals(capsys, (more, message))
