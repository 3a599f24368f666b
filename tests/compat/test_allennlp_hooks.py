"""Hooks on AllenNLP's inner modules get AllenNLP's arguments and results, and their results are used."""

import copy

import pytest
import torch

import elmo_fast
from elmo_fast import batch_to_ids
from elmo_fast.compat import allennlp
from elmo_fast.testing import SAME_MODEL

SENTENCES = [["The", "sea", "rose", "."], ["A"], [], ["dogs", "run"]]
B, T, P, LAYERS = 4, 4, 11, 2
CLASSES = pytest.mark.parametrize("make", [allennlp.Elmo, elmo_fast.Elmo])
IDS = batch_to_ids(SENTENCES)


def layers(elmo, ids=IDS, words=None):
    """The layers that the scalar mix reads, [3, B, T + 2, 22], recorded by a hook on the mix."""
    calls = []
    handle = elmo.scalar_mix_0.register_forward_pre_hook(lambda _, inputs: calls.append(torch.stack(inputs[0])))
    elmo(ids, words)
    handle.remove()
    return calls[0]


def watch(module):
    """The arguments and result of every call of a module."""
    calls = []
    module.register_forward_hook(lambda _, inputs, result: calls.append((inputs, result)))
    return calls


@CLASSES
@pytest.mark.parametrize("state", ["carry", "zero", "warm"])
def test_hooks_get_arguments_and_results_and_change_nothing(files, make, state):
    watched, plain = make(*files, 1, dropout=0, state=state), make(*files, 1, dropout=0, state=state)
    bilm = watched._elmo_lstm
    tokens, lstm = watch(bilm._token_embedder), watch(bilm._elmo_lstm)
    for number, ids in enumerate((IDS, IDS[1:, :2], IDS)):
        actual, expected = layers(watched, ids), layers(plain, ids)
        assert torch.allclose(actual, expected, atol=SAME_MODEL)
        (inputs,), result = tokens[number]
        assert torch.equal(inputs, ids) and list(result) == ["mask", "token_embedding"]
        size = (len(ids), ids.shape[1] + 2)
        assert result["token_embedding"].shape == (*size, P) and result["mask"].shape == size
        assert result["mask"].dtype == torch.int64
        assert result["mask"].sum(1).tolist() == [len(row) + 2 for row in SENTENCES[-len(ids) :]] or number == 1
        assert torch.allclose(result["token_embedding"], expected[0, ..., :P], atol=SAME_MODEL)
        (vectors, mask), outputs = lstm[number]
        assert vectors is result["token_embedding"] and torch.equal(mask, result["mask"])
        assert outputs.shape == (LAYERS, *size, 2 * P) and torch.allclose(outputs, expected[1:], atol=SAME_MODEL)
    if state == "carry":
        for ours, theirs in zip(bilm._elmo_lstm._states, plain._elmo_lstm._elmo_lstm._states):
            assert torch.allclose(ours, theirs, atol=SAME_MODEL)


@CLASSES
def test_results_of_hooks_are_used(files, make):
    elmo = make(*files, 1, dropout=0, state="zero")
    bilm, plain = elmo._elmo_lstm, layers(elmo)
    handle = bilm._elmo_lstm.register_forward_hook(lambda _, inputs, result: 2 * result)
    actual = layers(elmo)
    assert torch.allclose(actual[0], plain[0]) and torch.allclose(actual[1:], 2 * plain[1:], atol=SAME_MODEL)
    handle.remove()
    handle = bilm._elmo_lstm.register_forward_pre_hook(lambda _, inputs: (inputs[0] * 0, inputs[1]))
    actual = layers(elmo)
    assert torch.allclose(actual[0], plain[0])  # AllenNLP's token layer is the embedder's result
    assert not torch.allclose(actual[1], plain[1], atol=1e-2)
    handle.remove()
    handle = bilm._token_embedder.register_forward_hook(
        lambda _, inputs, result: {**result, "token_embedding": torch.zeros_like(result["token_embedding"])})
    zeroed = layers(elmo)
    assert not zeroed[0].any() and torch.allclose(zeroed[1:], actual[1:], atol=SAME_MODEL)
    handle.remove()
    other_ids = batch_to_ids([["Other", "words", "stand", "here"], ["now"], [], ["and", "here"]])
    handle = bilm._token_embedder.register_forward_pre_hook(lambda _, inputs: (other_ids,))
    assert torch.allclose(layers(elmo), layers(make(*files, 1, dropout=0, state="zero"), other_ids), atol=SAME_MODEL)
    handle.remove()
    assert torch.equal(layers(elmo), plain)


def test_a_replaced_forward_is_called(files):
    elmo, calls = allennlp.Elmo(*files, 1, dropout=0, state="zero"), []
    plain, lstm = layers(elmo), elmo._elmo_lstm._elmo_lstm
    forward = lstm.forward
    lstm.forward = lambda *inputs: calls.append(inputs) or -forward(*inputs)
    assert torch.allclose(layers(elmo)[1:], -plain[1:], atol=SAME_MODEL) and calls[0][0].shape == (B, T + 2, P)


def test_the_bilm_itself_is_called_with_two_arguments(files):
    elmo, calls = allennlp.Elmo(*files, 1, dropout=0, state="zero"), []
    plain = layers(elmo)
    elmo._elmo_lstm.register_forward_pre_hook(lambda _, inputs: (calls.append(inputs), inputs)[1])
    elmo._elmo_lstm.register_forward_hook(lambda _, inputs, result: {
        **result, "activations": [2 * layer for layer in result["activations"]]})
    assert torch.allclose(layers(elmo), 2 * plain) and len(calls[0]) == 2
    assert torch.equal(calls[0][0], IDS) and calls[0][1] is None


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

    calls, plain = [], gradients(None)
    watched = gradients(lambda _, inputs, outputs: calls.append((inputs, outputs)))
    for name, expected in plain.items():
        assert torch.allclose(watched[name], expected, atol=1e-5, rtol=1e-4), name
    (inputs, outputs), = calls
    assert outputs[0].shape == (LAYERS, B, T + 2, 2 * P)
    assert inputs[0].shape == ((B, T + 2, P) if "full" in register else outputs[0].shape)
    if "full" in register:
        zeroed = gradients(lambda _, inputs, outputs: (inputs[0] * 0, inputs[1]))
        of_lstm, of_tokens = "_elmo_lstm.forward_layer_1.input_linearity.weight", "_token_embedder._projection.weight"
        assert zeroed[of_lstm].any() and torch.allclose(zeroed[of_lstm], plain[of_lstm], atol=1e-5, rtol=1e-4)
        assert not torch.allclose(zeroed[of_tokens], plain[of_tokens], rtol=1e-2)


def test_single_layers(files):
    """`forward_layers` and `backward_layers`, called with the longest sentences first."""
    elmo, plain = (allennlp.Elmo(*files, 1, dropout=0) for _ in range(2))
    lstm = elmo._elmo_lstm._elmo_lstm
    calls = watch(lstm.forward_layers[0]), watch(lstm.backward_layers[1])
    for number, ids in enumerate((IDS, IDS[1:])):
        expected = layers(plain, ids)
        assert torch.allclose(layers(elmo, ids), expected, atol=SAME_MODEL)
        rows = [0, 3, 1, 2] if number == 0 else [2, 0, 1]  # the longest first
        for cell in calls:
            (x, lengths, state), (outputs, (h, c)) = cell[number]
            assert x.shape == outputs.shape == (len(ids), max(lengths), P) and (state is None) == (number == 0)
            assert lengths.tolist() == sorted(((ids > 0).any(2).sum(1) + 2).tolist(), reverse=True)
            assert h.shape == (1, len(ids), P) and c.shape[:2] == h.shape[:2]
        outputs = calls[0][number][1][0]
        assert torch.allclose(outputs, expected[1, rows, : outputs.shape[1], :P], atol=SAME_MODEL)
    for ours, theirs in zip(lstm._states, plain._elmo_lstm._elmo_lstm._states):
        assert torch.allclose(ours, theirs, atol=SAME_MODEL)
    lstm.forward_layers[1].register_forward_hook(lambda _, inputs, result: (result[0] * 0, result[1]))
    before = plain._elmo_lstm._elmo_lstm._states
    elmo._elmo_lstm._elmo_lstm._states = before
    expected, actual = layers(plain), layers(elmo)
    assert torch.allclose(actual[2, ..., P:], expected[2, ..., P:], atol=SAME_MODEL)
    assert torch.allclose(actual[2, ..., :P], expected[1, ..., :P], atol=SAME_MODEL)  # the skip connection alone
    clone = copy.deepcopy(elmo)
    assert clone._elmo_lstm._elmo_lstm.forward_layers[0] is clone._elmo_lstm._elmo_lstm.forward_layer_0
    assert list(clone.state_dict()) == list(plain.state_dict())
