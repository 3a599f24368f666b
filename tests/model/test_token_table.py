"""Token tables alone: words, rows, ids, and files."""

import contextlib
import copy
import os
import pickle
import random

import h5py
import numpy as np
import pytest
import torch

from elmo_fast import ConfigurationError, TokenTable
from elmo_fast.files.seal import ROWS
from elmo_fast.files.strings import joined, split
from elmo_fast.model.token_table.file import TableHeader, read_table, table_writer
from tests.support.files import flip, names

WORDS = ["<S>", "</S>", "<UNK>", "the", "naïve", "🙂", "", "a b", "x" * 60, "line\nbreak", "nul\0byte", "\ud800", "the"]
EVERY = np.arange(len(WORDS))


def drawn(count, dim=5, seed=0, dtype=np.float32):
    return np.random.default_rng(seed).standard_normal((count, dim)).astype(dtype)


def table(**arguments):
    return TokenTable(drawn(len(WORDS)), WORDS, "f" * 32, **arguments)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "t.hdf5"


@pytest.mark.parametrize("dtype, device", [(np.float32, None), (np.float16, None), (np.float32, "cpu")])
def test_a_file_gives_the_table_back(path, dtype, device):
    vectors = drawn(len(WORDS), dtype=dtype)
    TokenTable(vectors, WORDS, "0123", precision="high").save(path)
    found = TokenTable.open(path, device=device)
    assert (found.precision, found.fingerprint, found.dim, len(found)) == ("high", "0123", 5, len(WORDS))
    assert found.words == WORDS and found.storage == np.dtype(dtype).name and found.device.type == "cpu"
    every = found.vectors(EVERY)
    assert every.dtype == torch.float32 and np.array_equal(every.numpy(), vectors.astype(np.float32))
    with h5py.File(path) as file:  # what bilm-tf reads
        assert np.array_equal(file["embedding"][...], vectors) and file["embedding"].dtype == dtype
    assert names(path.parent) == ["t.hdf5"]
    with pytest.raises(ConfigurationError, match="expected the vocabulary of the token table .* words., got"):
        TokenTable.open(path, ["<S>", "</S>"])
    before = path.read_bytes()
    found.encoded.zero_()  # memory-mapped copy on write
    assert path.read_bytes() == before


def test_ids_are_rows_plus_1():
    found = table()
    assert found.rows(["<S>", "naïve", "no", "x" * 60]).tolist() == [0, 4, -1, 8]
    assert found.rows(["the"]).tolist() == [12]  # the last of two equal words, as in bilm-tf's Vocabulary
    assert found.ids(["<S>", "🙂", ""]).tolist() == [1, 6, 7]
    with pytest.raises(ValueError, match="token table: expected words of the table .13 words., got 'no', 'nor'$"):
        found.ids(["no", "the", "nor", "no"])
    found.unknown = "unk"
    assert found.ids(["no", "the"]).tolist() == [3, 13]
    assert "the" in found and "no" not in found


def test_copies_share_and_a_mapped_table_is_pickled_as_its_path(path):
    TokenTable(drawn(100, 1000), [str(k) for k in range(100)]).save(path)
    mapped = TokenTable.open(path)
    assert copy.deepcopy(mapped) is mapped
    stored = pickle.dumps(mapped)
    again = pickle.loads(stored)
    assert len(stored) < 100 * 1000 and again.words == mapped.words
    assert torch.equal(again.vectors(np.arange(100)), mapped.vectors(np.arange(100)))
    assert torch.equal(pickle.loads(pickle.dumps(table())).vectors([3]), table().vectors([3]))


def test_a_table_without_words_has_ids_only(path):
    vectors = drawn(4)
    with h5py.File(path, "w") as file:  # foreign numbers too
        file.create_dataset("embedding", data=vectors.astype(">f4"), chunks=(2, 5), compression="gzip")
    bare = TokenTable.open(path)
    assert bare.words is None and bare.fingerprint is None and np.array_equal(bare.vectors([3, 0]), vectors[[3, 0]])
    for call in (lambda: bare.rows(["a"]), lambda: bare.ids(["a"])):
        with pytest.raises(ConfigurationError, match="token table: expected a table with a vocabulary, to look up w"):
            call()
    vocabulary = path.with_name("vocab.txt")
    vocabulary.write_text("<S>\n</S>\n<UNK>\na\n")
    assert TokenTable.open(path, vocabulary).ids(["a"]).tolist() == [4]
    assert TokenTable.open(path, ["<S>", "</S>", "x", "y"]).ids(["y"]).tolist() == [4]
    vocabulary.write_text("a\nb\nc\nd\n")
    with pytest.raises(ValueError, match="expected a line for each of <S>, </S>; missing <S>, </S>"):
        TokenTable.open(path, vocabulary)
    with pytest.raises(ConfigurationError, match="vocabulary: expected a word for each of the 4 .*, got 3 words"):
        TokenTable.open(path, ["<S>", "</S>", "x"])


AB = {"embedding": np.zeros((2, 2), np.float32), "vocabulary": np.frombuffer(b"ab", np.uint8)}


@pytest.mark.parametrize("content, message", [
    ({}, r"expected the dataset embedding, found \[\]"),
    ({"embedding": np.zeros(3, np.float32)}, r"embedding: expected float32 or float16 of shape \[words, values\]"),
    ({"embedding": np.zeros((3, 2))}, "embedding: expected float32 or float16 .* found float64"),
    ({"embedding": np.zeros((0, 2), np.float32)}, "embedding: expected float32 or float16"),
    ({**AB, "embedding": np.zeros((3, 2), np.float32), "vocabulary_ends": np.array([1, 2])},
     "expected a word for each of 3 vectors, found 2"),
    ({**AB, "vocabulary_ends": np.array([1, 3])}, "ends: expected offsets that rise to 2"),
    (AB, "or damaged"),
    (2000, "expected an HDF5 file, got something else or a file cut short"),
    ("format_version", "expected format version 1 to 2, found 3; a newer elmo-fast may read it"),
])
def test_a_wrong_file_is_refused(path, content, message):
    table().save(path)
    if isinstance(content, int):
        path.write_bytes(path.read_bytes()[:content])
    elif isinstance(content, dict):
        with h5py.File(path, "w") as file:
            file.update(content)
    else:
        with h5py.File(path, "a") as file:
            file.attrs[content] = 3
    with pytest.raises(ConfigurationError, match=f"^token table .*t.hdf5: .*{message}"):
        TokenTable.open(path)


def test_words_end_to_end_come_back(path):
    assert split(*joined(WORDS)) == WORDS and split(*joined([])) == []
    with pytest.raises(ValueError, match=r"vocabulary: expected strings, got int \(3\)"):
        TokenTable(np.ones((2, 3), np.float32), ["a", 3]).save(path)


# ---- files that are damaged, incomplete, or of an earlier version ----

MANY = ["<S>", "</S>", *(f"wörd{k}" for k in range(2 * ROWS + 50))]
ALL = np.arange(len(MANY))
VECTORS = np.random.default_rng(0).normal(size=(len(MANY), 6)).astype(np.float32)
DAMAGED = "expected the checksums it was written with, found damage"


@pytest.fixture
def large(path):
    """A file of more words than have a checksum together."""
    TokenTable(VECTORS, MANY, "0123").save(path)
    return path


def offset_of(path, row):
    with h5py.File(path) as file:
        return file["embedding"].id.get_offset() + row * 6 * 4


def writer(path, fingerprint="0123"):
    return table_writer(path, TableHeader(VECTORS.shape, "float32", MANY, fingerprint, "highest"), resume=True)


@contextlib.contextmanager
def stopped(path, fingerprint="0123"):
    with contextlib.suppress(InterruptedError), writer(path, fingerprint) as writing:
        yield writing
        raise InterruptedError


@pytest.mark.parametrize("device", [None, "cpu"])
def test_a_flipped_bit_anywhere_is_refused(large, device):
    size, rng = large.stat().st_size, random.Random(3)
    assert np.array_equal(TokenTable.open(large, device=device).vectors(ALL), VECTORS)
    for at in (*rng.sample(range(size), 60), *range(size - 80, size, 3)):
        flip(large, at)
        with pytest.raises(ConfigurationError, match="^token table .*t.hdf5: expected"):
            TokenTable.open(large, device=device).vectors(ALL)
        flip(large, at)


@pytest.mark.parametrize("change", [lambda content: content[:-1], lambda content: content + b"more",
                                    lambda content: content[:-76]])
def test_a_file_of_another_length_is_refused(large, change):
    large.write_bytes(change(large.read_bytes()))
    with pytest.raises(ConfigurationError, match="expected a seal with checksums at its end"):
        read_table(large)


def test_mapped_vectors_are_compared_when_they_are_first_used(large):
    flip(large, offset_of(large, ROWS + 3))
    found, good = TokenTable.open(large), np.array([0, ROWS - 1, 2 * ROWS])
    for table in (found, pickle.loads(pickle.dumps(found))):
        assert np.array_equal(table.vectors(good), VECTORS[good])
        for _ in range(2):
            with pytest.raises(ConfigurationError, match=f"{DAMAGED} in the vectors from number {ROWS} on"):
                table.vectors([5, ROWS])
        with pytest.raises(ConfigurationError, match=DAMAGED):
            table.save(large.with_name("copy.hdf5"))
    assert names(large.parent) == ["t.hdf5"]


def test_an_incomplete_file_is_refused(large):
    part = large.with_name("t.hdf5.part")
    with stopped(large) as writing:
        writing.append(VECTORS[:300])
    os.rename(part, large)
    with pytest.raises(ConfigurationError, match=r"expected all of its 564 vectors, found 300; .* resumes"):
        read_table(large)


@pytest.mark.parametrize("done", [None, 564, 563])
def test_a_file_of_version_1(tmp_path, done):
    with h5py.File(tmp_path / "t.hdf5", "w") as file:
        file["embedding"] = VECTORS
        file["vocabulary"], file["vocabulary_ends"] = joined(MANY)
        file.attrs.update(format_version=1, fingerprint="0123", precision="high")
        if done:
            file["done"] = np.array([done])
    if done == 563:
        with pytest.raises(ConfigurationError, match="expected all of its 564 vectors, found 563"):
            TokenTable.open(tmp_path / "t.hdf5")
    else:
        found = TokenTable.open(tmp_path / "t.hdf5")
        assert found.words == MANY and np.array_equal(found.vectors(ALL), VECTORS)


@pytest.mark.parametrize("row, resumed", [(None, 300), (299, ROWS), (ROWS, ROWS), (4, 0), (300, 300)])
def test_a_partial_file_goes_on_from_its_last_good_block(large, caplog, row, resumed):
    part = large.with_name("t.hdf5.part")
    with stopped(large) as writing:
        for first in range(0, 300, 100):
            writing.append(VECTORS[first : first + 100])
    if row is not None:
        flip(part, offset_of(part, row))
    with writer(large) as writing:
        assert writing.done == resumed and ("are encoded again" in caplog.text) == (resumed != 300)
        writing.append(VECTORS[resumed:])
    assert np.array_equal(TokenTable.open(large).vectors(ALL), VECTORS) and names(large.parent) == ["t.hdf5"]


def test_a_partial_file_with_a_damaged_header_is_started_over(large):
    part = large.with_name("t.hdf5.part")
    with stopped(large) as writing:
        writing.append(VECTORS)
    content = part.read_bytes()
    outside = [at for at in range(0, len(content), 173) if not 0 <= at - offset_of(part, 0) < VECTORS.nbytes]
    for at in outside:
        flip(part, at)
        with stopped(large) as writing:
            assert writing.done in (0, ROWS, 2 * ROWS), at  # the header's, or a block's checksum
        part.write_bytes(content)
    with stopped(large, "another") as writing:
        assert writing.done == 0
