import copy
import itertools

import pytest
import torch

from elmo_fast import ConfigurationError, ScalarMix, batch_to_ids
from elmo_fast.testing import AGAINST_FLOAT64, SAME_MODEL, relative_error
from elmo_fast.weights.opening import WARM_TEXT
from tests.support.engines import GPU
from tests.support.grid import mostly_long
from tests.support.models import SENTENCES, SHAPES, bilm, layers, texts, word_bilm

IDS = batch_to_ids(SENTENCES)
FIVE = [f"word{number}" for number in range(5)]
ANOTHER = [["Another", "text"]]


@pytest.mark.parametrize("shape, backend", [*((shape, "auto") for shape in SHAPES),
                                            *zip(SHAPES, itertools.cycle(["reference", "torch"]))])
def test_float32_against_float64(shape, backend):
    check_model(shape, backend, AGAINST_FLOAT64["ieee"])


@pytest.mark.parametrize("model, engine", mostly_long(zip([
    ("no projection", "zero"), ("no skip connections", "warm"), ("clips that fire", "carry"), ("four layers", "carry"),
    ("clips that fire", "zero"), ("no projection", "carry"), ("no skip connections", "warm")],
    GPU, strict=True), quick=2))
def test_the_lstm_of_a_gpu_against_float64(model, engine):
    shape, state = model
    with engine.active():
        check_model(shape, "auto", engine.limits[0], state)


def check_model(shape, backend, limit, state="carry"):
    """Compare layers of a batch with an empty sentence, of a part of it, and of the batch again; then the states."""
    sizes = SHAPES[shape]
    ids = batch_to_ids(SENTENCES, sizes.char_cnn.max_characters_per_token)
    exact = bilm(sizes, backend="reference", state=state).double()
    model = bilm(sizes, backend=backend, state=state)
    for batch in (ids, ids[1:4], ids):
        expected, actual = exact(batch), model(batch)
        for values, exact_values in zip(actual.activations, expected.activations):
            assert relative_error(values, exact_values) < limit
        assert torch.equal(actual.mask, expected.mask)
    for values, exact_values in zip(model._elmo_lstm._states or (), exact._elmo_lstm._states or (), strict=True):
        assert values.dtype == torch.float32 and relative_error(values, exact_values) < limit


def test_no_tokens_at_all():
    output = bilm()(torch.zeros(2, 0, 50, dtype=torch.int64))
    assert output.mask.tolist() == [[True, True]] * 2
    assert torch.stack(output.activations).abs().sum() > 0
    assert torch.stack(bilm()(torch.zeros(0, 4, 50, dtype=torch.int64)).activations).shape == (3, 0, 6, 22)
    padding = bilm()(torch.zeros(2, 3, 50, dtype=torch.int64), boundaries="present")
    assert not padding.mask.any() and not torch.stack(padding.activations).any()


def test_word_ids():
    model, ids = word_bilm(), torch.tensor([[1, 5, 9, 2], [1, 2, 0, 0]])
    output = activations, mask = model(ids, boundaries="present")
    assert output["activations"] is activations and output["mask"] is mask and mask.dtype == torch.bool
    table = torch.from_numpy(model.weights()["embedding"])
    expected = torch.cat([table[ids - 1]] * 2, dim=-1) * mask[..., None]
    assert torch.equal(activations[0].detach(), expected)
    assert mask.tolist() == [[True] * 4, [True, True, False, False]]
    assert activations[1][mask].abs().sum() > 0
    with pytest.raises(ConfigurationError, match="boundaries: expected 'present'"):
        model(ids)
    with pytest.raises(ValueError, match="word ids from 0 to 9, got 1 to 10"):
        model(ids + 1, boundaries="present")


def test_a_warm_state_from_inference_mode_works_in_training():
    model, fresh = (bilm(state="warm", requires_grad=True) for _ in range(2))
    with torch.inference_mode():
        model(IDS)
    for trained in (model, fresh):
        torch.stack(trained(IDS).activations).sum().backward()
    for parameter, fresh_parameter in zip(model.parameters(), fresh.parameters(), strict=True):
        assert torch.equal(parameter.grad, fresh_parameter.grad)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("precision, backend", [("highest", "auto"), ("highest", "torch"), ("medium", "auto"),
                                                ("low", "auto")])
@pytest.mark.parametrize("state", ["carry", "warm"])
def test_16_bit_weights_are_used_as_they_are(dtype, precision, backend, state):
    small, rounded = (bilm(precision=precision, backend=backend, state=state).to(dtype) for _ in range(2))
    rounded.float()
    for _ in range(2):
        with torch.no_grad():
            actual, expected = small(IDS).activations, rounded(IDS).activations
        for values, exact in zip(actual, expected, strict=True):
            assert values.dtype == dtype
            assert (values - exact).norm() <= torch.finfo(dtype).eps / 2 * exact.norm()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_mix_of_16_bits_is_rounded_once(dtype):
    activations, mask = bilm()(IDS)
    values = torch.stack(activations).detach().to(dtype)
    mix = ScalarMix(3, True, [1.0, -0.5, 0.25]).to(dtype)
    actual, exact = mix(values, mask), copy.deepcopy(mix).double()(values.double(), mask)
    assert actual.dtype == dtype and (actual - exact)[mask].norm() <= torch.finfo(dtype).eps / 2 * exact[mask].norm()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_a_default_type_changes_nothing(dtype):
    def run():
        model, mix = bilm(state="warm"), ScalarMix(3)
        inner = model._elmo_lstm(torch.linspace(-1, 1, 77, dtype=torch.float32).view(1, 7, 11), torch.ones(1, 7))
        return [inner, mix(model(IDS).activations).detach(), *(each.detach() for each in mix.parameters())]

    expected = run()
    torch.set_default_dtype(dtype)
    try:
        actual = run()
    finally:
        torch.set_default_dtype(torch.float32)
    assert all(values.dtype == torch.float32 and torch.equal(values, usual) for values, usual in zip(actual, expected))


# ---- initial states ----


@pytest.mark.parametrize("state", ["zero", "warm"])
@pytest.mark.parametrize("backend", ["reference", "torch", "auto", "native"])
def test_zero_and_warm_do_not_depend_on_order_or_batch(state, backend):
    model = bilm(SHAPES["clips that fire"], state=state, backend=backend)
    limit = 0 if backend == "native" else SAME_MODEL
    batch = [*texts(6, 8, seed=4), *SENTENCES]
    names, together = set(model.state_dict()), layers(model, batch)
    assert (together - layers(model, batch[::-1]).flip(1)).abs().max() <= limit
    for row, sentence in enumerate(batch):
        assert (layers(model, [sentence])[:, 0] - together[:, row, : len(sentence) + 2]).abs().max() <= limit
    assert model._elmo_lstm._states is None and set(model.state_dict()) == names


def test_warm_starts_where_the_warm_text_ends():
    warm, zero = bilm(state="warm"), layers(bilm(state="zero"), [FIVE])
    for text in (WARM_TEXT, ANOTHER):
        warm.warm_text, carried = text, bilm()
        for sentence in text:
            layers(carried, [sentence])
        expected = layers(carried, [FIVE])
        assert (layers(warm, [FIVE]) - expected).abs().max() < SAME_MODEL
        assert (zero - expected).abs().max() > 100 * SAME_MODEL


def test_a_warm_text_is_tokenized():
    model = bilm(state="warm")
    for text in (["a string"], "a string", [3]):
        with pytest.raises(ValueError, match="warm_text"):
            model.warm_text = text
    assert model.warm_text == tuple(WARM_TEXT)


def test_states_are_set_and_reset_by_row():
    model = bilm()
    lstm = model._elmo_lstm
    layers(model, SENTENCES[:2])
    states = lstm._states
    lstm.reset_states(torch.tensor([1, 0]))
    assert not lstm._states[0][:, 0].any() and lstm._states[0][:, 1].any()
    with pytest.raises(ValueError, match="mask: expected shape .2,."):
        lstm.reset_states(torch.tensor([1, 0, 0]))
    with pytest.raises(ValueError, match="_states: expected .h .2, rows, 22., c .2, rows, 74.., got"):
        lstm._states = states[0][:1], states[1]


def test_training_the_char_encoder_alone():
    model = bilm(backend="auto")
    model._token_embedder.requires_grad_(True)
    for activations in (model(batch_to_ids(SENTENCES)).activations, model.embed_tokens(SENTENCES)[0]):
        model.zero_grad()
        activations[-1].sin().sum().backward()
        source = model._token_embedder
        assert source.char_conv_0.weight.grad.any() and source._char_embedding_weights.grad.any()
