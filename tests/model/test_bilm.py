import copy
import itertools

import pytest
import torch

from elmo_fast import BiLm, ConfigurationError, Options, batch_to_ids, random_weights
from elmo_fast.model import batch_layout
from elmo_fast.model.batch_layout import unique_rows
from elmo_fast.testing import AGAINST_FLOAT64, SAME_MODEL, relative_error
from tests.support.models import SENTENCES, SHAPES, bilm, layers, options, weights

IDS = batch_to_ids(SENTENCES)


@pytest.mark.parametrize("shape, backend", [*((shape, "auto") for shape in SHAPES),
                                            *zip(SHAPES, itertools.cycle(["reference", "torch"]))])
def test_float32_against_float64(shape, backend):
    of = SHAPES[shape]
    ids = batch_to_ids(SENTENCES, of.char_cnn.max_characters_per_token)
    exact = bilm(of, backend="reference").double()
    model = bilm(of, backend=backend)
    for _ in range(2):
        expected, found = exact(ids), model(ids)
        for one, other in zip(found.activations, expected.activations):
            assert relative_error(one, other) < AGAINST_FLOAT64["highest"]
        assert torch.equal(found.mask, expected.mask)
    for one, other in zip(model._elmo_lstm._states, exact._elmo_lstm._states):
        assert one.dtype == torch.float32 and relative_error(one, other) < AGAINST_FLOAT64["highest"]


def test_ways_in_and_out():
    output = bilm()(IDS)
    activations, mask = output
    assert output["activations"] is activations and output["mask"] is mask
    assert len(activations) == 3 and mask.dtype == torch.bool
    assert mask.sum(1).tolist() == [len(sentence) + 2 for sentence in SENTENCES]
    present = bilm()(batch_to_ids([["<S>", *sentence, "</S>"] for sentence in SENTENCES]), boundaries="present")
    packed, lengths = bilm().embed_tokens(SENTENCES)
    assert torch.equal(mask, present.mask) and lengths.tolist() == mask.sum(1).tolist()
    for one, other, row in zip(activations, present.activations, packed):
        assert (one - other).abs().max() < SAME_MODEL and (row - one[mask]).abs().max() < SAME_MODEL


def test_no_tokens_at_all():
    output = bilm()(torch.zeros(2, 0, 50, dtype=torch.int64))
    assert output.mask.tolist() == [[True, True]] * 2
    assert torch.stack(output.activations).abs().sum() > 0
    assert torch.stack(bilm()(torch.zeros(0, 4, 50, dtype=torch.int64)).activations).shape == (3, 0, 6, 22)
    padding = bilm()(torch.zeros(2, 3, 50, dtype=torch.int64), boundaries="present")
    assert not padding.mask.any() and not torch.stack(padding.activations).any()


def test_weights_come_back_byte_for_byte():
    given = weights(options())
    model, same = bilm(), bilm()
    back = model.weights()
    assert list(back) == list(given)
    assert all(back[name].tobytes() == given[name].tobytes() for name in given)
    before = model.fingerprint()
    assert before == same.fingerprint() != bilm(seed=1).fingerprint() and len(before) == 32
    with torch.no_grad():
        model._token_embedder.char_embed.zero_()
        same._elmo_lstm.B_0_0[3] += 1
    assert given["char_embed"].any() and before not in (model.fingerprint(), same.fingerprint())


def test_word_ids():
    of = Options.from_dict({"lstm": {"dim": 20, "projection_dim": 8, "n_layers": 1, "use_skip_connections": True},
                            "n_tokens_vocab": 30})
    drawn = random_weights(of, 3)
    model = BiLm(of, drawn)
    ids = torch.tensor([[1, 5, 30, 2], [1, 2, 0, 0]])
    activations, mask = model(ids, boundaries="present")
    table = torch.from_numpy(drawn["embedding"])
    expected = torch.cat([table[ids - 1]] * 2, dim=-1) * mask[..., None]
    assert torch.equal(activations[0].detach(), expected)
    assert mask.tolist() == [[True] * 4, [True, True, False, False]]
    assert activations[1][mask].abs().sum() > 0
    with pytest.raises(ConfigurationError, match="boundaries: expected 'present'"):
        model(ids)
    with pytest.raises(ValueError, match="word ids from 0 to 30, got 1 to 31"):
        model(ids + 1, boundaries="present")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_16_bit_parameters_compute_in_full_precision(dtype):
    model = bilm(backend="torch").to(dtype)
    rounded = {name: torch.from_numpy(values).to(dtype).float().numpy() for name, values in weights(options()).items()}
    expected = BiLm(options(), rounded, backend="torch")(IDS)
    for one, other in zip(model(IDS).activations, expected.activations):
        assert one.dtype == dtype and torch.equal(one, other.to(dtype))
    assert all(state.dtype == torch.float32 for state in model._elmo_lstm._states)


def test_two_models_do_not_meet():
    one, two = bilm(seed=1), bilm(SHAPES["four layers"], seed=2)
    alone = layers(bilm(seed=1), SENTENCES)
    two(IDS)
    assert torch.equal(layers(one, SENTENCES), alone)


def test_gradients_reach_every_weight():
    grads = []
    for backend in ("reference", "torch"):
        model = bilm(SHAPES["clips that fire"], backend=backend, requires_grad=True).double()
        sum(layer.sin().sum() for layer in model(IDS).activations).backward()
        grads.append({name: value.grad for name, value in model.named_parameters()})
    for name, expected in grads[0].items():
        assert expected.abs().sum() > 0, name
        assert torch.allclose(grads[1][name], expected, rtol=1e-8, atol=1e-10), name


@pytest.mark.parametrize("share_a_hash", [False, True])
def test_unique_rows(monkeypatch, share_a_hash):
    if share_a_hash:
        monkeypatch.setattr(batch_layout, "_multipliers", lambda count, device: torch.ones(count, dtype=torch.int64))
    rows = torch.tensor([[5, 1], [2, 2], [5, 1], [1, 5], [2, 2]])
    for ids, count in ((rows, 3), (rows[:, 0], 3), (rows[:0], 0)):
        unique, number = unique_rows(ids)
        assert unique.shape == (count, *ids.shape[1:]) and torch.equal(unique[number], ids)


def test_without_fp32_weights_the_numbers_stay():
    whole, packed = bilm(backend="native", state="warm"), bilm(backend="native", state="warm", keep_fp32=False)
    assert torch.equal(layers(packed, SENTENCES), layers(whole, SENTENCES))
    held = sum(value.numel() for value in packed.parameters() if not value.is_meta)
    assert held < 0.4 * sum(value.numel() for value in whole.parameters())
    for call in (packed.weights, packed.state_dict, lambda: copy.deepcopy(packed)(IDS)):
        with pytest.raises(RuntimeError, match="weights: expected fp32 weights"):
            call()
