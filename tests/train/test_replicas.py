"""Two processes that train a model, over gloo on this machine, against a process with both of their batches."""

import os
import subprocess
import sys

import pytest
import torch

from elmo_fast.train.setup import start_or_resume
from tests.support.files import ROOT, names
from tests.support.training import final, write_corpus, write_options

pytestmark = pytest.mark.long


def torchrun(*arguments, processes=2):
    """Run `torchrun -m elmo_fast.train` on the loopback device; returns the finished process."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo",
                   "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}", "-m",
               "elmo_fast.train", *map(str, arguments)]
    return subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=240)


@pytest.fixture
def corpus(tmp_path):
    """Arguments of a new run."""
    pattern, vocabulary = write_corpus(tmp_path / "text")
    return {"train": pattern, "vocab": vocabulary, "options-file": write_options(tmp_path / "o.json"), "device": "cpu"}


def as_flags(arguments):
    return [part for name, value in arguments.items() for part in (f"--{name}", value)]


@pytest.mark.parametrize("optimizer", ["adagrad", "adamw"])
def test_two_processes_update_as_one_with_both_batches(tmp_path, corpus, optimizer):
    arguments = {**corpus, "optimizer": optimizer, "heldout": corpus["train"], "evaluate-batch-size": 5, "log-every": 3,
                 "decay": "constant", "max-steps": 6, "checkpoint-every": 3}
    done = torchrun(tmp_path / "two", "--quiet", *as_flags(arguments))
    assert done.returncode == 0, done.stderr[-3000:]
    alone = {name.replace("-", "_"): value for name, value in arguments.items()}
    start_or_resume(tmp_path / "one", **{**alone, "train": [alone["train"]], "heldout": [alone["heldout"]],
                                         "vocab": str(alone["vocab"])}, quiet=True, accumulate=2)
    (state, log), (expected, expected_log) = final(tmp_path / "two"), final(tmp_path / "one")
    for name, value in expected["weights"].items():
        assert torch.allclose(state["weights"][name], value, atol=2e-6), name
    assert len(state["streams"]) == 2
    for stream, expected_stream in zip(state["streams"], expected["streams"], strict=True):
        assert torch.equal(stream["position"], expected_stream["position"])
        assert torch.allclose(stream["c"], expected_stream["c"], atol=1e-5)
    assert not torch.equal(state["streams"][0]["position"], state["streams"][1]["position"])
    assert [(line["step"], line["kind"]) for line in log] == [(line["step"], line["kind"]) for line in expected_log]
    perplexities = [[line["perplexity"] for line in lines if "perplexity" in line] for lines in (log, expected_log)]
    assert perplexities[0] == pytest.approx(perplexities[1], rel=1e-5)
    assert names(tmp_path / "two") == names(tmp_path / "one")


def test_two_processes_resume_exactly_and_only_as_two(tmp_path, corpus):
    new = ["--quiet", *as_flags(corpus)]
    for folder, arguments in (("whole", [*new, "--max-steps", 6]), ("parts", [*new, "--max-steps", 2]),
                              ("parts", ["--resume", "--max-steps", 6])):
        done = torchrun(tmp_path / folder, *arguments)
        assert done.returncode == 0, done.stderr[-3000:]
    (state, _), (expected, _) = final(tmp_path / "parts"), final(tmp_path / "whole")
    assert all(torch.equal(value, state["weights"][name]) for name, value in expected["weights"].items())
    alone = torchrun(tmp_path / "parts", "--resume", "--max-steps", 8, processes=1)
    assert alone.returncode != 0
    assert "checkpoint: expected 1 streams (processes times accumulate), got 2" in alone.stderr
