"""Damaged, old and foreign checkpoints: refused in a line that names the file and the way on, or read as before."""

import hashlib
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from elmo_fast import ConfigurationError
from elmo_fast.text.corpus import read_shards
from elmo_fast.text.vocabulary import Vocabulary
from elmo_fast.train import checkpoint
from elmo_fast.train.evaluate import perplexity, perplexity_of
from elmo_fast.train.setup import start_or_resume
from tests.support.files import flip
from tests.support.files import run as command
from tests.support.grid import mostly_long
from tests.support.training import QUIET, check_refusals, corpus_arguments, final, model, write_corpus

ENTRIES = ("optimizer", "streams", "shards", "evaluations")


@pytest.fixture(scope="module", params=mostly_long(["adagrad", "adamw"]))
def trained(tmp_path_factory, request):
    """A run with the checkpoints of steps 2 and 4, and a best one."""
    folder = tmp_path_factory.mktemp(request.param)
    start_or_resume(folder / "run", **corpus_arguments(folder), **QUIET, max_steps=4, checkpoint_every=2,
                    evaluate_every=2, optimizer=request.param)
    return folder / "run"


@pytest.fixture
def run(trained, tmp_path):
    return shutil.copytree(trained, tmp_path / "run")


def weights(run):
    return checkpoint.read(checkpoint.in_order(run)[-1], *ENTRIES)["weights"]


def as_old(path, content=None):
    """Write a checkpoint as it was before there were checksums."""
    content = {**(content or checkpoint.read(path)), "format": 1}
    for name in ("files", "heldout"):
        content.pop(name, None)
    if isinstance(content.get("shards"), list):
        content["shards"] = [shard[:4] if isinstance(shard, list) else shard for shard in content["shards"]]
    torch.save(content, path)


def test_damage_of_any_byte_is_refused_with_the_way_on(run, capsys):
    first, last = checkpoint.in_order(run)
    content = last.read_bytes()
    generator = np.random.default_rng(0)
    at_the_end = range(len(content) - 90, len(content))
    for position in [*generator.integers(0, len(content), 60), *at_the_end]:
        damaged = bytearray(content)
        damaged[position] ^= 1 << int(generator.integers(8))
        last.write_bytes(damaged)
        with pytest.raises(ConfigurationError) as caught:
            checkpoint.read(last)
        message = str(caught.value)
        assert message.startswith(f"checkpoint {last}: expected") and "\n" not in message
        assert message.endswith(f"; name another one with --resume-from or --checkpoint: {first}")
    for size in (0, 10, 80, len(content) // 2, len(content) - 80, len(content) - 1):
        last.write_bytes(content[:size])
        what = "a checkpoint of elmo-fast train, got another or a truncated file" if size <= len(content) // 2 else ""
        check_refusals(capsys, (["train", run, "--resume"], f"checkpoint {last}: expected {what}"))
    last.write_bytes(content)
    assert checkpoint.read(last, *ENTRIES)["step"] == 4


def test_a_run_goes_on_from_the_checkpoint_before_a_damaged_one(run, tmp_path, capsys):
    whole = shutil.copytree(run, tmp_path / "whole")
    start_or_resume(whole, resume=True, max_steps=8)
    first, last = checkpoint.in_order(run)
    flip(last, last.stat().st_size // 2)
    check_refusals(capsys, (["train", run, "--resume"], f"with --resume-from or --checkpoint: {first}"),
                   (["train", run, "--resume-from", last], f"checkpoint {last}: expected the bytes of its checksum"),
                   (["train", run, "--resume-from", run / "no"], "checkpoint: expected a file, found none at"))
    start_or_resume(run, resume_from=first, max_steps=8)
    assert [path.name for path in checkpoint.in_order(run)] == [path.name for path in checkpoint.in_order(whole)]
    torch.testing.assert_close(weights(run), weights(whole), rtol=0, atol=0)


@pytest.mark.parametrize("name", ["options.json", "vocab.txt"])
def test_a_damaged_file_of_the_run_is_refused(run, tmp_path, capsys, name):
    """A byte that leaves options and vocabulary readable, and of the same sizes."""
    text = tmp_path / "text.txt"
    text.write_text("ka lo\n" * 9)
    file, last = run / name, checkpoint.in_order(run)[-1]
    whole = file.read_bytes()
    damaged = whole.replace(b'"cell_clip": 0.3', b'"cell_clip": 0.7').replace(b"\nkas\n", b"\nkaz\n")
    assert len(damaged) == len(whole) and damaged != whole
    resume, export = ["train", run, "--resume", "--max-steps", "6"], ["export", run, tmp_path / "out"]
    commands = [(export, run / "best.pt"), (["perplexity", run, text, "--batch-size", "4"], run / "best.pt"),
                ([*export, "--checkpoint", last], last), (resume, last)]
    for content in (damaged, whole[:-1], None):
        file.unlink() if content is None else file.write_bytes(content)
        old, found = ("none" if values is None else hashlib.sha256(values).hexdigest() for values in (whole, content))
        if name == "options.json" and content is None:
            commands.pop()  # without options there is nothing to resume
        for arguments, path in commands:
            message = (f"run {run}: {name}: expected the file that {path} was written with, of SHA-256 {old}, found "
                       f"{found}: it was damaged or changed; put a copy of the original at {file}")
            check_refusals(capsys, (arguments, message))
        assert not (tmp_path / "out").exists()
    if name == "vocab.txt":  # it is not read
        other = tmp_path / "vocab.txt"
        other.write_bytes(whole)
        assert perplexity_of(run, str(text), vocab_file=other, batch_size=4).batches > 0
    file.write_bytes(damaged)
    for path in (*checkpoint.in_order(run), run / "best.pt"):
        as_old(path)
    assert command(capsys, *export)[0] == 0  # old checkpoints have no digests
    file.write_bytes(whole)
    start_or_resume(run, resume=True, max_steps=6)
    assert final(run)[0]["files"] == checkpoint.file_digests(run)


def test_checkpoints_go_with_the_options_that_a_resumed_run_got(run, tmp_path, capsys, monkeypatch):
    whole, write = run / "options.json", checkpoint.write_json

    def killed(path, content):  # between run.json and options.json
        return 1 / 0 if path == whole else write(path, content)

    first, early = whole.read_bytes(), shutil.copy(run / "best.pt", tmp_path / "early.pt")
    with monkeypatch.context() as patched, pytest.raises(ZeroDivisionError):
        patched.setattr(checkpoint, "write_json", killed)
        start_or_resume(run, resume=True, max_steps=7)
    assert whole.read_bytes() == first and "options" in json.loads((run / "run.json").read_text())
    start_or_resume(run, resume=True, max_steps=6)
    second = whole.read_bytes()
    assert second != first
    with monkeypatch.context() as patched, pytest.raises(ZeroDivisionError):
        patched.setattr(checkpoint, "write_json", killed)
        start_or_resume(run, resume=True, max_steps=7)
    assert whole.read_bytes() == second
    start_or_resume(run, resume_from=checkpoint.in_order(run)[0], max_steps=8)
    for path in (*checkpoint.in_order(run), run / "best.pt", early):
        checkpoint.weights_of_run(run, path)
    second = whole.read_bytes()
    for content in (first, second.replace(b'"max_steps": 8', b'"max_steps": 9')):
        whole.write_bytes(content)
        check_refusals(capsys, (["train", run, "--resume"], "options.json: expected the file that"))
    whole.write_bytes(second)
    settings = json.loads((run / "run.json").read_text())
    for digests in (3, [], [3], {"a": 1}, [*settings["options"][:-1], "0" * 64]):
        (run / "run.json").write_text(json.dumps({**settings, "options": digests}))
        export = ["export", run, tmp_path / "out", "--checkpoint", early]
        check_refusals(capsys, (export, f"options.json: expected the file that {early} was written with"))
        start_or_resume(run, resume=True)  # its last checkpoint has the options of now


def test_later_checkpoints_go_when_an_earlier_one_is_written(tmp_path):
    for step in (5, 10, 15):
        checkpoint.save(tmp_path, {"step": step}, keep=3)
    checkpoint.save(tmp_path, {"step": 7}, keep=2)
    assert [path.name for path in checkpoint.in_order(tmp_path)] == ["step-00000005.pt", "step-00000007.pt"]


def test_the_best_checkpoint_is_checked_too(run, tmp_path, capsys):
    best, last, text = run / "best.pt", checkpoint.in_order(run)[-1], tmp_path / "text.txt"
    flip(best, best.stat().st_size // 3)
    text.write_text("ka lo\n" * 9)
    check_refusals(capsys, (["export", run, tmp_path / "out"], f"{best}: expected the bytes of its checksum"),
                   (["perplexity", run, text, "--batch-size", "4"], f"--checkpoint: {last}"))


@pytest.mark.parametrize("absent", [(), ("losses",)], ids=str)
def test_old_checkpoints_load_and_go_on(run, tmp_path, absent):
    whole = shutil.copytree(run, tmp_path / "whole")
    start_or_resume(whole, resume=True, max_steps=6)
    for path in (*checkpoint.in_order(run), run / "best.pt"):
        as_old(path, {name: value for name, value in checkpoint.read(path).items() if name not in absent})
    start_or_resume(run, resume=True, max_steps=6)
    torch.testing.assert_close(weights(run), weights(whole), rtol=0, atol=0)


@pytest.mark.parametrize("entry, value", [
    ("step", "a"), ("weights", {}), ("weights", "a"), ("optimizer", {"state": {}}), ("optimizer", "a"),
    ("optimizer", {"state": {0: {"step": torch.zeros(())}}}), ("streams", "a"), ("streams", []), ("shards", []),
    ("streams", [{"h": 1, "c": 2, "position": None}]), ("shards", [["a"]]), ("evaluations", [{"step": 1}]),
    ("losses", ["a"]), ("losses", []), ("losses", [torch.zeros(2), torch.zeros(3)])])
def test_such_a_run_is_not_resumed(run, capsys, entry, value):
    last = checkpoint.in_order(run)[-1]
    as_old(last, {**checkpoint.read(last), entry: value})
    check_refusals(capsys, (["train", run, "--resume", "--max-steps", "6"], "expected"))
    if entry == "losses":
        return  # earlier versions wrote none
    damaged = checkpoint.read(last) if entry not in ("step", "weights") else torch.load(last, weights_only=True)
    del damaged[entry]
    as_old(last, damaged)
    check_refusals(capsys, (["train", run, "--resume", "--max-steps", "6"], f"checkpoint {last}: {entry}: expected"))


@pytest.mark.parametrize("change, message", [
    ({"train": {"a": 1}}, "train: expected paths of text, got {'a': 1}"),
    ({"train": [3]}, "train: expected paths of text, got [3]"),
    ({"train": None}, "a difference in their number"),
    ({"heldout": 3}, "heldout: expected paths of text, got 3"),
    ({"precision": "low"}, "precision: expected one of highest, high, medium, got 'low'"),
    ({"precision": None}, "precision: expected one of"),
    *(({name: value}, f"{name}: expected") for name in ("evaluate_every", "evaluate_batch_size", "checkpoint_every",
                                                       "keep", "log_every", "patience") for value in (0, "3", 2**70)),
    *(({name: 3}, f"{name}: expected true or false, got 3") for name in ("tensorboard", "quiet"))])
def test_damaged_settings_are_refused(run, capsys, change, message):
    content = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps({**content, **change}))
    check_refusals(capsys, (["train", run, "--resume", "--max-steps", "6"], message))


@pytest.mark.parametrize("number", [None, 0, 3, "1", torch.zeros(3, 1)])
def test_another_format_is_refused(run, number):
    last = checkpoint.in_order(run)[-1]
    torch.save({**checkpoint.read(last), "format": number}, last)
    with pytest.raises(ConfigurationError, match="expected format 2 of elmo-fast train, got another file"):
        checkpoint.read(last)


def test_positions_of_another_shape_are_refused(run, capsys):
    last = checkpoint.in_order(run)[-1]
    content = checkpoint.read(last)
    content["streams"][0]["position"] = torch.zeros(2, 3, 4, dtype=torch.int64)
    as_old(last, content)
    check_refusals(capsys, (["train", run, "--resume", "--max-steps", "6"], "expected positions of shape (2, 4, 4)"))


def test_a_text_of_the_same_size_is_another_text(tmp_path, capsys):
    corpus = corpus_arguments(tmp_path)
    start_or_resume(tmp_path / "run", **corpus, **QUIET, max_steps=2)
    shard = read_shards(corpus["train"], "train")[1]
    path = Path(shard.path)
    path.write_text(path.read_text(encoding="utf-8").replace("ka", "lo", 1), encoding="utf-8")
    changed = read_shards(corpus["train"], "train")[1]
    assert changed[:4] == shard[:4] and changed != shard
    resume = ["train", tmp_path / "run", "--resume", "--max-steps", "4", "--quiet"]
    check_refusals(capsys, (resume, "unchanged, found a difference in part-1.txt"))
    as_old(checkpoint.in_order(tmp_path / "run")[-1])  # there the sizes alone are compared
    start_or_resume(tmp_path / "run", resume=True, max_steps=4)


def test_another_heldout_text_is_refused(tmp_path, capsys):
    corpus = corpus_arguments(tmp_path)
    start_or_resume(tmp_path / "run", **corpus, **QUIET, max_steps=2)
    with open(read_shards(corpus["heldout"], "heldout")[0].path, "a") as file:
        file.write("ka lo\n")
    resume = ["train", tmp_path / "run", "--resume", "--max-steps", "4", "--quiet"]
    check_refusals(capsys, (resume, "heldout: expected the 1 files that the run began with, unchanged"))
    as_old(checkpoint.in_order(tmp_path / "run")[-1])
    start_or_resume(tmp_path / "run", resume=True, max_steps=4)


def test_the_perplexity_of_a_diverged_model_is_infinite(tmp_path):
    pattern, vocabulary = write_corpus(tmp_path)
    diverged = model()
    with torch.no_grad():
        diverged.softmax_b[3] = 1e6
    found = perplexity(diverged, read_shards(pattern, "text"), Vocabulary(vocabulary), 5)
    assert found.total == np.inf and "inf" in json.dumps(str(found))
