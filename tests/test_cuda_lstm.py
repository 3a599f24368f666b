"""The LSTM on a GPU, where there is one: both paths against float64, in graphs, on several streams, without waiting."""

import gc

import numpy as np
import pytest
import test_projected_lstm as op_tests
import torch
from models import SENTENCES, SHAPES, bilm, options
from tolerances import AGAINST_FLOAT64, relative_error

from elmo_fast.model.layout import in_text_order
from elmo_fast.ops import reference, torch_lstm_pointwise
from elmo_fast.ops.cuda import choice, lstm, persistent, steps
from elmo_fast.ops.cuda.buffers import Arenas
from elmo_fast.ops.cuda.choice import GRAPH, PERSISTENT, Choices
from elmo_fast.ops.projected_lstm import projected_lstm
from elmo_fast.ops.schedule import make_schedule

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device")]
LIMITS = {"highest": AGAINST_FLOAT64["highest"], "high": AGAINST_FLOAT64["high-tf32"],
          "medium": AGAINST_FLOAT64["medium-fp16"]}
FIRING = SHAPES["clips that fire"]
PERSISTENT_SHAPES = {"small": FIRING, "no clips": SHAPES["no clips"],
                     "medium": options({"dim": 1024, "projection_dim": 128, "cell_clip": 0.3, "proj_clip": 0.3}),
                     "original": options({"dim": 4096, "projection_dim": 512, "cell_clip": 0.3, "proj_clip": 0.3})}


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

    return take


def here():
    return torch.device("cuda", torch.cuda.current_device())


def on_gpu(tensors):
    return tuple(None if each is None else on_gpu(each) if isinstance(each, tuple) else each.cuda() for each in tensors)


def layer(of, number=0):
    return on_gpu(op_tests.layer(of, torch.float32, number))


def run(of, inputs, index, state, weights, precision="highest", rows_on="cpu"):
    schedule = make_schedule(op_tests.LENGTHS)
    order = torch.from_numpy(schedule.tokens).long()
    found, final = projected_lstm(inputs, index[order].to(rows_on), schedule, state, weights, backend="native",
                                  cell_clip=of.lstm.cell_clip, proj_clip=of.lstm.proj_clip, precision=precision)
    return in_text_order(found, order.cuda()), final


def drawn(of, seed=0):
    inputs, index, state = op_tests.draw(of, torch.float32, seed)
    return inputs.cuda(), index, on_gpu(state)


@pytest.mark.parametrize("kernels", ["triton", "torch"])
@pytest.mark.parametrize("rows_on", ["cpu", "cuda"])
@pytest.mark.parametrize("precision", LIMITS)
@pytest.mark.parametrize("shape", ["two layers", "no projection", "clips that fire"])
def test_graphs_agree_with_float64_plainly_and_replayed(shape, precision, rows_on, kernels, monkeypatch):
    if kernels == "torch":
        monkeypatch.setattr(steps, "pointwise_of", lambda device: torch_lstm_pointwise)
    elif reason := steps.why_no_triton(here()):
        pytest.skip(reason)
    of, weights = SHAPES[shape], layer(SHAPES[shape])
    monkeypatch.setattr(lstm, "_arenas", Arenas())
    for seed in range(4):
        truth = op_tests.run(of, *op_tests.draw(of, seed=seed), "reference")
        found = run(of, *drawn(of, seed), weights, precision, rows_on)
        for one, other in zip((found[0], *found[1]), (truth[0], *truth[1])):
            assert relative_error(one.cpu(), other) < LIMITS[precision]
    arena, = lstm._arenas.kept.values()
    assert sum(len(each._graphs) for bucket in arena._buckets.values() for each in bucket.graphs.values()) >= 2


def ragged(of, slots, weights, device, dtype):
    """Ragged slots, starts within them, random states, on a device and in a type: what both engines are given."""
    generator = torch.Generator().manual_seed(slots)
    lengths = torch.randint(8, 15, (slots,), generator=generator).tolist() + [3] * slots
    schedule = make_schedule(lengths, np.tile(np.arange(slots), 2), slots)
    sizes = 2 * of.lstm.projection_dim, 2 * of.lstm.dim
    rows = torch.randint(0, 20, schedule.tokens.shape, generator=generator, dtype=torch.int32)
    inputs, state, restart = torch.randn(20, sizes[0] // 2, generator=generator), *(
        tuple(torch.randn(*shape, size, generator=generator) / 4 for size in sizes) for shape in ([slots], []))
    move = lambda given: tuple(each if each is None else each.to(device, dtype) for each in given)  # noqa: E731
    return ((*move([inputs]), rows, schedule, move(state), tuple(map(move, weights))),
            {"restart": move(restart), "cell_clip": of.lstm.cell_clip, "proj_clip": of.lstm.proj_clip})


@pytest.mark.parametrize("shape", PERSISTENT_SHAPES)
@pytest.mark.parametrize("slots", [1, 7, 16, 33, 64, 200])
def test_launches_agree_with_float64(shape, slots, path):
    of = PERSISTENT_SHAPES[shape]
    path(PERSISTENT, of, slots)
    weights = op_tests.layer(of, torch.float32)
    given, settings = ragged(of, slots, weights, "cpu", torch.float64)
    expected, expected_state = reference.projected_lstm(*given, **settings)
    given, settings = ragged(of, slots, weights, here(), torch.float32)
    found, state = lstm.projected_lstm(*given, **settings, precision="medium")
    limit = AGAINST_FLOAT64["medium-bf16" if shape == "no clips" else "medium-fp16"]
    for one, other in zip((found, *state), (expected, *expected_state)):
        assert relative_error(one.cpu(), other) < limit
    assert persistent._watch(here()).reason() is None


def test_a_launch_that_gives_up_is_replayed(path, monkeypatch, caplog):
    path(PERSISTENT)
    monkeypatch.setattr(persistent, "_NANOSECONDS", 0)
    given, settings = ragged(FIRING, 9, op_tests.layer(FIRING, torch.float32), "cpu", torch.float64)
    expected, _ = reference.projected_lstm(*given, **settings)
    given, settings = ragged(FIRING, 9, op_tests.layer(FIRING, torch.float32), here(), torch.float32)
    persistent._watch.cache_clear()
    found, _ = lstm.projected_lstm(*given, **settings, precision="medium")
    assert relative_error(found.cpu(), expected) < LIMITS["medium"]
    torch.cuda.synchronize()
    assert "gave up waiting" in persistent._watch(here()).reason() and "in CUDA graphs from here on" in caplog.text
    persistent._watch.cache_clear()


def test_auto_measures_within_its_time(path, monkeypatch, tmp_path):
    path(PERSISTENT, PERSISTENT_SHAPES["original"], 64)
    monkeypatch.setenv(choice.VARIABLE, "")
    choices = Choices(lambda: tmp_path / "cuda-lstm.json")
    monkeypatch.setattr(choice, "_choices", choices)
    of = PERSISTENT_SHAPES["original"]
    given, settings = ragged(of, 64, op_tests.layer(of, torch.float32), here(), torch.float32)
    lstm.projected_lstm(*given, **settings, precision="medium")
    (measured,) = choices.recorded(choice.machine(here())).values()
    assert 0 < measured.graph < 0.1 and 0 < measured.persistent < 0.1


@pytest.mark.parametrize("name, precision", [*((GRAPH, precision) for precision in LIMITS), (PERSISTENT, "medium")])
def test_nothing_is_waited_for(name, precision, path):
    path(name)
    given, settings = ragged(FIRING, 9, op_tests.layer(FIRING, torch.float32), here(), torch.float32)
    for _ in range(3):
        lstm.projected_lstm(*given, **settings, precision=precision)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        lstm.projected_lstm(*given, **settings, precision=precision)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("name", choice.PATHS)
def test_streams_do_not_disturb_each_other(name, path):
    path(name)
    weights, given = [layer(FIRING, number) for number in (0, 1)], [drawn(FIRING, seed) for seed in (0, 1)]
    expected = [run(FIRING, *each, w, "medium")[0].clone() for each, w in zip(given, weights)]
    streams = [torch.cuda.Stream() for _ in given]
    torch.cuda.synchronize()
    for _ in range(20):
        found = []
        for stream, each, w in zip(streams, given, weights):
            with torch.cuda.stream(stream):
                found.append(run(FIRING, *each, w, "medium")[0])
        torch.cuda.synchronize()
        assert all(relative_error(one, other) < LIMITS["medium"] for one, other in zip(found, expected))


def test_memory_goes_with_the_last_model():
    torch.cuda.synchronize()
    gc.collect()
    before, arenas = torch.cuda.memory_allocated(), len(lstm._arenas.kept)
    model = bilm(SHAPES["two layers"], backend="auto").cuda()
    for _ in range(3):
        model.embed_tokens(SENTENCES)
    del model
    gc.collect()
    torch.cuda.synchronize()
    assert len(lstm._arenas.kept) == arenas
    assert torch.cuda.memory_allocated() - before < 1 << 26  # cuBLAS may have set up its workspace
