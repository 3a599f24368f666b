"""The LSTM on a GPU, where there is one: both paths against float64, in graphs, on several streams, without waiting."""

import gc

import numpy as np
import pytest
import torch

from elmo_fast.ops import reference
from elmo_fast.ops.cuda import choice, lstm, persistent, steps
from elmo_fast.ops.cuda.choice import GRAPH, PERSISTENT, Choices
from elmo_fast.ops.schedule import make_schedule
from elmo_fast.ops.torch import lstm_pointwise as torch_lstm_pointwise
from elmo_fast.testing import AGAINST_FLOAT64
from tests.support import cuda_ops
from tests.support.gpu_lstm import FIRING, LIMITS, assert_close, double, layer
from tests.support.models import SENTENCES, SHAPES, bilm, options

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device")]
FIRING_CLIPS = {"cell_clip": 0.3, "proj_clip": 0.3}
PERSISTENT_SHAPES = {"small": FIRING, "no clips": SHAPES["no clips"],
                     "medium": options({"dim": 1024, "projection_dim": 128, **FIRING_CLIPS}),
                     "original": options({"dim": 4096, "projection_dim": 512, **FIRING_CLIPS})}


@pytest.fixture(autouse=True)
def path(monkeypatch):
    """Takes a path from here on; the graph path at first."""
    torch.use_deterministic_algorithms(False)  # cuBLAS asks for an environment variable otherwise
    monkeypatch.setenv(choice.VARIABLE, GRAPH)

    def take(name, of=FIRING, slots=1):
        reason = persistent.lacks(here()) or persistent.does_not_fit(here(), of.lstm.dim, of.lstm.projection_dim, slots)
        if name != GRAPH and reason:
            pytest.skip(reason)
        monkeypatch.setenv(choice.VARIABLE, name)

    yield take
    persistent._watch.cache_clear()


def here():
    return torch.device("cuda", torch.cuda.current_device())


def moved(tree):
    return tree if tree is None else tree.to(here()) if isinstance(tree, torch.Tensor) else tuple(map(moved, tree))


class Case:
    """Ragged slots, starts within them, and random states, for the op on the GPU and the reference in float64."""

    def __init__(self, of, slots=9, seed=0):
        generator = torch.Generator().manual_seed(slots + 1000 * seed)
        lengths = torch.randint(8, 15, (slots,), generator=generator).tolist() + [3] * slots
        self.schedule = make_schedule(lengths, np.tile(np.arange(slots), 2), slots)
        sizes = 2 * of.lstm.projection_dim, 2 * of.lstm.dim
        self.rows = torch.randint(0, 20, self.schedule.tokens.shape, generator=generator, dtype=torch.int32)
        self.tensors = torch.randn(20, sizes[0] // 2, generator=generator), *(
            tuple(torch.randn(*shape, size, generator=generator) / 4 for size in sizes) for shape in ([slots], [])), \
            layer(of)
        self.clips = {"cell_clip": of.lstm.cell_clip, "proj_clip": of.lstm.proj_clip}
        self.on_gpu = moved(self.tensors)

    def run(self, precision="medium", rows_on="cpu"):
        inputs, state, initial_state, weights = self.on_gpu
        return cuda_ops.projected_lstm(inputs, self.rows.to(rows_on), self.schedule, state, weights,
                                       initial_state=initial_state, precision=precision, **self.clips)

    def check(self, found, limit):
        inputs, state, initial_state, weights = double(self.tensors)
        assert_close(found, reference.projected_lstm(inputs, self.rows, self.schedule, state, weights,
                                                     initial_state=initial_state, **self.clips), limit)


@pytest.mark.parametrize("kernels", ["triton", "torch"])
@pytest.mark.parametrize("rows_on", ["cpu", "cuda"])
@pytest.mark.parametrize("precision", LIMITS)
@pytest.mark.parametrize("shape", ["two layers", "no projection", "clips that fire"])
def test_graphs_agree_with_float64_plainly_and_replayed(shape, precision, rows_on, kernels, monkeypatch):
    if kernels == "torch":
        monkeypatch.setattr(steps, "pointwise_of", lambda device: torch_lstm_pointwise)
    elif reason := steps.why_no_triton(here()):
        pytest.skip(reason)
    case = Case(SHAPES[shape])
    for _ in range(4):
        case.check(case.run(precision, rows_on), LIMITS[precision])
    arena, = lstm._arenas.kept.values()
    assert any(any(each.held.values()) for bucket in arena._buckets.values() for each in bucket.graphs.values())


@pytest.mark.parametrize("shape", PERSISTENT_SHAPES)
@pytest.mark.parametrize("slots", [1, 7, 16, 33, 64, 200])
def test_launches_agree_with_float64(shape, slots, path):
    path(PERSISTENT, PERSISTENT_SHAPES[shape], slots)
    case = Case(PERSISTENT_SHAPES[shape], slots)
    case.check(case.run(), AGAINST_FLOAT64["medium-bf16" if shape == "no clips" else "medium-fp16"])
    assert persistent._watch(here()).reason() is None


def test_a_launch_that_gives_up_is_replayed(path, monkeypatch, caplog):
    path(PERSISTENT)
    monkeypatch.setattr(persistent, "_TIMEOUT_NS", 0)
    case = Case(FIRING)
    case.check(case.run(), LIMITS["medium"])
    torch.cuda.synchronize()
    assert "gave up waiting" in persistent._watch(here()).reason() and "in CUDA graphs from here on" in caplog.text


def test_auto_measures_within_its_time(path, monkeypatch, tmp_path):
    path(PERSISTENT, PERSISTENT_SHAPES["original"], 64)
    monkeypatch.setenv(choice.VARIABLE, "")
    choices = Choices(lambda: tmp_path / "cuda-lstm.json")
    monkeypatch.setattr(choice, "_choices", choices)
    Case(PERSISTENT_SHAPES["original"], 64).run()
    (measured,) = choices.read()[choice.machine(here())].values()
    assert 0 < measured.graph < 0.1 and 0 < measured.persistent < 0.1


@pytest.mark.parametrize("name, precision", [*((GRAPH, precision) for precision in LIMITS), (PERSISTENT, "medium")])
def test_nothing_is_waited_for(name, precision, path):
    path(name)
    case = Case(FIRING)
    for _ in range(3):
        case.run(precision)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        case.run(precision)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("name", choice.PATHS)
def test_streams_do_not_disturb_each_other(name, path):
    path(name)
    cases = [Case(FIRING, seed=seed) for seed in (0, 1)]
    streams = [torch.cuda.Stream() for _ in cases]
    torch.cuda.synchronize()
    for _ in range(20):
        found = []
        for stream, case in zip(streams, cases):
            with torch.cuda.stream(stream):
                found.append(case.run())
        torch.cuda.synchronize()
        for case, each in zip(cases, found):
            case.check(each, LIMITS["medium"])


def test_memory_goes_with_the_last_model():
    torch.cuda.synchronize()
    gc.collect()
    before, model = torch.cuda.memory_allocated(), bilm(SHAPES["two layers"], backend="auto").cuda()
    for _ in range(3):
        model.embed_tokens(SENTENCES)
    assert lstm._arenas.kept
    del model
    gc.collect()
    torch.cuda.synchronize()
    assert not lstm._arenas.kept and torch.cuda.memory_allocated() - before < 1 << 26  # of cuBLAS' workspace
