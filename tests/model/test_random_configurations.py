"""`BiLm` and `Elmo` of random configurations against the plain float64 model: layers, states, mixtures, gradients."""

import contextlib
import json

import numpy as np
import pytest
import torch

from elmo_fast import BiLm, Elmo, batch_to_ids, write_weights
from elmo_fast.compat import allennlp
from elmo_fast.testing import AGAINST_FLOAT64, GRADIENT_AGAINST_FLOAT64
from tests.support.configurations import draw
from tests.support.engines import isa
from tests.support.op_cases import threads
from tests.support.plain_elmo import PlainElmo, mixture, padded

LIMIT = AGAINST_FLOAT64["ieee"]
SEEDS = [pytest.param(seed, marks=() if seed < 4 else pytest.mark.long) for seed in range(180)]


@contextlib.contextmanager
def running_as(configuration):
    """Set the configuration's instruction set and number of threads within the block."""
    with threads(configuration.threads), isa(configuration.isa):
        yield


def check(name, actual, expected, limit=LIMIT):
    """Check the relative Frobenius error; it must be 0 where zeros are expected."""
    assert actual.shape == expected.shape, name
    error, size = ((values.detach().double()).norm() for values in (actual - expected, expected))
    assert error <= limit * size, f"{name}: {float(error)} of {float(size)}"


def plain_model(case, trained=False):
    return PlainElmo(case.options, case.weights, case.state, case.warm_text, trained)


@pytest.mark.parametrize("seed", SEEDS)
@torch.no_grad()
def test_layers_and_states(seed):
    """Every second configuration has the boundaries in its ids and may have rows without tokens."""
    case = draw(seed)
    exact, size = plain_model(case), case.options.char_cnn.max_characters_per_token
    bilm = BiLm(case.options, case.weights, state=case.state, warm_text=case.warm_text, backend=case.backend)
    for number, batch in enumerate(case.batches):
        sentences, boundaries = batch, "add"
        if seed % 2:
            sentences = [None if not sentence and (row + number) % 2 else sentence
                         for row, sentence in enumerate(batch)]
            batch = [[] if sentence is None else ["<S>", *sentence, "</S>"] for sentence in sentences]
            boundaries = "present"
        expected = exact.batch(sentences)
        with running_as(case):
            activations, mask = bilm(batch_to_ids(batch, size), boundaries=boundaries)
        lengths = [0 if layers is None else layers.shape[1] for layers in expected]
        assert mask.tolist() == [[at < length for at in range(max(lengths))] for length in lengths]
        for layer, actual in enumerate(activations) if any(lengths) else ():
            assert not actual[~mask].any()
            check(f"layer {layer} of batch {number}", actual, padded(
                [layers if layers is None else layers[layer] for layers in expected], max(lengths)))
        if case.state != "carry":
            assert bilm._elmo_lstm._states is None
            continue
        for name, states, exact_states in zip("hc", bilm._elmo_lstm._states, exact.states(), strict=True):
            for layer, values in enumerate(states):
                check(f"{name} of layer {layer} after batch {number}", values, exact_states[layer])


@pytest.mark.parametrize("seed", SEEDS)
def test_mixtures_and_gradients(seed, tmp_path):
    """With our class and AllenNLP's. Cached words are looked up by number, other words by their characters."""
    case = draw(seed)
    elmo, exact = make_elmo(case, (Elmo, allennlp.Elmo)[seed % 2], tmp_path), plain_model(
        case, case.elmo["requires_grad"])
    numbers, mixes = cache_words(exact, case.elmo["vocab_to_cache"]), set_mixtures(elmo, seed)
    for number, batch in enumerate(case.batches):
        ids, expected = batch_to_ids(batch, case.options.char_cnn.max_characters_per_token), exact.batch(batch)
        words = [torch.tensor([numbers.get(token, len(numbers) + 1) for token in sentence]) for sentence in batch]
        lengths = torch.tensor([len(sentence) + 2 * case.elmo["keep_sentence_boundaries"] for sentence in batch])
        with running_as(case):
            output = elmo(ids, padded(words, ids.shape[1]).long() if numbers else None)
            loss(output["elmo_representations"], seed + number)
        assert torch.equal(output["mask"], (torch.arange(max(lengths)) < lengths[:, None]).long())
        mixtures = [plain_mixture(expected, *mix, case.elmo, max(lengths)) for mix in mixes]
        loss(mixtures, seed + number)
        for actual, mixed in zip(output["elmo_representations"], mixtures, strict=True):
            check(f"a mixture of batch {number}", actual, mixed)
    for name, (actual, expected, trained) in gradients(elmo, exact, mixes).items():
        assert trained or actual is None, name
        actual = torch.zeros_like(expected) if actual is None else actual
        check(f"gradient of {name}", actual, expected, GRADIENT_AGAINST_FLOAT64)


def make_elmo(case, module, folder):
    """An `Elmo` of the configuration, read from files."""
    (folder / "options.json").write_text(json.dumps(case.options.to_dict()))
    write_weights(folder / "weights.hdf5", case.weights)
    elmo = module(folder / "options.json", folder / "weights.hdf5", dropout=0, state=case.state, backend=case.backend,
                  **case.elmo)
    elmo._elmo_lstm.warm_text = case.warm_text
    return elmo


def cache_words(exact, words):
    """Cache the vectors of words and boundaries. Returns the number of each word, where 0 is padding."""
    if words is None:
        return {}
    boundaries = dict(zip(("begin", "end"), exact.boundaries))
    vectors = {name: exact.token_vector(token).detach() for name, token in boundaries.items()}
    for word in words[1:]:
        vectors[word] = exact.token_vector(word).detach().requires_grad_(exact.weights["char_embed"].requires_grad)
    exact.cached, exact.boundaries = vectors, tuple(boundaries)
    return {word: number for number, word in enumerate(words) if number}


def plain_mixture(layers, scalars, gamma, arguments, length):
    """The mixture of the sentences' layers that `Elmo` returns with these arguments: [B, length, 2 P]."""
    mixed = mixture(layers, scalars, gamma, arguments["do_layer_norm"])
    return padded([values if arguments["keep_sentence_boundaries"] else values[1:-1] for values in mixed], length)


def loss(mixtures, seed):
    """Add the gradients of squared distances from random targets, with random factors."""
    shape, generator = mixtures[0].shape, np.random.default_rng(seed)
    factors, targets = (torch.from_numpy(values).to(mixtures[0])
                        for values in (generator.random(shape), generator.normal(size=shape)))
    if mixtures[0].requires_grad:
        sum((factors * (mixed - targets).square()).sum() for mixed in mixtures).backward()


def set_mixtures(elmo, seed):
    """Set random weights of trainable mixtures. Returns the weights in float64: (scalars [L + 1], gamma [1])."""
    generator, mixes = torch.Generator().manual_seed(seed), []
    for k in range(elmo._mixes):
        mix = getattr(elmo, f"scalar_mix_{k}")
        if mix.gamma.requires_grad:
            for parameter in mix.parameters():
                torch.nn.init.normal_(parameter, generator=generator)
        mixes.append(tuple(values.detach().double().requires_grad_(mix.gamma.requires_grad)
                           for values in (torch.cat(list(mix.scalar_parameters)), mix.gamma)))
    return mixes


def gradients(elmo, exact, mixes):
    """Our gradient, the plain model's, and whether it is trained, by name."""
    bilm = elmo._elmo_lstm
    by_dataset = {name: gradient_of(leaf).numpy() for name, leaf in exact.weights.items()}
    expected = BiLm(bilm.options, by_dataset).state_dict()
    for name, value in expected.items():
        if name.endswith("state_linearity.bias"):
            value.chunk(4)[1].sub_(1)  # of the conversion of weights, not of gradients
    trained = all(leaf.requires_grad for leaf in exact.weights.values())
    found = {name: (bilm.get_parameter(name).grad, value, trained) for name, value in expected.items()}
    pairs = {}
    if bilm._word_embedding is not None:
        grad = bilm._word_embedding.weight.grad
        words = [word for word in exact.cached if word not in exact.boundaries]
        pairs |= {word: (grad[k], exact.cached[word]) for k, word in enumerate(words, 1) if grad is not None}
    for k, leaves in enumerate(mixes):
        mix = getattr(elmo, f"scalar_mix_{k}")
        of_scalars = [scalar.grad for scalar in mix.scalar_parameters]
        pairs[f"scalars {k}"] = None if of_scalars[0] is None else torch.cat(of_scalars), leaves[0]
        pairs[f"gamma {k}"] = mix.gamma.grad, leaves[1]
    return found | {name: (grad, gradient_of(leaf), leaf.requires_grad) for name, (grad, leaf) in pairs.items()}


def gradient_of(leaf):
    return torch.zeros_like(leaf).detach() if leaf.grad is None else leaf.grad
