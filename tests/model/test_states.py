"""Where a sentence starts: carried, zero and warm states."""

import copy

import pytest
import torch

from elmo_fast import batch_to_ids
from elmo_fast.model.bilm import WARM_TEXT
from elmo_fast.testing import SAME_MODEL
from tests.support.models import SENTENCES, SHAPES, bilm, layers

WORDS = [f"word{number}" for number in range(40)]
ANOTHER = [["Another", "text"]]


def texts(*sizes, seed=0):
    generator = torch.Generator().manual_seed(seed)
    for size in sizes:
        lengths = torch.randint(0, 9, (size,), generator=generator).tolist()
        yield [[WORDS[k] for k in torch.randint(0, 40, (length,), generator=generator)] for length in lengths]


@pytest.mark.parametrize("shape, backend", [
    ("clips that fire", "reference"), ("two layers", "torch"), ("no projection", "torch"), ("clips that fire", "auto"),
    ("four layers", "auto"), ("no projection", "auto")])
def test_carried_over_batches_of_other_sizes(shape, backend):
    model = bilm(SHAPES[shape], backend=backend)
    alone = [bilm(SHAPES[shape], backend="reference") for _ in range(7)]
    for batch in texts(3, 5, 1, 7):
        together = layers(model, batch)
        for row, sentence in enumerate(batch):
            expected = layers(alone[row], [sentence])
            found = together[:, row : row + 1, : len(sentence) + 2]
            assert (found - expected).abs().max() < SAME_MODEL
    h, c = model._elmo_lstm._states
    of = model.options.lstm
    assert h.shape == (of.n_layers, 7, 2 * of.projection_dim) and c.shape == (of.n_layers, 7, 2 * of.dim)
    for row, single in enumerate(alone):
        for found, expected in zip((h, c), single._elmo_lstm._states):
            assert (found[:, row] - expected[:, 0]).abs().max() < SAME_MODEL


@pytest.mark.parametrize("backend", ["reference", "torch", "auto"])
@pytest.mark.parametrize("direction", [0, 1])
def test_a_direction_in_two_halves_equals_the_sentence(backend, direction):
    """The backward direction reads the second half first."""
    sentence = ["<S>", *WORDS[:9], "</S>"]
    complete, halved = bilm(backend=backend), bilm(backend=backend)
    expected = torch.stack(complete(batch_to_ids([sentence]), boundaries="present").activations)
    order = (sentence[:4], sentence[4:])[:: -1 if direction else 1]
    halves = [torch.stack(halved(batch_to_ids([half]), boundaries="present").activations) for half in order]
    found = torch.cat(halves[:: -1 if direction else 1], dim=2)
    values = slice(11 * direction, 11 * direction + 11)
    assert (found - expected)[..., values].abs().max() < SAME_MODEL
    assert (halved._elmo_lstm._states[0] - complete._elmo_lstm._states[0])[..., values].abs().max() < SAME_MODEL


@pytest.mark.parametrize("state", ["zero", "warm"])
@pytest.mark.parametrize("backend", ["reference", "torch", "auto"])
def test_zero_and_warm_do_not_depend_on_order_or_batch(state, backend):
    model = bilm(state=state, backend=backend)
    batch = next(texts(6, seed=4))
    names, together = set(model.state_dict()), layers(model, batch)
    assert (together - layers(model, batch[::-1]).flip(1)).abs().max() < SAME_MODEL
    for row, sentence in enumerate(batch):
        assert (layers(model, [sentence])[:, 0] - together[:, row, : len(sentence) + 2]).abs().max() < SAME_MODEL
    assert model._elmo_lstm._states is None and set(model.state_dict()) == names


def test_zero_is_a_carried_run_that_was_reset():
    carried, zero = bilm(), bilm(state="zero")
    layers(carried, SENTENCES)
    carried.reset_states()
    assert torch.equal(layers(carried, SENTENCES), layers(zero, SENTENCES))


def test_warm_starts_where_the_warm_text_ends():
    warm, zero = bilm(state="warm"), layers(bilm(state="zero"), [WORDS[:5]])
    for text in (WARM_TEXT, ANOTHER):
        warm.warm_text, carried = text, bilm()
        for sentence in text:
            layers(carried, [sentence])
        expected = layers(carried, [WORDS[:5]])
        assert (layers(warm, [WORDS[:5]]) - expected).abs().max() < SAME_MODEL
        assert (zero - expected).abs().max() > 100 * SAME_MODEL


@pytest.mark.parametrize("edit", ["in place", "load_state_dict", "double"])
def test_warm_state_follows_the_weights(edit):
    model, other = bilm(state="warm"), bilm(seed=5, state="warm")
    before = layers(model, [WORDS[:5]])
    if edit == "in place":
        with torch.no_grad():
            for mine, theirs in zip(model.parameters(), other.parameters()):
                mine.copy_(theirs)
    elif edit == "load_state_dict":
        model.load_state_dict(other.state_dict())
    else:
        model, other = other.double(), bilm(seed=5, state="warm").double()
    after = layers(model, [WORDS[:5]])
    assert (after - layers(other, [WORDS[:5]])).abs().max() < SAME_MODEL
    assert (after.float() - before).abs().max() > 100 * SAME_MODEL


def test_private_handles():
    model = bilm()
    lstm = model._elmo_lstm
    assert lstm.stateful is True and lstm._states is None
    layers(model, SENTENCES[:2])
    kept = copy.deepcopy(lstm._states)
    first = layers(model, SENTENCES[:2])
    lstm._states = kept
    assert torch.equal(layers(model, SENTENCES[:2]), first)
    lstm.reset_states(torch.tensor([1, 0]))
    assert not lstm._states[0][:, 0].any() and lstm._states[0][:, 1].any()
    with pytest.raises(ValueError, match="mask: expected shape .2,."):
        lstm.reset_states(torch.tensor([1, 0, 0]))
    with pytest.raises(ValueError, match="_states: expected .h .2, rows, 22., c .2, rows, 74.., got"):
        lstm._states = kept[0][:1], kept[1]
    lstm.reset_states()
    lstm.stateful = False
    layers(model, SENTENCES)
    assert model.state == "zero" and lstm._states is None
    lstm.stateful = True
    assert model.state == "carry"
    warm = bilm(state="warm")
    warm._elmo_lstm.stateful = False  # it is not
    assert warm.state == "warm"


def test_rows_without_a_token_keep_their_state():
    model = bilm()
    ids = batch_to_ids([["<S>", "one", "</S>"], ["<S>", "two", "</S>"]])
    model(ids, boundaries="present")
    before = copy.deepcopy(model._elmo_lstm._states)
    ids[0] = 0
    model(ids, boundaries="present")
    for old, new in zip(before, model._elmo_lstm._states):
        assert torch.equal(old[:, 0], new[:, 0]) and not torch.equal(old[:, 1], new[:, 1])


def test_carried_states_hold_no_graph():
    model = bilm(requires_grad=True)
    for _ in range(2):
        sum(layer.sum() for layer in model(batch_to_ids(SENTENCES)).activations).backward()
    assert all(not state.requires_grad for state in model._elmo_lstm._states)
