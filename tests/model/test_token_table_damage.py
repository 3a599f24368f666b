"""Files of tables that are damaged, incomplete, or of an earlier version."""

import os
import pickle
import random

import h5py
import numpy as np
import pytest
import torch

from elmo_fast import ConfigurationError, TokenTable
from elmo_fast.model.seal import ROWS
from elmo_fast.model.token_table.file import ResumableWriter, read_table
from elmo_fast.text.strings import joined
from tests.support.files import flip, names

WORDS = ["<S>", "</S>", *(f"wörd{k}" for k in range(2 * ROWS + 50))]
EVERY = np.arange(len(WORDS))
VECTORS = np.random.default_rng(0).normal(size=(len(WORDS), 6)).astype(np.float32)
DAMAGED = "expected the checksums it was written with, found damage"


@pytest.fixture
def path(tmp_path):
    TokenTable(VECTORS, WORDS, "0123").save(tmp_path / "t.hdf5")
    return tmp_path / "t.hdf5"


def offset_of(path, row):
    with h5py.File(path) as file:
        return file["embedding"].id.get_offset() + row * 6 * 4


def writer(path, fingerprint="0123"):
    return ResumableWriter(path, WORDS, 6, "float32", fingerprint, "highest")


@pytest.mark.parametrize("device", [None, "cpu"])
def test_a_flipped_bit_anywhere_is_refused(path, device):
    size, rng = path.stat().st_size, random.Random(3)
    assert np.array_equal(TokenTable.open(path, device=device).vectors(EVERY), VECTORS)
    for at in (*rng.sample(range(size), 60), *range(size - 80, size, 3)):
        flip(path, at)
        with pytest.raises(ConfigurationError, match="^token table .*t.hdf5: expected"):
            TokenTable.open(path, device=device).vectors(EVERY)
        flip(path, at)


@pytest.mark.parametrize("change", [lambda content: content[:-1], lambda content: content + b"more",
                                    lambda content: content[:-76]])
def test_a_file_of_another_length_is_refused(path, change):
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(ConfigurationError, match="expected a seal with checksums at its end"):
        read_table(path)


def test_mapped_vectors_are_compared_when_they_are_first_used(path):
    flip(path, offset_of(path, ROWS + 3))
    found = TokenTable.open(path, grow=True)
    found.add(["new"], torch.ones(1, 6))
    good = np.array([0, ROWS - 1, 2 * ROWS, len(WORDS)])
    for table in (found, pickle.loads(pickle.dumps(found))):
        assert np.array_equal(table.vectors(good[:3]), VECTORS[good[:3]])
        assert table.vectors(good).shape == (4, 6)
        for _ in range(2):
            with pytest.raises(ConfigurationError, match=f"{DAMAGED} in the vectors from number {ROWS} on"):
                table.vectors([5, ROWS])
        with pytest.raises(ConfigurationError, match=DAMAGED):
            table.save(path.with_name("copy.hdf5"))
    assert names(path.parent) == ["t.hdf5"]


def test_an_incomplete_file_is_refused(path):
    part = path.with_name("t.hdf5.part")
    with writer(path) as writing:
        writing.append(VECTORS[:300])
    os.rename(part, path)
    with pytest.raises(ConfigurationError, match=r"expected all of its 564 vectors, found 300; .* resumes"):
        read_table(path)


@pytest.mark.parametrize("done", [None, 564, 563])
def test_a_file_of_version_1(tmp_path, done):
    with h5py.File(tmp_path / "t.hdf5", "w") as file:
        file["embedding"] = VECTORS
        file["vocabulary"], file["vocabulary_ends"] = joined(WORDS)
        file.attrs.update(format_version=1, fingerprint="0123", precision="high")
        if done:
            file["done"] = np.array([done])
    if done == 563:
        with pytest.raises(ConfigurationError, match="expected all of its 564 vectors, found 563"):
            TokenTable.open(tmp_path / "t.hdf5")
    else:
        found = TokenTable.open(tmp_path / "t.hdf5")
        assert found.words == WORDS and np.array_equal(found.vectors(EVERY), VECTORS)


@pytest.mark.parametrize("row, resumed", [(None, 300), (299, ROWS), (ROWS, ROWS), (4, 0), (300, 300)])
def test_a_partial_file_goes_on_from_its_last_good_block(path, caplog, row, resumed):
    part = path.with_name("t.hdf5.part")
    with writer(path) as writing:
        for first in range(0, 300, 100):
            writing.append(VECTORS[first : first + 100])
    if row is not None:
        flip(part, offset_of(part, row))
    with writer(path) as writing:
        assert writing.done == resumed and ("are encoded again" in caplog.text) == (resumed != 300)
        writing.append(VECTORS[resumed:])
        writing.finish()
    assert np.array_equal(TokenTable.open(path).vectors(EVERY), VECTORS) and names(path.parent) == ["t.hdf5"]


def test_a_partial_file_with_a_damaged_header_is_started_over(path):
    part = path.with_name("t.hdf5.part")
    with writer(path) as writing:
        writing.append(VECTORS)
    content = part.read_bytes()
    outside = [at for at in range(0, len(content), 173) if not 0 <= at - offset_of(part, 0) < VECTORS.nbytes]
    for at in outside:
        flip(part, at)
        with writer(path) as writing:
            assert writing.done in (0, ROWS, 2 * ROWS), at  # the header's, or a block's checksum
        part.write_bytes(content)
    with writer(path, "another") as writing:
        assert writing.done == 0
