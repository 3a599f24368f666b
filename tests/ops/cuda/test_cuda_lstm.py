"""The LSTM on a GPU, where there is one: both paths against float64, in graphs, on several streams, without waiting."""

import gc

import pytest
import torch

from elmo_fast.ops.cuda import choice, lstm, persistent
from elmo_fast.ops.cuda.choice import GRAPH, PERSISTENT, Choices
from elmo_fast.ops.torch import lstm_pointwise as torch_lstm_pointwise
from tests.support.gpu_lstm import FIRING, LIMITS, check, error_of, moved, one_layer, prepare, ragged, run
from tests.support.models import SENTENCES, SHAPES, bilm

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device")]
HERE, BATCH_SIZES = torch.device("cuda", 0), [9, 9, 9, 5, 5, 2]
PERSISTENT_SHAPES = {"small": FIRING, "no clips": SHAPES["no clips"], "medium": one_layer(1024, 128, 0.3, 0.3),
                     "original": one_layer(4096, 512, 0.3, 0.3)}


@pytest.fixture(autouse=True)
def path(monkeypatch):
    """Takes a path from here on; the graph path at first."""
    torch.use_deterministic_algorithms(False)  # cuBLAS asks for an environment variable otherwise
    monkeypatch.setenv(choice.VARIABLE, GRAPH)

    def take(name, of=FIRING, slots=1):
        reason = persistent.lacks(HERE) or persistent.does_not_fit(HERE, of.lstm.dim, of.lstm.projection_dim, slots)
        if name != GRAPH and reason:
            pytest.skip(reason)
        monkeypatch.setenv(choice.VARIABLE, name)

    yield take
    persistent._watch.cache_clear()


@pytest.mark.parametrize("kernels", ["triton", "torch"])
@pytest.mark.parametrize("precision", LIMITS)
@pytest.mark.parametrize("shape", ["two layers", "no projection", "clips that fire"])
def test_graphs_agree_with_float64_plainly_and_replayed(shape, precision, kernels, monkeypatch):
    if kernels == "torch":
        monkeypatch.setattr(lstm, "pointwise_of", lambda device: torch_lstm_pointwise)
    elif reason := lstm.why_no_triton(HERE):
        pytest.skip(reason)
    check(SHAPES[shape], precision, **ragged(BATCH_SIZES, SHAPES[shape]), device=HERE, times=4)
    arena, = lstm._arenas.kept.values()
    assert any(any(graphs.held.values()) for bucket in arena._buckets.values() for graphs in bucket.graphs.values())


@pytest.mark.parametrize("shape", PERSISTENT_SHAPES)
@pytest.mark.parametrize("slots", [1, 7, 16, 33, 64, 200])
def test_launches_agree_with_float64(shape, slots, path):
    of = PERSISTENT_SHAPES[shape]
    path(PERSISTENT, of, slots)
    check(of, "medium", **ragged([slots] * 4 + [slots // 2 + 1] * 5, of), device=HERE)
    assert persistent._watch(HERE).reason() is None


def test_a_launch_that_gives_up_is_replayed(path, monkeypatch, caplog):
    path(PERSISTENT)
    monkeypatch.setattr(persistent, "_TIMEOUT_NS", 0)
    check(FIRING, "medium", **ragged(BATCH_SIZES), device=HERE)
    torch.cuda.synchronize()
    assert "gave up waiting" in persistent._watch(HERE).reason() and "in CUDA graphs from here on" in caplog.text


def test_auto_measures_within_its_time(path, monkeypatch, tmp_path):
    of = PERSISTENT_SHAPES["original"]
    path(PERSISTENT, of, 64)
    monkeypatch.setenv(choice.VARIABLE, "")
    choices = Choices(lambda: tmp_path / "cuda-lstm.json")
    monkeypatch.setattr(choice, "_choices", choices)
    run(of, "medium", **ragged([64] * 9, of), device=HERE)
    (measured,) = choices.read()[choice.machine(HERE)].values()
    assert 0 < measured.graph < 0.1 and 0 < measured.persistent < 0.1


@pytest.mark.parametrize("name, precision", [*((GRAPH, precision) for precision in LIMITS), (PERSISTENT, "medium")])
def test_nothing_is_waited_for(name, precision, path):
    path(name)
    work, _ = prepare(FIRING, precision, **ragged(BATCH_SIZES), device=HERE)
    for _ in range(3):
        work()
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        work()
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("name", choice.PATHS)
def test_streams_do_not_disturb_each_other(name, path):
    path(name)
    works = [prepare(FIRING, "medium", **ragged(BATCH_SIZES, seed=seed), device=HERE)[0] for seed in (0, 1)]
    streams, expected = [torch.cuda.Stream() for _ in works], [moved(work(), "cpu", torch.float64) for work in works]
    for _ in range(20):
        found = []
        for stream, work in zip(streams, works):
            with torch.cuda.stream(stream):
                found.append(work())
        torch.cuda.synchronize()
        assert all(error_of(*pair) < LIMITS["medium"] for pair in zip(found, expected))


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
