"""A model on a GPU whose kernels have not passed their trial: the right numbers, by PyTorch's operations."""

import itertools
import logging
import sys
from types import SimpleNamespace

import pytest
import torch

from elmo_fast.engine.precision import OPERANDS, PRECISIONS
from elmo_fast.ops import doctor, trial
from elmo_fast.testing import relative_error
from tests.support.grid import mostly_long
from tests.support.models import SENTENCES, SHAPES, bilm
from tests.support.stand_in_gpu import GPU, stand_in_gpu

pytest.importorskip("triton")
pytest.importorskip("elmo_fast.kernels", reason="a checkout that is not installed has no elmo_fast.kernels")
SHAPE = SHAPES["clips that fire"]
FAMILIES = "char_cnn", "highway", "pointwise", "captures"
PROGRAMS = {"dies": ("sys.exit(139)", "exit status 139"), "never ends": ("time.sleep(600)", "no end after 1 s"),
            "nonsense": ("print('\\0{]')", "no result, but")}


@pytest.fixture
def on_gpu(tmp_path, monkeypatch):
    """Make a model on the stand-in, whose kernels are tried by a program."""
    def make(code, precision):
        command = [sys.executable, "-I", "-S", "-c", f"import sys, time; {code}"]
        monkeypatch.setattr(trial, "trials", trial.Trials(command, 1.0, tmp_path / "verdicts"))
        monkeypatch.setenv(trial.VARIABLE, "auto")
        model = bilm(SHAPE, precision=precision).to("cuda")
        assert next(model.parameters()).device == GPU
        return model

    with stand_in_gpu(monkeypatch):
        yield make


@pytest.mark.parametrize("precision, program, waits", mostly_long([
    ("medium", "dies", False), ("highest", "dies", True),
    *itertools.product(("highest", "medium"), ("never ends", "nonsense"), (False, True))], quick=1))
def test_the_floor_computes_and_says_why_once(precision, program, waits, on_gpu, caplog):
    """In the first calls and, after `warmup`, with the verdicts."""
    code, reason = PROGRAMS[program]
    reason = f"failed: {reason}" if waits else "has not ended"
    families = [*FAMILIES, "persistent 37 11"] if precision == "medium" else FAMILIES
    expected, _ = bilm(SHAPE, backend="reference").double().embed_tokens(SENTENCES, "zero")
    with caplog.at_level(logging.INFO):
        model = on_gpu(code, precision)
        if waits:
            model.warmup()
        for _ in range(2):
            layers, _ = model.embed_tokens(SENTENCES, "zero")
            assert layers[0].device == GPU
    for ours, truth in zip(layers, expected, strict=True):
        assert relative_error(ours, truth) < OPERANDS[PRECISIONS[precision].gpu].tolerance
    for family in families:
        assert caplog.text.count(f"replace the GPU kernels {family}: its trial on this GPU {reason}") == 1


@pytest.mark.parametrize("precision", mostly_long(["medium", "highest"]))
def test_after_a_pass_kernels_run(precision, on_gpu):
    model = on_gpu("print('passed', sys.argv[3])", precision)
    with pytest.raises(AssertionError, match="a kernel or a capture ran"):
        model.warmup()


@pytest.mark.parametrize("waits", mostly_long([False, True]))
def test_doctor_prints_the_verdicts(waits, on_gpu, monkeypatch):
    """Without --gpu it starts no trial."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(
        name="Stand-in", major=9, minor=0, total_memory=2**30))
    on_gpu("sys.exit(139)", "medium")
    lines = doctor.report(gpu=waits)
    verdict = "failed: exit status 139; remove " if waits else "not tried yet: elmo-fast doctor --gpu tries it"
    for family in (*FAMILIES, "persistent 4096 512"):
        assert any(line.startswith(f"trial        {family}: {verdict}") for line in lines), lines
    assert "cuda:0       highway runs on native, after its trial" in lines
    assert waits or not list(trial.trials.path(GPU, "highway").parent.glob("*"))
