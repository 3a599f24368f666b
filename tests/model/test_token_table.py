"""Token tables without a model: words, rows, ids, and files."""

import h5py
import numpy as np
import pytest

from elmo_fast import ConfigurationError, TokenTable
from elmo_fast.files.strings import joined
from tests.support.files import names

WORDS = ["<S>", "</S>", "<UNK>", "the", "naïve", "🙂", "", "a b", "x" * 60, "line\nbreak", "nul\0byte", "\ud800", "the"]
ALL_ROWS = np.arange(len(WORDS))


def random_vectors(count, dim=5, seed=0, dtype=np.float32):
    return np.random.default_rng(seed).standard_normal((count, dim)).astype(dtype)


def table(**arguments):
    return TokenTable(random_vectors(len(WORDS)), WORDS, "f" * 32, **arguments)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "t.hdf5"


@pytest.mark.parametrize("dtype, in_memory", [(np.float32, False), (np.float16, False), (np.float32, True)])
def test_a_table_round_trips_through_a_file(path, dtype, in_memory):
    vectors = random_vectors(len(WORDS), dtype=dtype)
    TokenTable(vectors, WORDS, "0123", precision="high").save(path)
    opened = TokenTable.open(path, in_memory=in_memory)
    assert (opened.precision, opened.fingerprint, opened.dim, len(opened)) == ("high", "0123", 5, len(WORDS))
    assert opened.words == WORDS and opened.storage == np.dtype(dtype).name
    rows = opened.vectors(ALL_ROWS)
    assert rows.dtype == np.float32 and np.array_equal(rows, vectors.astype(np.float32))
    with h5py.File(path) as file:  # as bilm-tf reads it
        assert np.array_equal(file["embedding"][...], vectors) and file["embedding"].dtype == dtype
    assert names(path.parent) == ["t.hdf5"]
    with pytest.raises(ConfigurationError, match="expected the vocabulary of the token table .* words., got"):
        TokenTable.open(path, ["<S>", "</S>"])


def test_ids_are_rows_plus_1():
    token_table = table()
    assert token_table.rows(["<S>", "naïve", "no", "x" * 60]).tolist() == [0, 4, -1, 8]
    assert token_table.rows(["the"]).tolist() == [12]  # the last of two equal words, as in bilm-tf's Vocabulary
    assert token_table.ids(["<S>", "🙂", ""]).tolist() == [1, 6, 7]
    with pytest.raises(ValueError, match="token table: expected words of the table .13 words., got 'no', 'nor'$"):
        token_table.ids(["no", "the", "nor", "no"])
    token_table.unknown = "unk"
    assert token_table.ids(["no", "the"]).tolist() == [3, 13]
    assert "the" in token_table and "no" not in token_table


def test_vectors_that_are_edited_later_change_no_table():
    vectors = random_vectors(3)
    table, expected = TokenTable(np.broadcast_to(vectors, vectors.shape)), vectors.copy()  # of a read-only view
    vectors[:] = 0
    assert np.array_equal(table.vectors(range(3)), expected)


def test_a_table_without_words_has_ids_only(path):
    vectors = random_vectors(4)
    with h5py.File(path, "w") as file:  # big-endian numbers too
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
    ("format_version", "expected format version 1 to 3, found 4; a newer elmo-fast may read it"),
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
            file.attrs[content] = 4
    with pytest.raises(ConfigurationError, match=f"^token table .*t.hdf5: .*{message}"):
        TokenTable.open(path)


def test_words_of_other_types_are_refused(path):
    with pytest.raises(ValueError, match=r"vocabulary: expected strings, got int \(3\)"):
        TokenTable(np.ones((2, 3), np.float32), ["a", 3]).save(path)
    assert names(path.parent) == []


@pytest.mark.parametrize("version, end", [(1, b""), (2, bytes(100))])
def test_files_of_earlier_versions_are_read(path, version, end):
    vectors = random_vectors(len(WORDS))
    with h5py.File(path, "w") as file:
        file["embedding"] = vectors
        file["vocabulary"], file["vocabulary_ends"] = joined(WORDS)
        file.attrs.update(format_version=version, fingerprint="0123", precision="high")
    with open(path, "ab") as file:
        file.write(end)  # checksums
    opened = TokenTable.open(path)
    assert opened.words == WORDS and np.array_equal(opened.vectors(ALL_ROWS), vectors)
