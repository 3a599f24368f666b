"""The fast perplexity against bilm-tf's protocol, a token of every row at a time, in NumPy."""

import numpy as np
import pytest

from elmo_fast.text import characters
from elmo_fast.text.vocabulary import Vocabulary
from elmo_fast.train import evaluate
from elmo_fast.train.corpus import read_shards
from tests.support import plain_training
from tests.support.plain import Counts, token_vector
from tests.support.training import TINY, WORD_INPUT, make_config, model, write_corpus


def plain_perplexity(language_model, vocabulary, folder, rows):
    """Exp of the mean over batches of a step of the mean of the directions' losses, the same by direction, batches."""
    config, weights, counts = language_model.config, language_model.weights(), Counts()
    directions = range(language_model.directions)
    batches = [plain_training.rows(plain_training.sentences(folder, reverse=bool(k)), rows, 1) for k in directions]
    states = plain_training.zero_states(config, rows)
    vectors, losses = {}, []
    for batch in zip(*batches):
        losses.append([])
        for k in directions:
            of_rows = []
            for row, ((token, target),) in enumerate(batch[k]):
                if token not in vectors:
                    vectors[token] = vector(token, weights, config, vocabulary)
                x, states[k][row] = plain_training.run_layers(vectors[token][None], states[k][row], k, weights, config,
                                                              counts)
                of_rows.append(plain_training.softmax_loss(x[0], vocabulary.word_to_id(target), weights))
            losses[-1].append(np.mean(of_rows))
    return np.exp(np.mean(losses)), np.exp(np.mean(losses, axis=0)), len(losses)


def vector(token, weights, config, vocabulary):
    if config.model.char_cnn is None:
        return weights["embedding"][vocabulary.word_to_id(token)].astype(np.float64)
    raw = characters.encode_tokens([token], config.model.char_cnn.max_characters_per_token)
    return token_vector(characters.to_model_ids(raw)[0], weights, config.model)


@pytest.mark.parametrize("content, changes, rows", [
    (TINY, {}, 4), (TINY, {"bidirectional": False}, 3), (WORD_INPUT, {}, 5), (TINY, {}, 1), (WORD_INPUT, {}, 50)],
    ids=["characters", "one direction", "words", "one row", "fifty rows"])
def test_the_perplexity_is_the_plain_loops(tmp_path, content, changes, rows, monkeypatch):
    pattern, vocabulary_file = write_corpus(tmp_path, shards=2)
    vocabulary = Vocabulary(vocabulary_file, validate_file=True)
    language_model = model(make_config(content, **changes))
    expected, by_direction, batches = plain_perplexity(language_model, vocabulary, tmp_path, rows)
    for steps in (1, 7, 16):
        monkeypatch.setattr(evaluate, "_STEPS", steps)
        found = evaluate.perplexity(language_model, read_shards(pattern, "text"), vocabulary, rows)
        assert found.total == pytest.approx(expected, rel=1e-6) and found.batches == batches
        assert found.by_direction == pytest.approx(tuple(by_direction), rel=1e-6)


def test_more_rows_than_sentences_are_refused(tmp_path):
    pattern, vocabulary_file = write_corpus(tmp_path, shards=2)
    with pytest.raises(ValueError, match="batch_size: expected at most the 50 sentences of the held-out text, got 51"):
        evaluate.perplexity(model(), read_shards(pattern, "text"), Vocabulary(vocabulary_file), 51)
