"""Arguments and inputs that models refuse: the error, the argument's name and the expectation."""

import pytest
import torch

from elmo_fast import BiLm, ConfigurationError, Elmo, ScalarMix, TokenTable, batch_to_ids, build_token_table
from tests.support.models import SENTENCES, bilm, options, weights, word_bilm

IDS = batch_to_ids(SENTENCES)
NUMBERS = (IDS > 0).any(2).long()


def elmo(count=1, **arguments):
    return Elmo(None, None, count, module=bilm(), **arguments)


def table(*shape, words=None, dtype=torch.float32, **arguments):
    return TokenTable(torch.zeros(shape, dtype=dtype), words, **arguments)


@pytest.mark.parametrize("call, message", [
    # biLM
    *((lambda ids=ids: bilm()(ids), "ids: expected .* got ") for ids in (
        IDS.float(), IDS.bool(), IDS.numpy(), IDS[0], IDS[..., :49], IDS + 300, -IDS, IDS.flip(1))),
    (lambda: bilm()(IDS, "both"), "boundaries: expected one of add, present, got 'both'"),
    *((lambda name=name: bilm(**{name: "no"}), f"{name}: expected one of .* got 'no'")
      for name in ("state", "precision", "backend")),
    (lambda: bilm()(IDS, word_inputs=NUMBERS),
     "word_inputs: expected None, since no words are cached and there is no token"),
    # Elmo and its mix
    *((lambda count=count: elmo(count), "num_output_representations: expected an integer of at least 1")
      for count in (0, True, 1.0)),
    (lambda: elmo(scalar_mix_parameters=[1.0]), "initial_scalar_parameters: expected 3 numbers"),
    (lambda: ScalarMix(3)([IDS] * 2), "tensors: expected 3"),
    (lambda: ScalarMix(1, do_layer_norm=True)([IDS]), "mask: expected a tensor"),
    *((lambda numbers=numbers: elmo(vocab_to_cache=["", "The"])(IDS, numbers), message) for numbers, message in (
        (-NUMBERS, "word_inputs: expected word numbers"), (NUMBERS.float(), "word_inputs: expected word numbers"),
        (NUMBERS[:, :2], "word_inputs: expected a number for each token of ids"),
        (NUMBERS.flip(1), "word_inputs: expected every sentence's words before its padding"))),
    # token table
    (lambda: table(2, 5, words=["a"]), "words: expected one for each of 2 vectors, got 1"),
    (lambda: table(2, 5, dtype=torch.float64), "vectors: expected float32 or float16 of shape"),
    (lambda: table(5), "vectors: expected float32 or float16 of shape"),
    (lambda: table(1, 5, precision="lowest"), "precision: expected one of highest, high, medium, low, got 'lowest'"),
    (lambda: table(1, 5, unknown="mask"), "unknown: expected one of encode, error, unk, got 'mask'"),
])
def test_value_error(call, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        call()


@pytest.mark.parametrize("call, message", [
    (lambda: BiLm(options(char_cnn={"embedding": {"dim": 6}}), weights(options())),
     "weights: CNN/W_cnn_0: expected shape .1, 1, 6, 3., found .1, 1, 5, 3."),
    (lambda: Elmo("a", "b", 1, module=bilm()), "module: expected options_file and weight_file to be None"),
    (lambda: Elmo("nowhere.json", None, 1), "weight_file: expected a path or URL, got None"),
    (lambda: elmo(token_table="t.hdf5"), "token_table: expected None beside module"),
    (lambda: table(1, 5, words=["a"], unknown="unk"), "unknown: expected a token table with the word <UNK>"),
    (lambda: build_token_table(word_bilm(), ["a"]), "tokens: expected word ids .this model reads no characters.,"),
    (lambda: word_bilm()(torch.ones(1, 2, dtype=torch.long)), "boundaries: expected 'present' for word ids of a model"),
])
def test_configuration_error(call, message):
    with pytest.raises(ConfigurationError, match=f"^{message}"):
        call()
