"""The forward that a CUDA graph can capture, run on the CPU: static shapes, and no kernel that is not loaded."""

import contextlib
import gc
import itertools
import weakref

import pytest
import torch

from elmo_fast import batch_to_ids
from elmo_fast.model import bilm as bilm_module
from elmo_fast.model import cuda_graph
from elmo_fast.model.layers import encoder as encoder_module
from elmo_fast.ops import char_cnn, choices, linear
from elmo_fast.ops.linear import cuda as linear_cuda
from elmo_fast.ops.numerics import numerics
from elmo_fast.ops.projected_lstm.cuda import blocks, lstm
from elmo_fast.testing import AGAINST_FLOAT64, SAME_MODEL, relative_error
from tests.support import cuda_ops, fake_graphs
from tests.support.grid import grid
from tests.support.models import SENTENCES, SHAPES, bilm, options


@contextlib.contextmanager
def captured():
    """In the body calls seem to be captured, and may wait for nothing."""
    with pytest.MonkeyPatch.context() as patch, fake_graphs.Watch(None):
        for module in (bilm_module, char_cnn, blocks):
            patch.setattr(module, "is_capturing", lambda device: True)
        yield


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch):
    """Captures on the CPU; its native kernels stand back."""
    def encode(*tensors, backend, **how):
        assert gc.isenabled() != bilm_module.is_capturing(torch.device("cpu"))  # nothing is collected in a capture
        return char_cnn.char_cnn(*tensors, backend="torch", **how)

    monkeypatch.setattr(cuda_graph, "why_not", lambda op, backend, tensors: None)
    monkeypatch.setattr(lstm, "_arenas", blocks.Arenas())
    monkeypatch.setattr(encoder_module, "char_cnn", encode)
    monkeypatch.setattr(encoder_module, "_WARMUP_TOKENS", 600)


@pytest.mark.parametrize("of, most_slots", grid([
    ("two layers", "carry", "highest"), ("clips that fire", "carry", "highest"), ("four layers", "zero", "highest"),
    ("no projection", "zero", "highest"), ("no skip connections", "warm", "highest"),
    ("clips that fire", "warm", "highest"), ("no projection", "carry", "highest"),
    ("clips that fire", "carry", "medium")], [1024, 2], together=1))
def test_equals_the_ordinary_forward(of, most_slots, monkeypatch):
    shape, state, precision = of
    monkeypatch.setitem(lstm.MOST_SLOTS, "graph", most_slots)
    limit = SAME_MODEL if precision == "highest" else AGAINST_FLOAT64["fp16"]
    one, other = bilm(SHAPES[shape], state=state, precision=precision), bilm(SHAPES[shape], state=state)
    for model in (one, other):
        model(batch_to_ids(SENTENCES[1:4]))
    ids = [batch_to_ids(batch) for batch in (SENTENCES[::-1], SENTENCES[2:5])]
    expected = [other(batch) for batch in ids]
    one._prepare_capture(len(SENTENCES))
    for batch, truth in zip(ids, expected):
        with captured():
            found = one(batch.int())
        assert torch.equal(found.mask, truth.mask)
        for layer, true in zip(found.activations, truth.activations, strict=True):
            assert (layer[~truth.mask] == 0).all() and torch.allclose(layer, true, atol=limit)
    states = one._elmo_lstm._states
    for kept, truth in zip(states or (), other._elmo_lstm._states or (), strict=True):
        assert torch.allclose(kept, truth, atol=limit)
    one(batch_to_ids(SENTENCES[:3]))
    assert one._elmo_lstm._states is states  # where the graph left them
    one.reset_states()
    assert one._elmo_lstm._states is states and not any(part.any() for part in states or ())


def test_what_a_capture_cannot_do_is_refused():
    ids = batch_to_ids(SENTENCES)
    fresh, run, small, edited, named = (bilm() for _ in range(5))
    for model, rows in ((run, 6), (small, 2), (edited, 6), (named, 6)):
        model._prepare_capture(rows)
    edited._elmo_lstm.B_0_0.add_(1)
    named.backend = "torch"
    for model, inputs, error, message in (
            (fresh, [ids], RuntimeError, r"warmup: expected model.warmup\(\) before .*; got no warm-up"),
            (edited, [ids], RuntimeError, r"warmup: expected model.warmup\(\) before .*; got a warm-up with others"),
            (small, [ids], RuntimeError, r"_states: expected at least 6 .*warmup\(batch_size=6\).* got 2"),
            (named, [ids], RuntimeError, "backend: expected one that a CUDA graph can capture"),
            (run, [ids.to("meta")], ValueError, "ids: expected ids on cpu while"),
            (run, [ids, "add", ids[..., 0]], ValueError, "word_inputs: expected None while")):
        with pytest.raises(error, match=message), captured():
            model(*inputs)


ODD = options(char_cnn={"max_characters_per_token": 9})
EVEN = options({"dim": 64, "projection_dim": 16}, {"embedding": {"dim": 16}, "filters": [[1, 16], [3, 32], [7, 16]]})
BATCHES = [(1, 1), (8, 1), (1, 31), (3, 11), (4, 25), (27, 19), (40, 50)]  # sentences, positions


@pytest.fixture
def driver(monkeypatch, tmp_path):
    """An H100's, on which nothing runs: what it `loaded`, unless nothing refers to it, and names that it `launched`."""
    def load(source, *_):
        def run(*_):
            driver.launched.append(source.fn.__name__)

        driver.loaded.append(weakref.ref(run))
        return run

    driver = cuda_ops.triton_driver(monkeypatch, 90, load)
    from elmo_fast.kernels import configs

    driver.loaded, driver.launched, milliseconds = [], [], itertools.count(9, -1)
    driver.forget_choices = configs._tuned.cache_clear
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setattr(configs, "_milliseconds", lambda call, quantiles: call() or [float(next(milliseconds))] * 3)
    monkeypatch.setattr(choices, "choose", lambda device, name, measure: linear_cuda.TRITON)
    with cuda_ops.registered_on_cpu():
        yield driver
    driver.forget_choices()


def capture_every_batch(driver, monkeypatch, of, operands, state):
    """Names of the kernels that captures launch in a model that was warmed up; how many variants it loaded."""
    precision, _ = cuda_ops.PRECISIONS[operands]
    for op in (char_cnn.char_cnn, linear.highway, linear.linear):
        monkeypatch.setattr(encoder_module, op.__name__, lambda *given, op=op, backend, **_:
                            cuda_ops.on_backend(op, *given, backend=operands, precision=precision))
    driver.forget_choices()
    driver.device, before = next(cuda_ops.devices), len(driver.loaded)
    model = bilm(of, state=state, precision=precision)
    with torch.no_grad(), numerics(precision, torch.device("cpu")):
        model._prepare_capture(max(BATCHES)[0])
    loaded = len(driver.loaded) - before
    driver.launched.clear()
    with captured():
        for number, (sentences, positions) in enumerate(BATCHES):  # ids of two types, not aligned
            ids = torch.ones(sentences * positions + 1, *model.token_source.row_shape)
            ids = ids.to((torch.int64, torch.int32)[number % 2])
            model(ids[1:].view(sentences, positions, -1), boundaries=("present", "add")[number // 2 % 2])
    assert len(driver.loaded) == before + loaded
    return set(driver.launched), loaded


@pytest.mark.long
@pytest.mark.parametrize("operands, state, of", [
    ("ieee", "carry", ODD), ("ieee", "zero", EVEN), ("tf32", "zero", ODD), ("tf32", "carry", EVEN),
    ("bf16", "carry", ODD), ("bf16", "zero", EVEN), ("fp16", "zero", ODD), ("fp16", "carry", EVEN)])
def test_a_capture_of_any_batch_loads_nothing(operands, state, of, driver, monkeypatch):
    launched, tuned = capture_every_batch(driver, monkeypatch, of, operands, state)
    assert launched == {"_char_cnn", "_gates", "_hidden", *(["_highway"] if operands != "ieee" else [])}
    assert capture_every_batch(driver, monkeypatch, of, operands, state)[0] == launched
    assert len(driver.loaded) < 2 * tuned  # the second time the choices came from the disk
    gc.collect()
    assert all(kernel() for kernel in driver.loaded)  # a graph outlives the model: nothing was unloaded


@pytest.mark.long
@pytest.mark.parametrize("mutant, kernel", [
    ("rows", "_highway"), ("count", "_char_cnn"), ("alignment", "_char_cnn"), ("activation", "_char_cnn"),
    ("scale", "_gates"), ("warm-up of few tokens alone", "_highway|_char_cnn")])
def test_a_variant_that_a_call_decides_is_caught(mutant, kernel, driver, monkeypatch):
    from triton import jit

    from elmo_fast.kernels import char_cnn, highway, lstm_pointwise

    layer, encode, gates = highway._highway, char_cnn.char_cnn, lstm_pointwise.gates
    monkeypatch.setattr(*{
        "rows": (layer, "fn", jit(layer.fn.fn)),
        "count": (char_cnn, "_char_cnn", jit(char_cnn._char_cnn.fn, do_not_specialize_on_alignment=["ids"])),
        "alignment": (char_cnn, "_char_cnn", jit(char_cnn._char_cnn.fn, do_not_specialize=["count"])),
        "activation": (char_cnn, "char_cnn", lambda ids, lengths, packed, activation, out:
                       encode(ids, lengths, packed, "tanh" if len(ids) > 32 else "relu", out)),
        "scale": (lstm_pointwise, "gates", lambda zh, z, scale, *more:
                  gates(zh, z, zh[0] if zh.shape[1] > 2 else None, *more)),
        "warm-up of few tokens alone": (encoder_module, "_WARMUP_TOKENS", 8)}[mutant])
    with pytest.raises(RuntimeError, match=fr"warmup: expected model.warmup\(\) .* ({kernel}) is not loaded "):
        capture_every_batch(driver, monkeypatch, ODD, "tf32", "zero")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device")
@pytest.mark.parametrize("precision", ["highest", "medium"])
@pytest.mark.parametrize("state", ["carry", "zero", "warm"])
def test_inside_a_users_graph(state, precision):
    model, plain = (bilm(SHAPES["clips that fire"], state=state, precision=precision).cuda() for _ in range(2))
    limit = AGAINST_FLOAT64[{"highest": "ieee", "medium": "bf16"}[precision]]
    for many in (1, 100):  # tokens on both sides of the classes of amounts
        sentences = SENTENCES * many
        batches = [batch_to_ids(sentences).cuda(), batch_to_ids(sentences[::-1]).cuda()]
        ids, graph = batches[0].clone(), torch.cuda.CUDAGraph()
        model.warmup(len(sentences))
        with torch.no_grad(), torch.cuda.graph(graph):
            output = model(ids)
        for each in (*batches, batches[0]):
            ids.copy_(each)
            graph.replay()
            for one, other in zip(output.activations, plain(each).activations):
                assert relative_error(one, other) < limit
        model.reset_states()
        plain.reset_states()
