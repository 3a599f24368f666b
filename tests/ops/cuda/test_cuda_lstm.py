"""The LSTM on a real GPU: both paths against float64, in graphs, on several streams, without synchronization."""

import functools
import gc

import pytest
import torch

from elmo_fast.ops.projected_lstm.cuda import choice, lstm, persistent
from elmo_fast.ops.projected_lstm.cuda import pointwise as torch_lstm_pointwise
from elmo_fast.ops.projected_lstm.cuda.choice import GRAPH, PERSISTENT
from elmo_fast.testing import AGAINST_FLOAT64, GRADIENT_AGAINST_FLOAT64
from tests.support import cuda_ops
from tests.support.gpu_lstm import LIMITS, check, check_gradients, error_of, ragged
from tests.support.models import SENTENCES, SHAPES, bilm
from tests.support.op_cases import LOOSE, SLOTS, TIGHT, lstm_case

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device")]
HERE, BATCH_SIZES = torch.device("cuda", 0), [9, 9, 9, 5, 5, 2]
SMALL, ORIGINAL, WIDE = (37, 11), (4096, 512), {"cell_clip": 0.3, "proj_clip": 0.3}


@pytest.fixture(autouse=True)
def nondeterministic():
    """Deterministic algorithms would require an environment variable for cuBLAS."""
    torch.use_deterministic_algorithms(False)


def skip_without(path, sizes=SMALL, slots=1):
    """Skip where the GPU cannot run the path."""
    reason = persistent.lacks(HERE) or persistent.does_not_fit(HERE, *sizes, slots)
    if path == PERSISTENT and reason:
        pytest.skip(reason)


def prepared(path, precision="medium", seed=0):
    """A call of the op by `path`, with operands on the GPU."""
    skip_without(path)
    case = ragged(BATCH_SIZES, seed=seed)
    call, _ = case.given(case.leaves(wanted=[], device=HERE), precision=precision)
    return functools.partial(cuda_ops.projected_lstm, **vars(call), path=path)


@pytest.mark.parametrize("kernels", ["triton", "torch"])
@pytest.mark.parametrize("precision", LIMITS)
@pytest.mark.parametrize("dim, clips", [(37, LOOSE), (11, LOOSE), (37, TIGHT)])
def test_graphs_agree_with_float64_at_first_and_replayed(dim, clips, precision, kernels, monkeypatch):
    if kernels == "torch":
        monkeypatch.setattr(lstm, "pointwise_of", lambda device: torch_lstm_pointwise)
    elif reason := lstm.why_no_triton(HERE):
        pytest.skip(reason)
    check(ragged(BATCH_SIZES, dim, clips=clips), precision, device=HERE, times=4, path=GRAPH)
    arena, = lstm._arenas.kept.values()
    assert any(any(graphs.values()) for bucket in arena._buckets.values() for graphs in bucket.graphs.values())


@pytest.mark.parametrize("kernels", ["triton", "torch"])
@pytest.mark.parametrize("precision, clips, limit", [
    ("highest", TIGHT, GRADIENT_AGAINST_FLOAT64), ("high", {}, AGAINST_FLOAT64["bf16"]),
    ("medium", {}, AGAINST_FLOAT64["bf16"])])
@pytest.mark.parametrize("sizes", [(11, 37, 11), (24, 24, 24), (512, 1024, 512)])
def test_gradients_agree_with_float64(sizes, precision, clips, limit, kernels, monkeypatch):
    """No clips fire where operands are rounded: a cell that crosses its limit has another gradient."""
    if kernels == "torch":
        monkeypatch.setattr(lstm, "pointwise_of", lambda device: torch_lstm_pointwise)
    elif reason := lstm.why_no_triton(HERE):
        pytest.skip(reason)
    check_gradients(lstm_case(sizes, slots=SLOTS, starts=True, clips=clips), precision, limit, HERE)


@pytest.mark.parametrize("sizes, clips", [(SMALL, TIGHT), ((1024, 128), WIDE), (ORIGINAL, WIDE)])
@pytest.mark.parametrize("slots", [1, 7, 16, 33, 64, 200])
def test_launches_agree_with_float64(sizes, clips, slots):
    skip_without(PERSISTENT, sizes, slots)
    check(ragged([slots] * 4 + [slots // 2 + 1] * 5, *sizes, clips), "medium", device=HERE, path=PERSISTENT)


@pytest.mark.parametrize("name, precision", [*((GRAPH, precision) for precision in LIMITS), (PERSISTENT, "medium")])
def test_calls_do_not_synchronize(name, precision):
    work = prepared(name, precision)
    for _ in range(3):
        work()
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        work()
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("name", choice.PATHS)
def test_streams_are_independent(name):
    works = [prepared(name, seed=seed) for seed in (0, 1)]
    streams, expected = [torch.cuda.Stream() for _ in works], [work() for work in works]
    for _ in range(20):
        results = []
        for stream, work in zip(streams, works):
            with torch.cuda.stream(stream):
                results.append(work())
        torch.cuda.synchronize()
        for (out, state), (truth, final) in zip(results, expected):
            assert error_of((out, *state), (truth, *final)) < LIMITS["medium"]


def test_memory_is_freed_with_the_last_model():
    torch.cuda.synchronize()
    gc.collect()
    before, model = torch.cuda.memory_allocated(), bilm(SHAPES["two layers"], backend="auto").cuda()
    for _ in range(3):
        model.embed_tokens(SENTENCES)
    assert lstm._arenas.kept
    del model
    gc.collect()
    torch.cuda.synchronize()
    torch._C._cuda_clearCublasWorkspaces()  # 32 MiB per stream on Hopper
    assert not lstm._arenas.kept and torch.cuda.memory_allocated() - before < 1 << 26  # cuBLASLt's workspace
