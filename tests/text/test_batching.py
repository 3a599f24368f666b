import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from elmo_fast import Batcher, TokenBatcher, batch_to_ids

WORDS = ["<S>", "</S>", "<UNK>", "the", "cat"]
TOKENS = st.text(st.characters(exclude_categories=()), max_size=12) | st.sampled_from(["<S>", "</S>", "the"])
BATCHES = st.lists(st.lists(TOKENS, max_size=4), min_size=1, max_size=4)


@pytest.fixture(scope="module")
def vocab_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("vocabulary") / "vocab.txt"
    path.write_text("\n".join(WORDS), encoding="utf-8")
    return path


def token_ids(token, size):
    """Model ids of a token, byte by byte."""
    special = {"<S>": [257], "</S>": [258]}
    body = special.get(token, [byte + 1 for byte in token.encode("utf-8", "ignore")][: size - 2])
    return [259, *body, 260] + [261] * (size - 2 - len(body))


def padded(batch, size):
    longest = max(map(len, batch))
    return [[token_ids(token, size) for token in sentence] + [[0] * size] * (longest - len(sentence))
            for sentence in batch]


@given(BATCHES, st.integers(3, 20))
@example([[], []], 50)
def test_batch_to_ids_equals_a_loop_over_bytes(batch, size):
    ids = batch_to_ids(batch, size)
    assert ids.dtype == torch.int64 and ids.shape == (len(batch), max(map(len, batch)), size)
    assert ids.tolist() == padded(batch, size)
    assert torch.equal(batch_to_ids(batch), batch_to_ids((tuple(sentence) for sentence in batch), 50))


@given(batch=BATCHES)
def test_batchers_add_boundaries_to_every_sentence(vocab_file, batch):
    bounded = [["<S>", *sentence, "</S>"] for sentence in batch]
    ids = Batcher(vocab_file, 9).batch_sentences(batch)
    assert ids.dtype == np.int64 and ids.tolist() == padded(bounded, 9)
    ids, longest = TokenBatcher(vocab_file).batch_sentences(batch), max(map(len, bounded))
    expected = [[WORDS.index(word) + 1 if word in WORDS else 3 for word in sentence] for sentence in bounded]
    assert ids.dtype == np.int64 and ids.tolist() == [row + [0] * (longest - len(row)) for row in expected]


def test_a_batch_may_be_an_array():
    assert torch.equal(batch_to_ids(np.array([["a", "x"], ["b", "c"]])), batch_to_ids([["a", "x"], ["b", "c"]]))


@pytest.mark.parametrize("batch, message", [
    ([], "batch: expected at least one sentence, got none"),
    ("the cat", "batch: expected a list of tokenized sentences, got str"),
    (["the cat"], r"batch\[0\]: expected a list of tokens, got the str 'the cat'; split it first"),
    ([["a"], b"the"], r"batch\[1\]: expected a list of tokens, got the bytes"),
    ([None], r"batch\[0\]: expected a list of tokens, got NoneType"),
    ([[None]], "token: expected a string, got NoneType"),
    ([[["a"]]], "token: expected a string, got list"),
])
def test_malformed_batches_are_refused(batch, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        batch_to_ids(batch)


def test_a_vocabulary_without_special_words_is_refused(tmp_path):
    path = tmp_path / "vocab.txt"
    for missing in ("<S>", "</S>"):
        path.write_text("\n".join(word for word in WORDS if word != missing), encoding="utf-8")
        for make in (lambda: Batcher(path, 50), lambda: TokenBatcher(path)):
            with pytest.raises(ValueError, match=f"missing {missing}$"):
                make()
    path.write_text("<S>\n</S>\nthe", encoding="utf-8")
    for batcher in (Batcher(path, 50), TokenBatcher(path)):
        with pytest.raises(ValueError, match="^sentences: expected at least one sentence"):
            batcher.batch_sentences([])
    assert TokenBatcher(path).batch_sentences([["the"]]).tolist() == [[1, 3, 2]]
    with pytest.raises(ValueError, match="sentences: expected words of the vocabulary, .* got 'dog'"):
        TokenBatcher(path).batch_sentences([["the", "dog"]])
