"""The loss, its gradients, an update and the perplexity against NumPy in float64 and torch's autograd."""

import numpy as np
import pytest
import torch

from elmo_fast.text.corpus import read_shards
from elmo_fast.text.vocabulary import Vocabulary
from elmo_fast.train import evaluate
from elmo_fast.train.optimizer import Replicas, Updater
from tests.support import plain_training as plain
from tests.support.grid import mostly_long
from tests.support.plain_elmo import PlainElmo
from tests.support.training import KINDS, make_config, model, update, write_batches, write_corpus


def set_up(kind, folder, **changes):
    language_model = model(make_config(KINDS[kind], **changes))
    updater = Updater(language_model, language_model.config.training, Replicas(torch.device("cpu")))
    return language_model, updater, write_batches(language_model, folder)


@pytest.mark.parametrize("kind, drops", [*((kind, False) for kind in KINDS), *(
    (kind, True) for kind in ("characters", "one layer", "three layers, no skip", "words"))])
def test_losses_over_carried_batches(kind, drops, tmp_path):
    """Dropout is on every layer's input and on the top; skip connections add the dropped input."""
    language_model, _, batches = set_up(kind, tmp_path)
    config, exact = language_model.config, PlainElmo(language_model.config.model, language_model.weights())
    state, plain_state = language_model.zero_state(config.training.batch_size), plain.zero_states(config)
    for batch in batches:
        drop = plain.Masks() if drops else None
        losses, state, _ = language_model.losses(batch, state, drop)
        expected, plain_state = plain.losses(exact, config, batch, plain_state, drop and drop.drawn)
        np.testing.assert_allclose(losses.detach().numpy(), expected, rtol=2e-6)
        assert not drops or len(drop.drawn) == config.model.lstm.n_layers + 2
    if batches[0].samples is not None:  # every batch has new samples
        assert len({tuple(samples.words[samples.drawn[0]].tolist()) for *_, samples, _ in batches}) == len(batches)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "tanh"])  # tanh clips all cells: no gradient
@pytest.mark.parametrize("clip", [10.0, 0.05])
def test_updates_are_adagrads_with_the_gradients_of_the_reference(kind, clip, tmp_path):
    """Squares are summed from 1 or from restored sums, and nothing is added to the root."""
    language_model, updater, batches = set_up(kind, tmp_path, all_clip_norm_val=clip)
    sums = {name: updater.optimizer.state[parameter]["sum"] for name, parameter in language_model.by_name().items()}
    assert all((total == 1).all() for total in sums.values())
    if kind in ("characters", "words"):
        sums = {name: total.uniform_(1, 5) for name, total in sums.items()}
    sums = {name: total.numpy().astype(np.float64) for name, total in sums.items()}
    for batch in batches if kind in ("characters", "words") else batches[:1]:
        weights, sums, gradients, norm = plain.adagrad(language_model, updater, batch, sums)
        assert (norm > clip) == (clip < 1)
        for name, gradient in gradients.items():
            actual, atol = language_model.weights()[name], 3e-7 + 2e-5 * abs(gradient).max()
            np.testing.assert_allclose(actual, weights[name], atol=atol, err_msg=name)
            total = updater.optimizer.state[language_model.by_name()[name]]["sum"]
            np.testing.assert_allclose(total, sums[name], rtol=3e-6, err_msg=name)
            assert abs(gradient).max() > 0, name


def test_adamw_decays_matrices_only_and_moves_unused_rows_too(tmp_path):
    language_model, updater, batches = set_up("characters", tmp_path, optimizer="adamw", weight_decay=0.1,
                                              learning_rate=0.01)
    before = language_model.weights()
    gradients = plain.gradients(before, language_model.config, batches[0])
    _, norm = update(language_model, updater, batches[0])
    for name, value in language_model.weights().items():
        gradient = gradients[name].numpy() * min(1, 10 / norm)
        decayed = before[name] * (1 - 0.01 * 0.1 * (value.ndim > 1))
        expected = decayed - 0.01 * gradient / (abs(gradient) + 1e-8)
        sure = abs(gradient) > 1e-4  # Adam's first step follows the sign, which rounding decides near 0
        np.testing.assert_allclose(value[sure], expected[sure], atol=1e-5, err_msg=name)
        np.testing.assert_allclose(value[gradient == 0], decayed[gradient == 0], atol=1e-6, err_msg=name)


def single_step_losses(language_model, vocabulary, folder, rows):
    """Mean losses of batches of a step, [batches, D]."""
    config, numbering = language_model.config, language_model.numbering(vocabulary)
    states, vectors, losses = plain.zero_states(config, rows), {}, []
    exact = PlainElmo(config.model, language_model.weights())
    for batch in zip(*(plain.rows(plain.sentences(folder, bool(k)), rows, 1) for k in range(len(states)))):
        losses.append(np.zeros((len(states), rows)))
        for k, pairs in enumerate(batch):
            for row, ((token, target),) in enumerate(pairs):
                if token not in vectors:
                    vectors[token] = exact.encode(numbering.tokens([token])[0])
                tops, states[k][row] = exact.run_direction(vectors[token][None], states[k][row], k)
                losses[-1][k, row] = plain.softmax_loss(tops[-1, 0], vocabulary.word_to_id(target), exact)
    return np.mean(losses, axis=2)


@pytest.mark.parametrize("kind, rows", mostly_long([
    ("characters", 4), ("one direction", 3), ("words", 5), ("characters", 1), ("words", 50)], quick=2))
def test_the_perplexity_is_that_of_the_plain_loop(tmp_path, kind, rows):
    pattern, vocabulary_file = write_corpus(tmp_path, shards=2)
    vocabulary, shards = Vocabulary(vocabulary_file, validate_file=True), read_shards(pattern, "text")
    language_model = model(make_config(KINDS[kind]))
    expected = single_step_losses(language_model, vocabulary, tmp_path, rows)
    result = evaluate.perplexity(language_model, shards, vocabulary, rows)
    assert result.total == pytest.approx(np.exp(expected.mean()), rel=1e-6) and result.batches == len(expected)
    assert result.by_direction == pytest.approx(tuple(np.exp(expected.mean(0))), rel=1e-6)
    with pytest.raises(ValueError, match="batch_size: expected at most the 50 sentences of the held-out text, got 51"):
        evaluate.perplexity(language_model, shards, vocabulary, 51)
