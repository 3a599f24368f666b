"""Two processes that train one model, over gloo on this machine, against one process with both of their batches."""

import os
import subprocess
import sys

import pytest
import torch

from elmo_fast.train import checkpoint
from elmo_fast.train.log import read_log
from elmo_fast.train.setup import start_or_resume
from tests.support.files import ROOT, names
from tests.support.training import write_corpus, write_options


def torchrun(*arguments, processes=2):
    """Run `torchrun -m elmo_fast.train` on the loopback device; returns the finished process."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo",
                   "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}", "-m",
               "elmo_fast.train", *map(str, arguments)]
    return subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=240)


@pytest.fixture
def corpus(tmp_path):
    pattern, vocabulary = write_corpus(tmp_path / "text")
    return pattern, vocabulary, write_options(tmp_path / "o.json")


@pytest.mark.parametrize("optimizer", ["adagrad", "adamw"])
def test_two_processes_update_as_one_with_both_batches(tmp_path, corpus, optimizer):
    pattern, vocabulary, options = corpus
    common = ["--train", pattern, "--vocab", vocabulary, "--options-file", options, "--optimizer", optimizer, "--heldout",
              pattern, "--evaluate-batch-size", "5", "--log-every", "3", "--quiet", "--device", "cpu", "--decay", "constant"]
    done = torchrun(tmp_path / "two", *common, "--max-steps", "6", "--checkpoint-every", "3")
    assert done.returncode == 0, done.stderr[-3000:]
    start_or_resume(tmp_path / "one", train=[pattern], vocab=str(vocabulary), options_file=str(options), heldout=[pattern],
                    evaluate_batch_size=5, log_every=3, quiet=True, device="cpu", optimizer=optimizer, accumulate=2,
                    max_steps=6, checkpoint_every=3, decay="constant")
    states = [checkpoint.read(checkpoint.in_order(tmp_path / name)[-1]) for name in ("two", "one")]
    for name, value in states[1]["weights"].items():
        assert torch.allclose(states[0]["weights"][name], value, atol=2e-6), name
    assert [len(state["streams"]) for state in states] == [2, 2]
    for mine, theirs in zip(*(state["streams"] for state in states)):
        assert torch.equal(mine["position"], theirs["position"])
        assert torch.allclose(mine["c"], theirs["c"], atol=1e-5)
    assert not torch.equal(states[0]["streams"][0]["position"], states[0]["streams"][1]["position"])
    logs = [[(line["step"], line["kind"], line.get("perplexity")) for line in read_log(tmp_path / name)]
            for name in ("two", "one")]
    assert [line[:2] for line in logs[0]] == [line[:2] for line in logs[1]]
    assert [line[2] for line in logs[0] if line[2]] == pytest.approx([line[2] for line in logs[1] if line[2]], rel=1e-5)
    assert names(tmp_path / "two") == names(tmp_path / "one")


def test_two_processes_resume_exactly_and_only_as_two(tmp_path, corpus):
    pattern, vocabulary, options = corpus
    common = ["--train", pattern, "--vocab", vocabulary, "--options-file", options, "--quiet", "--device", "cpu"]
    for folder, arguments in ((tmp_path / "whole", [*common, "--max-steps", "6"]),
                              (tmp_path / "parts", [*common, "--max-steps", "2"]),
                              (tmp_path / "parts", ["--resume", "--max-steps", "6"])):
        done = torchrun(folder, *arguments)
        assert done.returncode == 0, done.stderr[-3000:]
    states = [checkpoint.read(checkpoint.in_order(tmp_path / name)[-1]) for name in ("whole", "parts")]
    assert all(torch.equal(value, states[1]["weights"][name]) for name, value in states[0]["weights"].items())
    alone = torchrun(tmp_path / "parts", "--resume", "--max-steps", "8", processes=1)
    assert alone.returncode != 0 and "checkpoint: expected 1 streams (processes times accumulate), got 2" in alone.stderr
