"""Token tables alone: words, rows, ids, growth, and files."""

import copy
import pickle

import h5py
import numpy as np
import pytest
import torch

from elmo_fast import ConfigurationError, TokenTable
from elmo_fast.model.token_table.file import joined, split
from elmo_fast.text.characters import encode_tokens, to_model_ids
from tests.support.files import names

WORDS = ["<S>", "</S>", "<UNK>", "the", "naïve", "🙂", "", "a b", "x" * 60, "line\nbreak", "nul\0byte", "\ud800", "the"]


def drawn(count, dim=5, seed=0, dtype=np.float32):
    return np.random.default_rng(seed).standard_normal((count, dim)).astype(dtype)


def table(**arguments):
    return TokenTable(drawn(len(WORDS)), WORDS, "f" * 32, **arguments)


def ids(words, size=50):
    return torch.from_numpy(to_model_ids(encode_tokens(words, size))).long()


@pytest.mark.parametrize("dtype, device", [(np.float32, None), (np.float16, None), (np.float32, "cpu")])
def test_a_file_gives_the_table_back(tmp_path, dtype, device):
    vectors = drawn(len(WORDS), dtype=dtype)
    TokenTable(vectors, WORDS, "0123", precision="high").save(tmp_path / "t.hdf5")
    found = TokenTable.open(tmp_path / "t.hdf5", device=device)
    assert (found.precision, found.fingerprint, found.dim, len(found)) == ("high", "0123", 5, len(WORDS))
    assert found.words == WORDS and found.storage == np.dtype(dtype).name and found.device.type == "cpu"
    every = found.vectors(np.arange(len(WORDS)))
    assert every.dtype == torch.float32 and np.array_equal(every.numpy(), vectors.astype(np.float32))
    with h5py.File(tmp_path / "t.hdf5") as file:  # what bilm-tf reads
        assert np.array_equal(file["embedding"][...], vectors) and file["embedding"].dtype == dtype
    assert names(tmp_path) == ["t.hdf5"]
    before = (tmp_path / "t.hdf5").read_bytes()
    found._base.zero_()  # memory-mapped copy on write
    assert (tmp_path / "t.hdf5").read_bytes() == before


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


def test_characters_find_their_rows():
    found = table().rows_of_characters(ids([*WORDS, "none", "x" * 59, "y" * 60]))
    assert found[:13].tolist() == [0, 1, 2, found[3], 4, 5, found[6], 7, 8, 9, 10, found[11], found[12]]
    assert found[3] == found[12] and found[3] in (3, 12)  # the same word twice
    assert found[6] == found[11] and found[6] in (6, 11)  # a lone surrogate is dropped, which leaves the empty word
    assert found[13:].tolist() == [-1, 8, -1]  # 48 bytes are read of a token: "x" * 59 is "x" * 60
    assert table().rows_of_characters(torch.zeros(1, 50, dtype=torch.int64)).tolist() == [-1]
    assert table().rows_of_characters(ids(["xxxx", "x" * 60], 5)).tolist() == [8, 8]
    assert len(table().rows_of_characters(ids([]))) == 0


def test_growth_is_bounded_and_keeps_numbers(tmp_path):
    growing = table(grow=3)
    assert growing.rows_of_characters(ids(["new"])).tolist() == [-1]
    new = torch.from_numpy(drawn(4, seed=1))
    growing.add(["new", "the", "new", "more"], new)
    assert growing.rows(["new", "more"]).tolist() == [13, 14] and len(growing) == 15
    assert growing.rows_of_characters(ids(["more", "new", "the", "none"])).tolist()[:2] == [14, 13]
    growing.add(["third", "fourth"], new[:2])
    assert not growing.grows and growing.rows(["third", "fourth"]).tolist() == [15, -1]
    assert torch.equal(growing.vectors([14, 0, 15]), torch.stack([new[3], growing._base[0], new[0]]))
    growing.save(tmp_path / "t.hdf5")
    again = TokenTable.open(tmp_path / "t.hdf5")
    assert again.words == growing.words and torch.equal(again.vectors(np.arange(16)), growing.vectors(np.arange(16)))
    fixed = table()
    fixed.add(["new"], new)
    assert len(fixed) == 13 and not fixed.grows and table(grow=True).grows


def test_copies_share_and_a_mapped_table_is_pickled_as_its_path(tmp_path):
    table().save(tmp_path / "t.hdf5")
    mapped = TokenTable.open(tmp_path / "t.hdf5", grow=2)
    mapped.add(["new"], torch.ones(1, 5))
    assert copy.deepcopy(mapped) is mapped
    again = pickle.loads(pickle.dumps(mapped))
    assert torch.equal(again.vectors(np.arange(14)), mapped.vectors(np.arange(14))) and again.words == mapped.words
    assert torch.equal(pickle.loads(pickle.dumps(table())).vectors([3]), table().vectors([3]))
    TokenTable(drawn(100, 1000), [str(k) for k in range(100)]).save(tmp_path / "big.hdf5")
    assert len(pickle.dumps(TokenTable.open(tmp_path / "big.hdf5"))) < 100 * 1000


def test_a_table_without_words_has_ids_only(tmp_path):
    vectors = drawn(4)
    with h5py.File(tmp_path / "bilm.hdf5", "w") as file:
        file.create_dataset("embedding", (4, 5), dtype="float32", data=vectors)
    bare = TokenTable.open(tmp_path / "bilm.hdf5")
    assert bare.words is None and bare.fingerprint is None and np.array_equal(bare.vectors([3, 0]), vectors[[3, 0]])
    for call in (lambda: bare.rows(["a"]), lambda: bare.ids(["a"]), lambda: bare.rows_of_characters(ids(["a"]))):
        with pytest.raises(ConfigurationError, match="token table: expected one with a vocabulary to look up words"):
            call()
    (tmp_path / "vocab.txt").write_text("<S>\n</S>\n<UNK>\na\n")
    assert TokenTable.open(tmp_path / "bilm.hdf5", tmp_path / "vocab.txt").ids(["a"]).tolist() == [4]
    assert TokenTable.open(tmp_path / "bilm.hdf5", ["<S>", "</S>", "x", "y"]).ids(["y"]).tolist() == [4]
    (tmp_path / "no_marks.txt").write_text("a\nb\nc\nd\n")
    with pytest.raises(ValueError, match="expected a line for each of <S>, </S>; missing <S>, </S>"):
        TokenTable.open(tmp_path / "bilm.hdf5", tmp_path / "no_marks.txt")
    with pytest.raises(ConfigurationError, match="vocabulary: expected a word for each of the 4 .*, got 3 words"):
        TokenTable.open(tmp_path / "bilm.hdf5", ["<S>", "</S>", "x"])


def test_chunked_and_foreign_numbers_are_read(tmp_path):
    vectors = drawn(6)
    with h5py.File(tmp_path / "t.hdf5", "w") as file:
        file.create_dataset("embedding", data=vectors.astype(">f4"), chunks=(2, 5), compression="gzip")
    found = TokenTable.open(tmp_path / "t.hdf5")
    assert np.array_equal(found.vectors(np.arange(6)), vectors)


@pytest.mark.parametrize("content, message", [
    ({}, r"expected the dataset embedding, found \[\]"),
    ({"embedding": np.zeros(3, np.float32)}, r"embedding: expected float32 or float16 of shape \[words, values\]"),
    ({"embedding": np.zeros((3, 2))}, "embedding: expected float32 or float16 .* found float64"),
    ({"embedding": np.zeros((0, 2), np.float32)}, "embedding: expected float32 or float16"),
    ({"embedding": np.zeros((3, 2), np.float32), "vocabulary": np.frombuffer(b"ab", np.uint8),
      "vocabulary_ends": np.array([1, 2])}, "expected a word for each of 3 vectors, found 2"),
    ({"embedding": np.zeros((2, 2), np.float32), "vocabulary": np.frombuffer(b"ab", np.uint8),
      "vocabulary_ends": np.array([1, 3])}, "vocabulary_ends: expected ends within 2 bytes"),
    ({"embedding": np.zeros((2, 2), np.float32), "vocabulary": np.frombuffer(b"ab", np.uint8)}, "or damaged"),
])
def test_a_wrong_file_is_refused(tmp_path, content, message):
    with h5py.File(tmp_path / "t.hdf5", "w") as file:
        for name, values in content.items():
            file[name] = values
    with pytest.raises(ConfigurationError, match=f"^token table .*t.hdf5: .*{message}"):
        TokenTable.open(tmp_path / "t.hdf5")


def test_a_later_version_or_a_damaged_file_is_refused(tmp_path):
    table().save(tmp_path / "t.hdf5")
    whole = (tmp_path / "t.hdf5").read_bytes()
    with h5py.File(tmp_path / "t.hdf5", "a") as file:
        file.attrs["format_version"] = 2
    with pytest.raises(ConfigurationError, match="format version 1 to 1, found 2; a newer elmo-fast may read it"):
        TokenTable.open(tmp_path / "t.hdf5")
    (tmp_path / "cut").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ConfigurationError, match="expected an HDF5 file, got something else or a file cut short"):
        TokenTable.open(tmp_path / "cut")
    with pytest.raises(FileNotFoundError, match="token table: expected an HDF5 file, found nothing at"):
        TokenTable.open(tmp_path / "none")
    with pytest.raises(IsADirectoryError, match="token table: expected an HDF5 file, got the directory"):
        TokenTable.open(tmp_path)
    table().save(tmp_path / "t.hdf5")
    with pytest.raises(ConfigurationError, match="vocabulary: expected the one the token table .* was made from"):
        TokenTable.open(tmp_path / "t.hdf5", ["<S>", "</S>"])


@pytest.mark.parametrize("call, message", [
    (lambda: TokenTable(drawn(2), ["a"]), "words: expected one for each of 2 vectors, got 1"),
    (lambda: TokenTable(drawn(2).astype(np.float64)), "vectors: expected float32 or float16 of shape"),
    (lambda: TokenTable(drawn(1), precision="low"), "precision: expected one of highest, high, medium, got 'low'"),
    (lambda: TokenTable(drawn(2)[0]), "vectors: expected float32 or float16 of shape"),
    (lambda: table(unknown="mask"), "unknown: expected one of encode, error, unk, got 'mask'"),
    (lambda: TokenTable(drawn(1), ["a"], unknown="unk"), "unknown: expected a token table with the word <UNK>"),
    (lambda: table(grow=-1), "grow: expected True, False or how many words may join, got -1"),
])
def test_wrong_arguments_are_refused(call, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        call()


def test_words_end_to_end_come_back():
    assert split(*joined(WORDS)) == WORDS and split(*joined([])) == []
    with pytest.raises(ValueError, match=r"vocabulary: expected strings, got int \(3\)"):
        joined(["a", 3])


