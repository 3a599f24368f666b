"""The forward that a CUDA graph can capture, run on the CPU: static shapes, and it waits for nothing."""

import fake_graphs
import pytest
import torch
from models import SENTENCES, SHAPES, bilm, options
from tolerances import AGAINST_FLOAT64, SAME_MODEL, relative_error

from elmo_fast import batch_to_ids
from elmo_fast.model import bilm as bilm_module
from elmo_fast.ops import char_cnn, lstm_operands, padded_lstm, step_buffers, stepwise_lstm


@pytest.fixture
def capture(monkeypatch):
    """Makes calls believe that they are captured; native kernels, which are the CPU's here, stand back."""
    def begin():
        for module in (bilm_module, char_cnn, lstm_operands):
            monkeypatch.setattr(module, "is_capturing", lambda device: True)

    monkeypatch.setattr(bilm_module, "why_not", lambda op, backend, tensors: None)
    monkeypatch.setattr(stepwise_lstm, "_arenas", step_buffers.Arenas())
    return begin


def prepared(shape, batches, **settings):
    """A model that has run, as it must before a capture; its small operations are torch's own."""
    model = bilm(shape, backend="torch", **settings)
    for batch in batches:
        model(batch_to_ids(batch, *model.token_source.row_shape))
    for layer in range(shape.lstm.n_layers):
        weights = stepwise_lstm.flat_weights(model._elmo_lstm.layer_weights(layer))
        lstm_operands.operands(weights, shape.lstm.projection_dim, model.precision, stepwise_lstm.limit(shape.lstm.proj_clip))
    return model


def same(found, expected, limit=None):
    assert torch.equal(found.mask, expected.mask) and len(found.activations) == len(expected.activations)
    for one, other in zip(found.activations, expected.activations):
        assert one.shape == other.shape
        assert (one[~expected.mask] == 0).all()
        assert torch.allclose(one, other, atol=SAME_MODEL) if limit is None else relative_error(one, other) < limit


@pytest.mark.parametrize("shape", ["two layers", "four layers", "no projection", "no skip connections", "clips that fire"])
@pytest.mark.parametrize("state", ["carry", "zero", "warm"])
def test_equals_the_ordinary_forward(shape, state, capture, monkeypatch):
    one, other = (prepared(SHAPES[shape], [SENTENCES, SENTENCES[1:4]], state=state) for _ in range(2))
    ids = [batch_to_ids(batch) for batch in (SENTENCES[::-1], SENTENCES[2:5])]
    expected = [other(each) for each in ids]
    capture()
    monkeypatch.setattr(one, "backend", "auto")
    monkeypatch.setattr("elmo_fast.model.token_source.char_cnn",
                        lambda *operands, backend, **how: char_cnn.char_cnn(*operands, backend="torch", **how))
    for each, truth in zip(ids, expected):
        same(one(each), truth)
    if state == "carry":
        for kept, truth in zip(one._elmo_lstm._states, other._elmo_lstm._states):
            assert torch.allclose(kept, truth, atol=SAME_MODEL)


def test_states_lie_where_the_graph_left_them(capture, monkeypatch):
    model = prepared(SHAPES["two layers"], [SENTENCES])
    stack = model._elmo_lstm
    capture()
    monkeypatch.setattr(model, "backend", "auto")
    model(batch_to_ids(SENTENCES))
    captured = stack._states
    monkeypatch.undo()
    model.backend = "torch"
    model(batch_to_ids(SENTENCES[:3]))
    assert stack._states is captured
    model.reset_states()
    assert stack._states is captured and not captured[0].any()


def test_what_a_capture_cannot_do_is_refused(capture):
    ids = batch_to_ids(SENTENCES)
    fresh, run, small = bilm(), prepared(options(), [SENTENCES]), prepared(options(), [SENTENCES[:2]])
    named = prepared(options(), [SENTENCES])
    capture()
    for model in (fresh, run, small):
        model.backend = "auto"
    with pytest.raises(RuntimeError, match="run once with torch.int64 ids on cpu before"):
        fresh(ids)
    with pytest.raises(RuntimeError, match="_states: expected at least 6 carried rows"):
        small(ids)
    with pytest.raises(ValueError, match="word_inputs: expected None while"):
        run(ids, word_inputs=ids[..., 0])
    with pytest.raises(RuntimeError, match="backend: expected one that a CUDA graph can capture"):
        named(ids)


@pytest.mark.parametrize("precision", ["highest", "medium"])
def test_the_lstm_waits_for_nothing(precision, capture, monkeypatch):
    of = SHAPES["clips that fire"]
    model = prepared(of, [SENTENCES], precision=precision)
    weights = model._elmo_lstm.layer_weights(1)
    x, lengths = torch.randn(3, 20, 22), torch.tensor([20, 0, 7])
    state = torch.zeros(3, 22), torch.zeros(3, 74)

    def run():
        return padded_lstm.padded_lstm(x, lengths, state, weights, cell_clip=0.3, proj_clip=0.05, precision=precision)

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
