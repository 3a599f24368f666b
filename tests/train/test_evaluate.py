"""The fast perplexity against bilm-tf's protocol, a token of every row at a time, in NumPy."""

import numpy as np
import pytest

from elmo_fast.text.vocabulary import Vocabulary
from elmo_fast.train import evaluate
from elmo_fast.train.corpus import read_shards
from tests.support import plain_training as plain
from tests.support.plain import Counts
from tests.support.training import TINY, WORD_INPUT, make_config, model, write_corpus


def plain_losses(language_model, vocabulary, folder, rows):
    """Mean losses of batches of a step, [batches, D]."""
    config, weights, numbering = language_model.config, language_model.weights(), language_model.numbering(vocabulary)
    states, vectors, losses = plain.zero_states(config, rows), {}, []
    for batch in zip(*(plain.rows(plain.sentences(folder, bool(k)), rows, 1) for k in range(len(states)))):
        losses.append(np.zeros((len(states), rows)))
        for k, pairs in enumerate(batch):
            for row, ((token, target),) in enumerate(pairs):
                if token not in vectors:
                    vectors[token] = plain.token_vector(numbering.tokens([token])[0], weights, config)
                x, states[k][row] = plain.run_layers(vectors[token][None], states[k][row], k, weights, config, Counts())
                losses[-1][k, row] = plain.softmax_loss(x[0], vocabulary.word_to_id(target), weights)
    return np.mean(losses, axis=2)


@pytest.mark.parametrize("content, changes, rows", [
    (TINY, {}, 4), (TINY, {"bidirectional": False}, 3), (WORD_INPUT, {}, 5), (TINY, {}, 1), (WORD_INPUT, {}, 50)],
    ids=["characters", "one direction", "words", "one row", "fifty rows"])
def test_the_perplexity_is_the_plain_loops(tmp_path, content, changes, rows, monkeypatch):
    pattern, vocabulary_file = write_corpus(tmp_path, shards=2)
    vocabulary, shards = Vocabulary(vocabulary_file, validate_file=True), read_shards(pattern, "text")
    language_model = model(make_config(content, **changes))
    expected = plain_losses(language_model, vocabulary, tmp_path, rows)
    for steps in (1, 7, 16):
        monkeypatch.setattr(evaluate, "_STEPS", steps)
        found = evaluate.perplexity(language_model, shards, vocabulary, rows)
        assert found.total == pytest.approx(np.exp(expected.mean()), rel=1e-6) and found.batches == len(expected)
        assert found.by_direction == pytest.approx(tuple(np.exp(expected.mean(0))), rel=1e-6)
    with pytest.raises(ValueError, match="batch_size: expected at most the 50 sentences of the held-out text, got 51"):
        evaluate.perplexity(language_model, shards, vocabulary, 51)
