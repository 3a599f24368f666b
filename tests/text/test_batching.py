import collections
import itertools

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

import elmo_fast
from elmo_fast import Batcher, TokenBatcher, batch_to_ids
from elmo_fast.compat.simple_elmo import ElmoModel
from tests.support.files import paths, write_model

WORDS = ["<S>", "</S>", "<UNK>", "the", "cat"]
FRAME = type("Frame", (list,), {"columns": ["text"]})(["text"])  # a data frame's items are the names of its columns
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


class Series:
    """A column of a table, as of pandas: values in order below an index, without the methods of a list."""

    ndim = 1

    def __init__(self, values):
        self._values = list(values)

    def __iter__(self):
        return iter(self._values)

    def __len__(self):
        return len(self._values)

    def __bool__(self):
        raise ValueError("The truth value of a Series is ambiguous")


@pytest.mark.parametrize("form", [
    tuple, np.array, lambda words: np.array(words, dtype=object), iter, Series, collections.deque,
    lambda words: dict.fromkeys(words).keys(), lambda words: (word for word in words)])
def test_a_sentence_may_be_any_finite_series_of_tokens(vocab_file, tmp_path, form):
    """Of arrays, of columns, or of generators, as `jieba.cut` gives them; in every class that takes sentences."""
    sentences = [["the", "cat"], ["naïve", "x"]]
    model = paths(write_model(tmp_path))
    loaded, embedder, mapper = elmo_fast.load(tmp_path), elmo_fast.ElmoEmbedder(*model), ElmoModel()
    mapper.load(tmp_path)
    for call in (batch_to_ids, Batcher(vocab_file, 50).batch_sentences, TokenBatcher(vocab_file).batch_sentences,
                 loaded.embed, mapper.get_elmo_vectors, lambda batch: [loaded.encode_words(words) for words in batch],
                 lambda batch: list(embedder.embed_sentences(batch))):
        embedder.elmo_bilm.reset_states()
        expected = call(sentences)
        embedder.elmo_bilm.reset_states()
        for actual, values in zip(call([form(words) for words in sentences]), expected, strict=True):
            np.testing.assert_array_equal(actual, values)
    assert torch.equal(batch_to_ids(form([("a", "x"), ("b", "c")])), batch_to_ids([["a", "x"], ["b", "c"]]))


@pytest.mark.parametrize("batch, message", [
    ([], "batch: expected at least one sentence, got none"),
    ("the cat", "batch: expected a list of tokenized sentences, got str"),
    (["the cat"], r"batch\[0\]: expected a list of tokens, got the str 'the cat'; split it first"),
    ([["a"], b"the"], r"batch\[1\]: expected a list of tokens, got the bytes"),
    ([None], r"batch\[0\]: expected a list of tokens, got NoneType"),
    ([{"a": 1}], r"batch\[0\]: expected a list of tokens, got dict"),
    (FRAME, "batch: expected a list of tokenized sentences, got Frame"),
    ([FRAME], r"batch\[0\]: expected a list of tokens, got Frame"),
    ([(word for word in ["a", 3])], "token: expected a string, got int"),
    ([itertools.repeat("a")], r"batch\[0\]: expected at most 16,777,216 tokens, got more"),
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
