"""The char encoder for GPUs, without a GPU: fallbacks with their reasons, bounds of fp16."""

import importlib.util
import sys
from types import SimpleNamespace

import pytest
import torch

from elmo_fast.ops import backend
from elmo_fast.ops.char_cnn.cuda import LARGEST_FP16, fits_fp16

CUDA = SimpleNamespace(device=torch.device("cuda", 0), dtype=torch.float32, requires_grad=False, is_meta=False)


@pytest.fixture
def gpu(monkeypatch):
    """Let the choice of a backend see a GPU of compute capability 9.0, and a Triton that has kernels for it."""
    triton = pytest.importorskip("triton")
    pytest.importorskip("elmo_fast.kernels", reason="a checkout that is not installed has no elmo_fast.kernels")
    monkeypatch.setattr(triton, "__version__", "3.4.0")
    monkeypatch.setattr(type(triton.runtime.driver), "active", SimpleNamespace(utils=None), raising=False)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (9, 0))
    backend.why_no_triton.cache_clear()
    yield
    backend.why_no_triton.cache_clear()


def no_compiler(_):
    raise RuntimeError("no compiler")


@pytest.mark.parametrize("stub, reason", [
    (lambda patch: patch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5)), "8.0 or newer, .* 7.5"),
    (lambda patch: patch.setitem(sys.modules, "triton", None), r'pip install "elmo-fast\[gpu\]"'),
    (lambda patch: patch.setitem(sys.modules, "triton", SimpleNamespace(__version__="3.3.1")),
     "need Triton 3.4 or newer on this GPU, which torch 2.8 brings, and this is 3.3"),
    (lambda patch: (patch.setattr(torch.cuda, "get_device_capability", lambda device: (10, 3)),
                    patch.setitem(sys.modules, "triton", SimpleNamespace(__version__="3.5.1"))),
     "need Triton 3.6 or newer on this GPU, which torch 2.10 brings, and this is 3.5"),
    (lambda patch: patch.setattr(type(sys.modules["triton"].runtime.driver), "active", property(no_compiler)),
     r"Triton cannot build its launcher, which needs a C compiler and Python.h \(no compiler\)"),
    (lambda patch: patch.setattr(importlib.util, "find_spec", lambda name: None), "a checkout that is not installed"),
], ids=["old", "absent", "old Triton", "old Triton on 10", "no compiler", "not installed"])
def test_auto_falls_back_with_the_reason(gpu, monkeypatch, stub, reason):
    stub(monkeypatch)
    assert backend.resolve("highway", "auto", CUDA) == "torch"
    with pytest.raises(RuntimeError, match=reason):
        backend.resolve("highway", "native", CUDA)


def test_fp16_is_used_where_every_value_fits():
    embed, filters = torch.ones(261, 4), [(torch.ones(1, 2, 4, 3), torch.ones(3))]
    highways = [(torch.ones(3, 3), torch.ones(3)) * 2]
    assert fits_fp16(embed, filters, "relu", highways, None)
    assert not fits_fp16(embed * 1e4, filters, "relu", highways, None)  # a window can reach the limit
    assert not fits_fp16(embed, filters, "relu", highways * 40, None)  # the layers can reach the limit
    assert not fits_fp16(embed, filters, "relu", highways, (torch.tensor([[7e4]]), torch.zeros(1)))
    # The bound follows edits of the weights.
    for factor, fits in ((1, True), (LARGEST_FP16, False), (1 / LARGEST_FP16, True)):
        filters[0][0].mul_(factor)
        assert fits_fp16(embed, filters, "tanh", highways, None) == fits
    filters[0][1].requires_grad_()
    assert not fits_fp16(embed, filters, "tanh", highways, None)
    with torch.no_grad():
        assert fits_fp16(embed, filters, "tanh", highways, None)
        embed[5, 2] = float("nan")
        assert not fits_fp16(embed, filters, "relu", highways, None)
