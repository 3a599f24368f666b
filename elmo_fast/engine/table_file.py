"""Files of token tables: bilm-tf's HDF5 with the dataset `embedding`, and our data that identify words and model.

The words are `vocabulary` (uint8, UTF-8 without separators) and `vocabulary_ends` (int64 [V], the byte at which each
word ends); attributes are `fingerprint`, `precision` and `format_version`.
"""

import functools
import os
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import h5py
import numpy as np

from elmo_fast.arguments import STORAGES, check_path, local_path, shown
from elmo_fast.engine.precision import PRECISIONS
from elmo_fast.errors import ConfigurationError
from elmo_fast.files.atomic import check_target, replace
from elmo_fast.files.hdf5 import attribute_of, dataset_of, new_hdf5, open_hdf5, strings_of
from elmo_fast.files.lock import lock_of
from elmo_fast.files.strings import joined
from elmo_fast.text.batching import BOUNDARIES
from elmo_fast.text.vocabulary import Vocabulary

FORMAT_VERSION = 3  # 2: checksums after the HDF5 data, which are not read


class TableHeader(NamedTuple):
    """A table without its vectors, of `shape` [V, P] and type `storage`.

    `words` and `fingerprint` are None in a file of bilm-tf. `precision` is that of the computation; bilm-tf's files do
    not record it and are fp32.
    """

    shape: tuple[int, int]
    storage: str
    words: list[str] | None
    fingerprint: str | None
    precision: str


class TableFile(NamedTuple):
    """Content of a file."""

    header: TableHeader
    vectors: np.ndarray


def read_table(path: str | os.PathLike, in_memory: bool = False) -> TableFile:
    """Read a table, whose vectors are memory-mapped unless `in_memory`.

    Raises `ConfigurationError` for a file that is not HDF5 or is cut short, lacks an `embedding` [V, P] of float32 or
    float16, has different numbers of words and vectors, or has a later format version.
    """
    name = check_path("token table", path)
    where = f"token table {name}"
    with open_hdf5(path, "token table") as file:
        dataset = dataset_of(file, "embedding", where)
        header = _header(file, dataset, where)
        version = attribute_of(file, "format_version", where, int, 0)
        _require(where, header.fingerprint is None or 1 <= version <= FORMAT_VERSION, "expected format version 1 to "
                 f"{FORMAT_VERSION}, found {version}; a newer elmo-fast may read it")
        return TableFile(header, _values(dataset, name, not in_memory))


def _header(file: h5py.File, dataset: h5py.Dataset, where: str) -> TableHeader:
    require = functools.partial(_require, where)
    require(dataset.ndim == 2 and 0 not in dataset.shape and dataset.dtype.name in STORAGES,
            f"embedding: expected float32 or float16 of shape [words, values], found {dataset.dtype} of shape "
            f"{dataset.shape}")
    words = strings_of(file, "vocabulary", "vocabulary_ends", where) if "vocabulary" in file else None
    require(words is None or len(words) == len(dataset),
            f"expected a word for each of {len(dataset)} vectors, found {len(words or ())}")
    precision = attribute_of(file, "precision", where, str, "highest")
    require(precision in PRECISIONS,
            f"attribute precision: expected one of {', '.join(PRECISIONS)}, found {precision!r:.80}")
    return TableHeader(dataset.shape, dataset.dtype.name, words, attribute_of(file, "fingerprint", where, str),
                       precision)


def _require(where: str, fits: bool, message: str) -> None:
    if not fits:
        raise ConfigurationError(f"{where}: {message}")


def _values(dataset: h5py.Dataset, name: str, mapped: bool) -> np.ndarray:
    """The vectors in memory, or memory-mapped if `mapped` and the dataset allow it."""
    offset = dataset.id.get_offset()
    if mapped and offset is not None and dataset.dtype.isnative:
        return np.memmap(name, dataset.dtype, "r", offset, dataset.shape)
    values = dataset[...].astype(dataset.dtype.newbyteorder("="), copy=False)
    values.setflags(write=False)
    return values


def words_of(vocabulary: str | os.PathLike | Iterable[str]) -> list[str]:
    """Words of a vocabulary file, which must have `<S>` and `</S>`, or of an iterable.

    If an iterable lacks `<S>` or `</S>`, they are appended, so that the numbers of its words do not change.
    """
    if isinstance(vocabulary, (str, os.PathLike)):
        vocabulary_file = Vocabulary(vocabulary)
        vocabulary_file.require(*BOUNDARIES)
        return list(vocabulary_file.words)
    if not isinstance(vocabulary, Iterable) or not getattr(vocabulary, "ndim", 1):
        raise ValueError(f"vocabulary: expected a file or words, got {type(vocabulary).__name__}")
    words = list(map(_checked, vocabulary))
    known = set(words)
    return words + [word for word in BOUNDARIES if word not in known]


def _checked(word: str) -> str:
    if not isinstance(word, str):
        raise ValueError(f"vocabulary: expected strings, got {type(word).__name__} ({shown(word)})")
    return word


def write_table(path: str | os.PathLike, header: TableHeader, blocks: Iterable[np.ndarray],
                lock: Path | None = None) -> None:
    """Write a table atomically; `blocks` have its vectors, [N, P] each.

    `lock` is what `locked(path)` gave a caller that has locked `path`, else None.
    """
    check_target(path, "token table")
    target = Path(os.path.realpath(local_path(path)))
    with lock_of(target, lock) as part:
        with new_hdf5(part, path) as (file, disk):
            dataset = file.create_dataset("embedding", header.shape, header.storage)  # contiguous, as in bilm-tf's
            if header.words is not None:
                file["vocabulary"], file["vocabulary_ends"] = joined(list(map(_checked, header.words)))
            if header.fingerprint is not None:
                file.attrs["fingerprint"] = header.fingerprint
            file.attrs["format_version"], file.attrs["precision"] = FORMAT_VERSION, header.precision
            done = 0
            for block in blocks:
                dataset[done : done + len(block)] = np.asarray(block, header.storage)
                done += len(block)
                disk.check()
            if done != header.shape[0]:
                raise ValueError(f"vectors: expected {header.shape[0]}, got {done}")
        replace(part, target)
