"""The char encoder for GPUs, without a GPU: dispatch, fallbacks with their reasons, bounds of fp16."""

import importlib.util
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from elmo_fast.nn.layers.token_vectors import token_vectors
from elmo_fast.ops import backend, numerics
from elmo_fast.ops.char_cnn import char_cnn
from elmo_fast.ops.char_cnn.cuda import LARGEST_FP16, fits_fp16
from elmo_fast.testing import AGAINST_FLOAT64, relative_error
from tests.support.models import bilm, options

CUDA = SimpleNamespace(device=torch.device("cuda", 0), dtype=torch.float32, requires_grad=False, is_meta=False)


@pytest.fixture
def gpu(monkeypatch):
    """Let the choice of a backend see a GPU of compute capability 9.0."""
    triton = pytest.importorskip("triton")
    monkeypatch.setattr(type(triton.runtime.driver), "active", SimpleNamespace(utils=None), raising=False)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (9, 0))
    backend.why_no_triton.cache_clear()
    yield
    backend.why_no_triton.cache_clear()


@pytest.mark.parametrize("op", ["char_cnn", "highway", "linear"])
def test_auto_uses_triton_on_a_gpu(gpu, op):
    assert backend.resolve(op, "auto", CUDA) == backend.resolve(op, "native", CUDA) == "native"
    assert backend.resolve(op, "auto", SimpleNamespace(**{**vars(CUDA), "requires_grad": True})) == "native"
    assert backend.resolve(op, "auto", SimpleNamespace(**{**vars(CUDA), "dtype": torch.float64})) == "torch"


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


def test_threads_launch_a_kernel_one_at_a_time(monkeypatch):
    """Triton's autotuner forgets a call's arguments when another call ends."""
    triton = pytest.importorskip("triton")
    from elmo_fast.kernels import configs

    class Tuner:
        arguments = None

        def __getitem__(self, grid):
            def launch(value):
                assert self.arguments is None
                self.arguments = value
                time.sleep(0.02)
                result, self.arguments = self.arguments, None
                return result
            return launch

    monkeypatch.setattr(triton, "autotune", lambda *_, **__: lambda kernel: Tuner())
    kernel = configs._tuned(object(), ())
    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(kernel[1,], range(8))) == list(range(8))


@pytest.mark.parametrize("level, dtype", [("highest", torch.float32), ("medium", torch.bfloat16)])
@pytest.mark.filterwarnings("ignore:CUDA is not available")
def test_the_encoder_runs_on_kernels_on_a_gpu(gpu, monkeypatch, level, dtype):
    """Fake CUDA tensors, which have no data, show the ops that run and the types of their operands and results."""
    monkeypatch.setattr("elmo_fast.nn.layers.token_vectors.fits_fp16", lambda *_: False)
    monkeypatch.setattr("elmo_fast.ops.device.is_capturing", lambda device: False)  # fake tensors have no stream
    encoder = bilm(options()).token_source
    real = encoder.weights()
    with FakeTensorMode(), numerics.numerics(level, torch.device("cuda")):
        weights = {name: torch.empty(value.shape, device="cuda") for name, value in real.items()}
        filters = [(weights["CNN/W_cnn_0"], weights["CNN/b_cnn_0"])]
        graph = make_fx(lambda ids: (token_vectors(ids, weights, encoder.model_options),
                                     char_cnn(ids, weights["char_embed"], filters, "relu")))(
            torch.empty(7, 50, dtype=torch.int64, device="cuda"))
    nodes = [node for node in graph.graph.nodes if "elmo_fast" in str(node.target)]
    assert [node.target._opname for node in nodes] == ["char_cnn", "highway", "highway", "linear", "char_cnn"]
    vectors, (first, _) = (nodes[k].meta["val"] for k in (3, 4))
    assert vectors.shape == (7, 11) and vectors.dtype == torch.float32 and vectors.device.type == "cuda"
    assert first.dtype == dtype
    with pytest.raises(ValueError, match="ids: expected character ids from 0 to 261, got 0 to 262"):
        char_cnn(torch.tensor([[0, 262]]), weights["char_embed"], filters, "relu")


@pytest.mark.parametrize("shape", [(5, 7), (2, 5, 7)])
@pytest.mark.parametrize("dtype, out_dtype", [(torch.float16, torch.float32), (torch.bfloat16, torch.float32),
                                              (torch.float16, torch.float16), (torch.float32, torch.float32)])
def test_sums_of_products_are_fp32(shape, dtype, out_dtype):
    a, b = torch.randn(shape).to(dtype), torch.randn(*shape[:-2], 7, 3).to(dtype)
    out = torch.full((*shape[:-1], 3), torch.nan, dtype=out_dtype)
    numerics.gemm(a, b, out)
    limit = AGAINST_FLOAT64["ieee" if out_dtype == torch.float32 else "fp16"]
    assert relative_error(out, a.double() @ b.double()) < limit


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
