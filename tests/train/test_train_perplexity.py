"""The fast perplexity against bilm-tf's protocol, one token of every row at a time, in NumPy."""

import numpy as np
import pytest

from elmo_fast.text.vocabulary import Vocabulary
from elmo_fast.train import evaluate
from elmo_fast.train.evaluate import perplexity
from elmo_fast.train.corpus import read_shards
from tests.support import plain
from tests.train.test_train_loss import plain_softmax_loss, zero_states
from tests.train.test_train_stream import plain_rows, plain_sentences
from tests.support.training import TINY, WORD_INPUT, model, plan, write_corpus


def naive(language_model, vocabulary, folder, rows):
    """Exp of the mean over batches of one step of the mean of the directions' losses, and that of each direction."""
    of, weights = language_model.config, language_model.weights()
    lstm, directions, counts = of.model.lstm, range(language_model.directions), plain.Counts()
    batches = [plain_rows(plain_sentences(folder, reverse=bool(k)), rows, 1) for k in directions]
    states = [[list(row) for row in each] for each in zero_states(of)]
    states = [[list(states[k][0]) for _ in range(rows)] for k in directions]
    vectors, losses = {}, []
    for batch in zip(*batches):
        losses.append([])
        for k in directions:
            one = []
            for row, ((token, target),) in enumerate(batch[k]):
                if token not in vectors:
                    vectors[token] = vector(token, weights, of, vocabulary)
                x = vectors[token]
                for layer in range(lstm.n_layers):
                    name = f"RNN_{k}/RNN/MultiRNNCell/Cell{layer}/LSTMCell"
                    w, b, w_p = (weights[f"{name}/{leaf}"].astype(np.float64) for leaf in ("W_0", "B", "W_P_0"))
                    out, states[k][row][layer] = plain.run_direction(x[None], states[k][row][layer], w, b, w_p, of.model,
                                                                     counts)
                    x = out[0] + x if layer and lstm.use_skip_connections else out[0]
                one.append(plain_softmax_loss(x, vocabulary.word_to_id(target), weights, None, k, 0))
            losses[-1].append(np.mean(one))
    return np.exp(np.mean(losses)), np.exp(np.mean(losses, axis=0)), len(losses)


def vector(token, weights, of, vocabulary):
    from elmo_fast.text import characters

    if of.model.char_cnn is None:
        return weights["embedding"][vocabulary.word_to_id(token)].astype(np.float64)
    raw = characters.encode_tokens([token], of.model.char_cnn.max_characters_per_token)
    return plain.token_vector(characters.to_model_ids(raw)[0], weights, of.model)


@pytest.mark.parametrize("content, changes, rows", [(TINY, {}, 4), (TINY, {"bidirectional": False}, 3),
                                                    (WORD_INPUT, {}, 5), (TINY, {}, 1), (WORD_INPUT, {}, 50)], ids=str)
def test_it_is_the_naive_loops_number(tmp_path, content, changes, rows, monkeypatch):
    pattern, vocabulary_file = write_corpus(tmp_path, shards=2)
    vocabulary = Vocabulary(vocabulary_file, validate_file=True)
    language_model = model(plan(content, words=28, **changes))
    expected, by_direction, batches = naive(language_model, vocabulary, tmp_path, rows)
    for steps in (1, 7, 16):
        monkeypatch.setattr(evaluate, "_STEPS", steps)
        found = perplexity(language_model, read_shards(pattern, "text"), vocabulary, rows)
        assert found.total == pytest.approx(expected, rel=1e-6) and found.batches == batches
        assert found.by_direction == pytest.approx(tuple(by_direction), rel=1e-6)


def test_more_rows_than_sentences_are_refused(tmp_path):
    pattern, vocabulary_file = write_corpus(tmp_path, shards=2)
    with pytest.raises(ValueError, match="batch_size: expected at most the 50 sentences of the held-out text, got 51"):
        perplexity(model(plan(words=28)), read_shards(pattern, "text"), Vocabulary(vocabulary_file), 51)
