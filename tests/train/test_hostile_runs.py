"""Runs with a wrong log or checkpoint, also under a right checksum, are refused."""

import shutil

import pytest
import torch

from elmo_fast import ConfigurationError
from elmo_fast.train import checkpoint
from elmo_fast.train.run_files import LOG_FILE, read_log
from elmo_fast.train.setup import start_or_resume
from tests.support.training import QUIET, corpus_arguments


@pytest.fixture(scope="module")
def base_run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    start_or_resume(folder / "run", **corpus_arguments(folder / "corpus"), **QUIET, checkpoint_every=2, max_steps=2)
    return folder / "run"


@pytest.fixture
def run(base_run, tmp_path):
    return shutil.copytree(base_run, tmp_path / "run")


@pytest.mark.parametrize("line, message", [
    (b"x", "expected JSON"), (b"\xff", "expected JSON"), (b"[" * 50_000, "expected JSON"),
    *((line, "expected an object") for line in (
        b"[]", b'{"kind": "train"}', b'{"step": "1", "kind": "train"}', b'{"step": 1, "kind": 2}',
        b'{"step": 1, "kind": "train", "perplexity": "a"}', b'{"step": -1, "kind": "note"}',
        *(b'{"step": %d, "kind": "train", "perplexity": %d}' % x for x in ((1, 9**400), (1, -9**400), (9**400, 1))))),
    (b'{"step": 1, "step": 2, "kind": "note"}', "expected JSON.*'step' twice"),
])
def test_a_damaged_log_is_refused_first_and_named(run, line, message):
    log = run / LOG_FILE
    log.write_bytes(line + b"\n" + log.read_bytes())
    with pytest.raises(ConfigurationError, match=f"log .*{LOG_FILE}, line 1: {message}"):
        start_or_resume(run, resume=True, max_steps=3, quiet=True)


def test_a_log_that_was_cut_short_is_read(base_run, tmp_path):
    copy = shutil.copytree(base_run, tmp_path / "run")
    lines = read_log(copy)
    with open(copy / LOG_FILE, "ab") as file:
        file.write(b'{"step": 3, "ki')
    assert read_log(copy) == lines


def spoil(run, change):
    """Change the content of the last checkpoint, and write it with a right checksum."""
    path = checkpoint.in_order(run)[-1]
    content = checkpoint.read(path, "optimizer", "streams", "shards", "evaluations")
    change(content)
    checkpoint.write(path, {name: value for name, value in content.items() if name != "format"})
    return path


def parameter(content):
    return content["optimizer"]["state"][0]


@pytest.mark.parametrize("change, field", [
    (lambda content: content.pop("optimizer"), "optimizer"), (lambda content: content.update(streams="a"), "streams"),
    (lambda content: content.update(evaluations=[{"step": 1}]), "evaluations"),
    (lambda content: content.update(losses=[torch.zeros(2), torch.zeros(3)]), "losses"),
    *((lambda content, value=value: parameter(content)["sum"].view(-1)[:1].fill_(value), "optimizer")
      for value in (-1, 0, torch.nan, torch.inf)),
    (lambda content: parameter(content).update(step="text"), "optimizer"),
    (lambda content: parameter(content).update(sum=parameter(content)["sum"].to_sparse()), "optimizer"),
    (lambda content: content["streams"][0]["h"].view(-1)[:1].fill_(torch.nan), "streams"),
    (lambda content: content["shards"][0].__setitem__(2, torch.zeros(3)), "shards"),
    (lambda content: content["weights"].update({3: torch.zeros(3)}), "weights"),
    (lambda content: content["files"].update({"options.json": "3.5"}), "files"),
    (lambda content: content["weights"]["char_embed"].view(-1)[:1].fill_(torch.nan), "weights"),
])
def test_a_checkpoint_of_another_kind_is_refused_first_and_named(run, change, field):
    path = spoil(run, change)
    with pytest.raises(ConfigurationError, match=f"checkpoint .*{path.name}: {field}"):
        start_or_resume(run, resume=True, max_steps=3, quiet=True)


@pytest.mark.parametrize("column, value", [(0, -1), (1, 99), (1, -1), (2, 10**9), (3, -2), (2, -5)])
def test_positions_outside_the_text_are_refused(run, column, value):
    path = spoil(run, lambda content: content["streams"][0]["position"][0, 1].__setitem__(column, value))
    with pytest.raises(ConfigurationError, match=f"checkpoint: expected positions in .*{path.name}"):
        start_or_resume(run, resume=True, max_steps=3, quiet=True)
