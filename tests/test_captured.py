"""The forward that a CUDA graph can capture, run on the CPU: static shapes, it waits for nothing, and loads no kernel."""

import gc
import importlib.util
import itertools
import sys
from types import SimpleNamespace

import fake_graphs
import pytest
import torch
from models import SENTENCES, SHAPES, bilm, options
from tolerances import AGAINST_FLOAT64, SAME_MODEL, relative_error

from elmo_fast import batch_to_ids
from elmo_fast.model import bilm as bilm_module
from elmo_fast.model import token_source
from elmo_fast.ops import char_cnn, lstm_operands, padded_lstm, step_buffers, stepwise_lstm, torch_lstm_pointwise
from elmo_fast.ops.cuda import encoder


@pytest.fixture
def capture(monkeypatch):
    """Makes calls believe that they are captured; native kernels, which are the CPU's here, stand back."""
    def begin():
        for module in (bilm_module, char_cnn, lstm_operands):
            monkeypatch.setattr(module, "is_capturing", lambda device: True)

    monkeypatch.setattr(bilm_module, "why_not", lambda op, backend, tensors: None)
    monkeypatch.setattr(stepwise_lstm, "_arenas", step_buffers.Arenas())
    monkeypatch.setattr(token_source, "char_cnn",
                        lambda *operands, backend, **how: char_cnn.char_cnn(*operands, backend="torch", **how))
    monkeypatch.setattr(token_source, "_WARMUP_TOKENS", 600)
    return begin


def same(found, expected):
    assert torch.equal(found.mask, expected.mask) and len(found.activations) == len(expected.activations)
    for one, other in zip(found.activations, expected.activations):
        assert one.shape == other.shape and (one[~expected.mask] == 0).all()
        assert torch.allclose(one, other, atol=SAME_MODEL)


@pytest.mark.parametrize("shape", ["two layers", "four layers", "no projection", "no skip connections", "clips that fire"])
@pytest.mark.parametrize("state", ["carry", "zero", "warm"])
def test_equals_the_ordinary_forward(shape, state, capture):
    one, other = (bilm(SHAPES[shape], state=state) for _ in range(2))
    for each in (one, other):
        each(batch_to_ids(SENTENCES[1:4]))
    ids = [batch_to_ids(batch) for batch in (SENTENCES[::-1], SENTENCES[2:5])]
    expected = [other(each) for each in ids]
    one._prepare_capture(len(SENTENCES))
    capture()
    for each, truth in zip(ids, expected):
        same(one(each.int()), truth)
    if state == "carry":
        for kept, truth in zip(one._elmo_lstm._states, other._elmo_lstm._states):
            assert torch.allclose(kept, truth, atol=SAME_MODEL)


def test_states_lie_where_the_graph_left_them(capture):
    model = bilm(SHAPES["two layers"])
    model._prepare_capture(len(SENTENCES))
    stack = model._elmo_lstm
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bilm_module, "is_capturing", lambda device: True)
        model(batch_to_ids(SENTENCES))
    captured = stack._states
    model(batch_to_ids(SENTENCES[:3]))
    assert stack._states is captured and captured[0].any()
    model.reset_states()
    assert stack._states is captured and not captured[0].any()


def test_what_a_capture_cannot_do_is_refused(capture):
    ids = batch_to_ids(SENTENCES)
    fresh, run, small, edited, named = (bilm() for _ in range(5))
    for model, rows in ((run, 6), (small, 2), (edited, 6), (named, 6)):
        model._prepare_capture(rows)
    edited._elmo_lstm.B_0_0.add_(1)
    named.backend = "torch"
    capture()
    with pytest.raises(RuntimeError, match=r"warmup: expected model.warmup\(\) before .*; got no warm-up"):
        fresh(ids)
    with pytest.raises(RuntimeError, match=r"warmup: expected model.warmup\(\) before .*; got one with others"):
        edited(ids)
    with pytest.raises(RuntimeError, match=r"_states: expected at least 6 carried rows .*warmup\(batch_size=6\).* got 2"):
        small(ids)
    with pytest.raises(ValueError, match="word_inputs: expected None while"):
        run(ids, word_inputs=ids[..., 0])
    with pytest.raises(RuntimeError, match="backend: expected one that a CUDA graph can capture"):
        named(ids)


def test_no_garbage_is_collected_meanwhile(capture, monkeypatch):
    model, seen = bilm(), []
    model._prepare_capture(6)
    monkeypatch.setattr(model._elmo_lstm, "run_padded", lambda *_: seen.append(gc.isenabled()) or [])
    capture()
    model(batch_to_ids(SENTENCES))
    assert seen == [False] and gc.isenabled()


@pytest.mark.parametrize("precision", ["highest", "medium"])
def test_the_lstm_waits_for_nothing(precision, capture, monkeypatch):
    model = bilm(SHAPES["clips that fire"], precision=precision)
    model._prepare_capture(0)
    x, lengths = torch.randn(3, 20, 22), torch.tensor([20, 0, 7])
    state = torch.zeros(3, 22), torch.zeros(3, 74)

    def run():
        return padded_lstm.padded_lstm(x, lengths, state, model._elmo_lstm.layer_weights(1), cell_clip=0.3, proj_clip=0.05,
                                       precision=precision)

    watch = fake_graphs.Watch(set())
    watch.check = lambda *values, by: None  # the buffers are the call's own: only waiting is looked for
    with watch:
        found, final = run()
    assert watch.operations > 100 and found.isfinite().all()
    monkeypatch.setattr(padded_lstm, "MOST_LANES", 2)
    limit = AGAINST_FLOAT64["highest" if precision == "highest" else "medium-fp16"]
    again, final_again = run()
    assert relative_error(again, found) < limit and relative_error(final_again[1], final[1]) < limit
    assert (final[0][1] == 0).all() and (found[1] == 0).all() and (found[2, 7:] == 0).all()


# ---- which variants of Triton's kernels are loaded --------------------------------------------------

devices = itertools.count(1000)  # Triton keeps what it loaded by device: each test has one of its own
SETTINGS = {"highest": ("highest", False), "high": ("high", False), "bf16": ("medium", False), "fp16": ("medium", True)}
EVEN = options({"dim": 64, "projection_dim": 16}, {"embedding": {"dim": 16}, "filters": [[1, 16], [3, 32], [7, 16]]})
BATCHES = [(1, 1), (8, 1), (1, 31), (3, 11), (4, 25), (27, 19), (40, 50)]  # sentences, positions


class Driver:
    """Triton's driver of an H100 that is not there. `compiled` are the sources it was asked for, `launched` kernels' names."""

    def __init__(self):
        self.device, self.compiled, self.launched = next(devices), [], []

    def get_current_target(self):
        return importlib.import_module("triton.backends.compiler").GPUTarget("cuda", 90, 32)

    def get_current_device(self):
        return self.device

    def get_current_stream(self, device):
        return 0

    def compile(self, source, target=None, options=None, **_):
        self.compiled.append((source, options))
        return SimpleNamespace(function=0, packed_metadata=None, launch_metadata=lambda *_: None,
                               run=lambda *_: self.launched.append(source.fn.__name__))


@pytest.fixture
def driver(monkeypatch, tmp_path):
    """A model's char encoder and LSTM launch Triton's kernels on CPU tensors; nothing runs, and what is loaded is kept."""
    triton = pytest.importorskip("triton")
    from elmo_fast.kernels import configs, lstm_pointwise

    if triton.knobs.runtime.interpret:
        pytest.skip("Triton interprets its kernels here and loads none")
    driver, order = Driver(), itertools.count(9, -1)
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(triton.runtime.driver, "_active", driver)
    monkeypatch.setattr(triton.compiler, "compile", driver.compile)
    monkeypatch.setattr(configs, "generation_of", lambda device: 90)
    monkeypatch.setattr(configs, "_milliseconds", lambda call, quantiles: call() or [float(next(order))] * 3)
    configs._tuned.cache_clear()
    for name in ("gates", "hidden"):
        monkeypatch.setattr(torch_lstm_pointwise, name, getattr(lstm_pointwise, name))
    library = torch.library.Library("elmo_fast", "FRAGMENT")
    for name, (run, *_) in encoder.OPS.items():
        library.impl(name, run, "CPU")
    yield driver
    library._destroy()
    configs._tuned.cache_clear()


def encode_by_triton(monkeypatch, bounded):
    for name in ("char_cnn", "highway", "linear"):
        monkeypatch.setattr(token_source, name, lambda *operands, run=getattr(encoder, name), backend, **_:
                            run(*operands, None, bounded))


def capture_all(model, batches=BATCHES):
    """Forwards of every batch, as captured; ids of both types, at addresses of every alignment."""
    for number, (sentences, positions) in enumerate(batches):
        ids = torch.ones(sentences * positions + 1, 50, dtype=(torch.int64, torch.int32)[number % 2])[1:]
        model(ids.view(sentences, positions, 50), boundaries=("present", "add")[number // 2 % 2])


@pytest.mark.parametrize("of", [options(), EVEN], ids=["odd", "even"])
@pytest.mark.parametrize("state", ["carry", "zero"])
@pytest.mark.parametrize("setting", SETTINGS)
def test_a_capture_of_any_batch_loads_nothing(setting, state, of, capture, driver, monkeypatch):
    from elmo_fast.kernels import configs

    encode_by_triton(monkeypatch, SETTINGS[setting][1])
    for round in ("tuned", "read from disk"):
        driver.device = next(devices)
        configs._tuned.cache_clear()
        model = bilm(of, state=state, precision=SETTINGS[setting][0])
        with torch.no_grad(), bilm_module.numerics(model.precision, torch.device("cpu")):
            model._prepare_capture(40)
        loaded = len(driver.compiled)
        driver.launched.clear()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(bilm_module, "is_capturing", lambda device: True)
            capture_all(model)
        assert set(driver.launched) == {"_token_lengths", "_char_cnn", "_highway", "_gates", "_hidden"}
        assert len(driver.compiled) == loaded, round
