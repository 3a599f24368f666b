import copy
import io

import numpy as np
import pytest
import torch

from elmo_fast import BiLm, ConfigurationError, Options, batch_to_ids, random_weights
from elmo_fast.model import batch_layout
from elmo_fast.model.batch_layout import unique_rows
from elmo_fast.testing import AGAINST_FLOAT64, SAME_MODEL, relative_error
from tests.support.models import SENTENCES, SHAPES, bilm, options, weights

IDS = batch_to_ids(SENTENCES)


def stacked(output):
    return torch.stack(output.activations).detach()


@pytest.mark.parametrize("shape, backend", [*((shape, "auto") for shape in SHAPES), *(
    (shape, backend) for number, shape in enumerate(SHAPES) for backend in [("reference", "torch")[number % 2]])])
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


def test_output_unpacks_and_answers_to_names():
    output = bilm()(IDS)
    activations, mask = output
    assert output["activations"] is activations and output["mask"] is mask
    assert len(activations) == 3 and mask.dtype == torch.bool
    assert mask.sum(1).tolist() == [len(sentence) + 2 for sentence in SENTENCES]


def test_boundaries_added_or_present():
    bounded = batch_to_ids([["<S>", *sentence, "</S>"] for sentence in SENTENCES])
    added, present = bilm()(IDS), bilm()(bounded, boundaries="present")
    assert torch.equal(added.mask, present.mask)
    assert (stacked(added) - stacked(present)).abs().max() < SAME_MODEL


def test_no_tokens_at_all():
    output = bilm()(torch.zeros(2, 0, 50, dtype=torch.int64))
    assert output.mask.tolist() == [[True, True]] * 2
    assert stacked(output).abs().sum() > 0
    none = bilm()(torch.zeros(0, 4, 50, dtype=torch.int64))
    assert stacked(none).shape == (3, 0, 6, 22)
    padding = bilm()(torch.zeros(2, 3, 50, dtype=torch.int64), boundaries="present")
    assert not padding.mask.any() and not stacked(padding).any()


@pytest.mark.parametrize("ids, boundaries, named", [
    (IDS.float(), "add", "ids"),
    (IDS.bool(), "add", "ids"),
    (IDS.numpy(), "add", "ids"),
    (IDS[0], "add", "ids"),
    (IDS[..., :49], "add", "ids"),
    (IDS + 300, "add", "ids"),
    (-IDS, "add", "ids"),
    (IDS.flip(1), "add", "ids"),
    (IDS, "both", "boundaries"),
])
def test_refuses(ids, boundaries, named):
    with pytest.raises(ValueError, match=f"^{named}: expected .* got "):
        bilm()(ids, boundaries)


@pytest.mark.parametrize("arguments", [{"state": "cold"}, {"precision": "low"}, {"backend": "cuda"}])
def test_refuses_arguments(arguments):
    with pytest.raises(ValueError, match=f"^{next(iter(arguments))}: expected one of"):
        bilm(**arguments)


def test_refuses_weights_of_other_options():
    with pytest.raises(ConfigurationError, match="CNN/W_cnn_0: expected shape .1, 1, 6, 3., found .1, 1, 5, 3."):
        BiLm(options(char_cnn={"embedding": {"dim": 6}}), weights(options()))


def test_weights_come_back_byte_for_byte():
    given = weights(options())
    model = bilm()
    back = model.weights()
    assert list(back) == list(given)
    assert all(back[name].tobytes() == given[name].tobytes() for name in given)
    with torch.no_grad():
        model._token_embedder.char_embed.zero_()
    assert given["char_embed"].any()


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
    found = model(IDS)
    for one, other in zip(found.activations, expected.activations):
        assert one.dtype == dtype
        assert torch.equal(one, other.to(dtype))
    assert all(each.dtype == torch.float32 for each in model._elmo_lstm._states)


def test_copies_and_pickles_keep_the_numbers():
    model = bilm()
    model(IDS)
    stored = io.BytesIO()
    torch.save(model, stored)
    stored.seek(0)
    twins = [copy.deepcopy(model), torch.load(stored, weights_only=False)]
    expected = stacked(model(IDS))
    for twin in twins:
        assert torch.equal(stacked(twin(IDS)), expected)


def test_two_models_do_not_meet():
    one, two = bilm(seed=1), bilm(SHAPES["four layers"], seed=2)
    alone = stacked(bilm(seed=1)(IDS))
    two(IDS)
    assert torch.equal(stacked(one(IDS)), alone)


def test_gradients_reach_every_weight():
    grads = []
    for backend in ("reference", "torch"):
        model = bilm(SHAPES["clips that fire"], backend=backend, requires_grad=True).double()
        sum(layer.sin().sum() for layer in model(IDS).activations).backward()
        grads.append({name: value.grad for name, value in model.named_parameters()})
    for name, expected in grads[0].items():
        assert expected.abs().sum() > 0, name
        assert torch.allclose(grads[1][name], expected, rtol=1e-8, atol=1e-10), name


def test_unique_rows():
    rows = torch.tensor([[5, 1], [2, 2], [5, 1], [1, 5], [2, 2]])
    unique, number = unique_rows(rows)
    assert len(unique) == 3
    assert torch.equal(unique[number], rows)
    words, number = unique_rows(rows[:, 0])
    assert len(words) == 3 and torch.equal(words[number], rows[:, 0])
    assert unique_rows(rows[:0])[0].shape == (0, 2)


def test_unique_rows_that_share_a_hash(monkeypatch):
    monkeypatch.setattr(batch_layout, "_multipliers", lambda count, device: torch.ones(count, dtype=torch.int64))
    rows = torch.tensor([[5, 1], [1, 5], [5, 1], [3, 3]])
    unique, number = unique_rows(rows)
    assert len(unique) == 3 and torch.equal(unique[number], rows)


def test_embed_tokens_equals_forward():
    packed, lengths = bilm().embed_tokens(SENTENCES)
    output = bilm()(IDS)
    assert lengths.tolist() == output.mask.sum(1).tolist()
    for one, other in zip(packed, output.activations):
        assert (one - other[output.mask]).abs().max() < SAME_MODEL
    assert isinstance(lengths, np.ndarray)


def test_without_fp32_weights_the_numbers_stay():
    whole, packed = bilm(backend="native", state="warm"), bilm(backend="native", state="warm", keep_fp32=False)
    assert torch.equal(stacked(packed(IDS)), stacked(whole(IDS)))
    held = sum(value.numel() for value in packed.parameters() if not value.is_meta)
    assert held < 0.4 * sum(value.numel() for value in whole.parameters())
    for call in (packed.weights, packed.state_dict, lambda: copy.deepcopy(packed)(IDS)):
        with pytest.raises(RuntimeError, match="weights: expected fp32 weights"):
            call()
    with pytest.raises(ConfigurationError, match="keep_fp32: expected True"):
        bilm(backend="torch", keep_fp32=False)


def test_fingerprints_differ_where_weights_differ():
    first, same, other = bilm(), bilm(), bilm(seed=1)
    before = first.fingerprint()
    assert before == same.fingerprint() != other.fingerprint() and len(before) == 32
    with torch.no_grad():
        first._elmo_lstm.B_0_0[3] += 1
    assert first.fingerprint() != before
