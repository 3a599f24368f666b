"""Hooks on AllenNLP's inner modules see its arguments and results, and what they return is used."""

import copy

import numpy as np
import pytest
import torch

import elmo_fast
from elmo_fast import batch_to_ids
from elmo_fast.compat import allennlp
from elmo_fast.compat.allennlp import ElmoEmbedder
from elmo_fast.testing import SAME_MODEL
from tests.support.migrating import runs

SENTENCES = [["The", "sea", "rose", "."], ["A"], [], ["dogs", "run"]]
B, T, P, LAYERS = 4, 4, 11, 2
CLASSES = pytest.mark.parametrize("make", [allennlp.Elmo, elmo_fast.Elmo])
IDS = batch_to_ids(SENTENCES)


def layers(elmo, ids=IDS, words=None):
    """The layers that the mixes get, [3, B, T + 2, 22], by a hook on the mix, a module whose call did not change."""
    seen = []
    handle = elmo.scalar_mix_0.register_forward_pre_hook(lambda _, given: seen.append(torch.stack(given[0])))
    elmo(ids, words)
    handle.remove()
    return seen[0]


def watch(module):
    """The arguments and result of every call of a module."""
    seen = []
    module.register_forward_hook(lambda _, given, result: seen.append((given, result)))
    return seen


@runs("`register_forward_hook`")
@CLASSES
@pytest.mark.parametrize("state", ["carry", "zero", "warm"])
def test_what_hooks_see_and_that_seeing_changes_nothing(files, make, state):
    watched, plain = make(*files, 1, dropout=0, state=state), make(*files, 1, dropout=0, state=state)
    bilm = watched._elmo_lstm
    tokens, lstm = watch(bilm._token_embedder), watch(bilm._elmo_lstm)
    for number, ids in enumerate((IDS, IDS[1:, :2], IDS)):
        found, expected = layers(watched, ids), layers(plain, ids)
        assert torch.allclose(found, expected, atol=SAME_MODEL)
        (given,), result = tokens[number]
        assert torch.equal(given, ids) and list(result) == ["mask", "token_embedding"]
        size = (len(ids), ids.shape[1] + 2)
        assert result["token_embedding"].shape == (*size, P) and result["mask"].shape == size
        assert result["mask"].dtype == torch.int64
        assert result["mask"].sum(1).tolist() == [len(row) + 2 for row in SENTENCES[-len(ids) :]] or number == 1
        assert torch.allclose(result["token_embedding"], expected[0, ..., :P], atol=SAME_MODEL)
        (vectors, mask), outputs = lstm[number]
        assert vectors is result["token_embedding"] and torch.equal(mask, result["mask"])
        assert outputs.shape == (LAYERS, *size, 2 * P) and torch.allclose(outputs, expected[1:], atol=SAME_MODEL)
    if state == "carry":
        for ours, others in zip(bilm._elmo_lstm._states, plain._elmo_lstm._elmo_lstm._states):
            assert torch.allclose(ours, others, atol=SAME_MODEL)


@CLASSES
def test_what_hooks_return_is_used(files, make):
    elmo = make(*files, 1, dropout=0, state="zero")
    bilm, plain = elmo._elmo_lstm, layers(elmo)
    handle = bilm._elmo_lstm.register_forward_hook(lambda _, given, result: 2 * result)
    found = layers(elmo)
    assert torch.allclose(found[0], plain[0]) and torch.allclose(found[1:], 2 * plain[1:], atol=SAME_MODEL)
    handle.remove()
    handle = bilm._elmo_lstm.register_forward_pre_hook(lambda _, given: (given[0] * 0, given[1]))
    found = layers(elmo)
    assert torch.allclose(found[0], plain[0])  # AllenNLP's token layer is what the embedder returned
    assert not torch.allclose(found[1], plain[1], atol=1e-2)
    handle.remove()
    handle = bilm._token_embedder.register_forward_hook(
        lambda _, given, result: {**result, "token_embedding": torch.zeros_like(result["token_embedding"])})
    zeroed = layers(elmo)
    assert not zeroed[0].any() and torch.allclose(zeroed[1:], found[1:], atol=SAME_MODEL)
    handle.remove()
    other = batch_to_ids([["Other", "words", "stand", "here"], ["now"], [], ["and", "here"]])
    handle = bilm._token_embedder.register_forward_pre_hook(lambda _, given: (other,))
    assert torch.allclose(layers(elmo), layers(make(*files, 1, dropout=0, state="zero"), other), atol=SAME_MODEL)
    handle.remove()
    assert torch.equal(layers(elmo), plain)


def test_a_forward_that_was_set_is_called(files):
    elmo, seen = allennlp.Elmo(*files, 1, dropout=0, state="zero"), []
    plain, lstm = layers(elmo), elmo._elmo_lstm._elmo_lstm
    forward = lstm.forward
    lstm.forward = lambda *given: seen.append(given) or -forward(*given)
    assert torch.allclose(layers(elmo)[1:], -plain[1:], atol=SAME_MODEL) and seen[0][0].shape == (B, T + 2, P)


def test_the_bilm_itself_is_called_with_two_arguments(files):
    elmo, seen = allennlp.Elmo(*files, 1, dropout=0, state="zero"), []
    plain = layers(elmo)
    elmo._elmo_lstm.register_forward_pre_hook(lambda _, given: (seen.append(given), given)[1])
    elmo._elmo_lstm.register_forward_hook(lambda _, given, result: {
        **result, "activations": [2 * layer for layer in result["activations"]]})
    assert torch.allclose(layers(elmo), 2 * plain) and len(seen[0]) == 2
    assert torch.equal(seen[0][0], IDS) and seen[0][1] is None


@CLASSES
@pytest.mark.filterwarnings("ignore:Using a non-full backward hook")
@pytest.mark.parametrize("register", ["register_full_backward_hook", "register_backward_hook"])
def test_backward_hooks(files, make, register):
    def gradients(hook):
        elmo = make(*files, 1, dropout=0, requires_grad=True, state="zero")
        if hook:
            getattr(elmo._elmo_lstm._elmo_lstm, register)(hook)
        elmo(IDS)["elmo_representations"][0].square().sum().backward()
        return {name: value.grad for name, value in elmo._elmo_lstm.named_parameters()}

    seen, plain = [], gradients(None)
    watched = gradients(lambda _, inputs, outputs: seen.append((inputs, outputs)))
    for name, expected in plain.items():
        assert torch.allclose(watched[name], expected, atol=1e-5, rtol=1e-4), name
    (inputs, outputs), = seen
    assert outputs[0].shape == (LAYERS, B, T + 2, 2 * P)
    assert inputs[0].shape == ((B, T + 2, P) if "full" in register else outputs[0].shape)
    if "full" in register:
        zeroed = gradients(lambda _, inputs, outputs: (inputs[0] * 0, inputs[1]))
        assert zeroed["_elmo_lstm.W_0_0_1"].any()
        assert torch.allclose(zeroed["_elmo_lstm.W_0_0_1"], plain["_elmo_lstm.W_0_0_1"], atol=1e-5, rtol=1e-4)
        assert not torch.allclose(zeroed["_token_embedder.W_proj"], plain["_token_embedder.W_proj"], rtol=1e-2)


def test_single_layers(files):
    """`forward_layers` and `backward_layers`, called with the longest sentences first."""
    elmo, plain = (allennlp.Elmo(*files, 1, dropout=0) for _ in range(2))
    lstm = elmo._elmo_lstm._elmo_lstm
    seen = watch(lstm.forward_layers[0]), watch(lstm.backward_layers[1])
    for number, ids in enumerate((IDS, IDS[1:])):
        expected = layers(plain, ids)
        assert torch.allclose(layers(elmo, ids), expected, atol=SAME_MODEL)
        rows = [0, 3, 1, 2] if number == 0 else [2, 0, 1]  # the longest first
        for cell in seen:
            (x, lengths, state), (outputs, (h, c)) = cell[number]
            assert x.shape == outputs.shape == (len(ids), max(lengths), P) and (state is None) == (number == 0)
            assert lengths.tolist() == sorted(((ids > 0).any(2).sum(1) + 2).tolist(), reverse=True)
            assert h.shape == (1, len(ids), P) and c.shape[:2] == h.shape[:2]
        outputs = seen[0][number][1][0]
        assert torch.allclose(outputs, expected[1, rows, : outputs.shape[1], :P], atol=SAME_MODEL)
    for ours, others in zip(lstm._states, plain._elmo_lstm._elmo_lstm._states):
        assert torch.allclose(ours, others, atol=SAME_MODEL)
    lstm.forward_layers[1].register_forward_hook(lambda _, given, result: (result[0] * 0, result[1]))
    before = plain._elmo_lstm._elmo_lstm._states
    elmo._elmo_lstm._elmo_lstm._states = before
    expected, found = layers(plain), layers(elmo)
    assert torch.allclose(found[2, ..., P:], expected[2, ..., P:], atol=SAME_MODEL)
    assert torch.allclose(found[2, ..., :P], expected[1, ..., :P], atol=SAME_MODEL)  # the skip connection alone
    again = copy.deepcopy(elmo)
    assert again._elmo_lstm._elmo_lstm.forward_layers[0].W_0 is again._elmo_lstm._elmo_lstm.W_0_0_0
    assert list(again.state_dict()) == list(plain.state_dict())
    with torch.no_grad():
        lstm.W_0_0_0.mul_(2)
    lstm.double()
    assert torch.equal(lstm.forward_layers[0].W_0, lstm.W_0_0_0) and lstm.forward_layers[0].W_0.dtype == torch.float64


def test_the_embedders_batches(files):
    """`ElmoEmbedder` runs the module where there are hooks on it, with the same vectors."""
    hooked, plain = ElmoEmbedder(*files), ElmoEmbedder(*files)
    seen = watch(hooked.elmo_bilm._elmo_lstm)
    for batch in (SENTENCES, SENTENCES[:2]):
        for one, other in zip(hooked.embed_batch(batch), plain.embed_batch(batch), strict=True):
            np.testing.assert_allclose(one, other, rtol=0, atol=SAME_MODEL)
    for one, other in zip(hooked.embed_sentences(SENTENCES, 2), plain.embed_sentences(SENTENCES, 2), strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=SAME_MODEL)
    assert [result.shape[1] for _, result in seen] == [4, 2, 2, 2]
    handle = hooked.elmo_bilm._elmo_lstm.register_forward_hook(lambda _, given, result: result * 0)
    assert not hooked.embed_sentence(["a"])[1:].any()
    handle.remove()
