"""bilm-tf's data sets: rows of text, in the order that `random` gives."""

import bz2
import glob
import gzip
import itertools
import lzma
import random
from pathlib import Path

import numpy as np
import pytest

import elmo_fast
from elmo_fast.compat import bilm
from elmo_fast.compat.bilm import data as module
from elmo_fast.compat.bilm.data import BidirectionalLMDataset, LMDataset, UnicodeCharsVocabulary, Vocabulary
from tests.support import plain_training
from tests.support.training import TINY, write_corpus


def test_names():
    """The classes are those of `elmo_fast`, tested in tests/text; 261 or 262 characters are no error."""
    assert {"Batcher", "TokenBatcher", "BidirectionalLanguageModel", "dump_token_embeddings", "dump_bilm_embeddings",
            "weight_layers"} <= set(dir(bilm))
    for name in ("Batcher", "TokenBatcher", "Vocabulary", "UnicodeCharsVocabulary"):
        assert getattr(module, name) is getattr(elmo_fast, name) is getattr(bilm, name, getattr(module, name))
    assert module.InvalidNumberOfCharacters is elmo_fast.ConfigurationError
    for count in (261, 262):
        assert elmo_fast.Options.from_dict({**TINY, "char_cnn": {**TINY["char_cnn"], "n_characters": count}})


def lines(path):
    return [line.split() for line in path.read_text(encoding="utf-8").splitlines()]


def endless(files, reverse, shuffle_sentences):
    """Sentences with boundaries without end: files in random order, each once per round, and their sentences."""
    names = []
    while True:
        if not names:
            names = list(files)
            random.shuffle(names)
        sentences = [line[::-1] if reverse else line for line in lines(names.pop())]
        if shuffle_sentences:
            random.shuffle(sentences)
        for sentence in sentences:
            yield ["</S>", *sentence, "<S>"] if reverse else ["<S>", *sentence, "</S>"]


def check_batches(batch, pairs, vocabulary, suffix=""):
    """`pairs` of token and next token [rows][steps]."""
    ids, targets = (np.array([[vocabulary.word_to_id(pair[side]) for pair in row] for row in pairs]) for side in (0, 1))
    np.testing.assert_array_equal(batch["token_ids" + suffix], ids)
    np.testing.assert_array_equal(batch["next_token_id" + suffix], targets)
    assert batch["token_ids" + suffix].dtype == batch["next_token_id" + suffix].dtype == np.int32
    characters = batch["tokens_characters" + suffix]
    if isinstance(vocabulary, UnicodeCharsVocabulary):
        assert characters.dtype == np.int32
        np.testing.assert_array_equal(characters, [[vocabulary.word_to_char_ids(token) for token, _ in row]
                                                   for row in pairs])
    else:
        assert characters is None


@pytest.fixture
def corpus(tmp_path):
    """A folder with files of a text, one of them empty, and a vocabulary; the files in the order of `glob`."""
    write_corpus(tmp_path, sentences=6)
    (tmp_path / "part-9.txt").write_text("")
    return tmp_path, list(map(Path, glob.glob(str(tmp_path / "part-*"))))


@pytest.mark.parametrize("characters", [True, False])
@pytest.mark.parametrize("reverse", [True, False])
@pytest.mark.parametrize("rows, steps, shuffle", [(2, 3, False), (5, 7, True), (1, 1, False), (3, 20, True)])
def test_batches_without_end(corpus, characters, reverse, rows, steps, shuffle):
    folder, names = corpus
    vocab = UnicodeCharsVocabulary(folder / "vocab.txt", 7) if characters else Vocabulary(folder / "vocab.txt")
    random.seed(3)
    data = LMDataset(folder / "part-*", vocab, reverse, shuffle_on_load=shuffle)
    batches, after = list(itertools.islice(data.iter_batches(rows, steps), 12)), random.random()
    random.seed(3)
    expected = plain_training.rows(endless(names, reverse, shuffle), rows, steps, batches=12)
    assert random.random() == after
    for batch, pairs in zip(batches, expected, strict=True):
        check_batches(batch, pairs, vocab)
    words, ids = next(data.get_sentence())
    assert data.vocab is vocab and (ids.shape == (len(words), data.max_word_length) if characters else ids is None)


def test_both_directions_once(corpus):
    """Test mode reads every file once, the last of `glob` first, and drops an incomplete batch."""
    folder, names = corpus
    vocab = UnicodeCharsVocabulary(folder / "vocab.txt", 7)
    data = BidirectionalLMDataset(folder / "part-*", vocab, test=True)
    sentences = [["<S>", *line, "</S>"] for name in names[::-1] for line in lines(name)]
    forward, reverse = (plain_training.rows([line[::step] for line in sentences], 2, 3) for step in (1, -1))
    batches = list(data.iter_batches(2, 3))
    assert len(batches) == min(len(forward), len(reverse)) > 5 and data.vocab is vocab
    for batch, forward_pairs, reverse_pairs in zip(batches, forward, reverse):
        check_batches(batch, forward_pairs, vocab)
        check_batches(batch, reverse_pairs, vocab, "_reverse")
    assert list(data.iter_batches(2, 3)) == []


@pytest.mark.parametrize("compress", [gzip.compress, bz2.compress, lzma.compress])
def test_compressed_files_have_the_same_sentences(tmp_path, compress):
    _, vocabulary = write_corpus(tmp_path, shards=1)
    suffix = {gzip.compress: "gz", bz2.compress: "bz2", lzma.compress: "xz"}[compress]
    (tmp_path / f"p.{suffix}").write_bytes(compress((tmp_path / "part-0.txt").read_bytes()))
    plain, packed = ([ids.tolist() for ids, _ in LMDataset(tmp_path / name, Vocabulary(vocabulary), test=True)
                      .get_sentence()] for name in ("part-0.txt", f"p.{suffix}"))
    assert plain == packed and len(plain) == 25


def test_refuses(tmp_path):
    _, vocabulary = write_corpus(tmp_path)
    vocab = Vocabulary(vocabulary)
    (tmp_path / "empty.txt").write_text("")
    for pattern in ("none*", "empty.txt"):
        with pytest.raises(FileNotFoundError, match="filepattern: expected files of text, found none at .*"):
            LMDataset(tmp_path / pattern, vocab)
    with pytest.raises(ValueError, match="num_steps: expected an integer of at least 1, got 0"):
        next(LMDataset(tmp_path / "part-*.txt", vocab).iter_batches(1, 0))
