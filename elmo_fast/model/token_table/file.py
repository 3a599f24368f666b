"""Files of token tables: bilm-tf's HDF5 with the dataset `embedding`, and our data that identify words and model.

The words are `vocabulary` (uint8, UTF-8 without separators) and `vocabulary_ends` (int64 [V], the byte at which each
word ends); attributes are `fingerprint`, `precision` and `format_version`. A seal follows the HDF5 data
(`files/seal.py`).
"""

import contextlib
import functools
import logging
import os
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import h5py
import numpy as np
import torch

from elmo_fast.arguments import STORAGES, check_path, local_path, shown
from elmo_fast.errors import ConfigurationError
from elmo_fast.files.atomic import check_target, replace
from elmo_fast.files.hdf5 import HDF5_ERRORS, attribute_of, dataset_of, new_hdf5, open_hdf5, strings_of
from elmo_fast.files.lock import lock_of
from elmo_fast.files.seal import ROWS, Blocks, Seal, read_seal, write_seal
from elmo_fast.files.strings import joined
from elmo_fast.ops.precision import PRECISIONS
from elmo_fast.text.batching import BOUNDARIES
from elmo_fast.text.vocabulary import Vocabulary

FORMAT_VERSION = 2  # 1: without a seal

logger = logging.getLogger(__name__)


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
    """Content of a file. Memory-mapped vectors with checksums must be compared with `blocks` before use."""

    header: TableHeader
    vectors: torch.Tensor
    blocks: Blocks | None


def read_table(path: str | os.PathLike, device: torch.device | None = None) -> TableFile:
    """Read a table onto `device`, or map its vectors from the file if `device` is None.

    Raises `ConfigurationError` for a file that is not HDF5, is incomplete or damaged, lacks an `embedding` [V, P] of
    float32 or float16, has different numbers of words and vectors, or has a later format version.
    """
    name = check_path("token table", path)
    sealed, where = read_seal(name), f"token table {name}"
    with open_hdf5(path, "token table") as file:
        dataset = dataset_of(file, "embedding", where)
        header = _header(file, dataset, where)
        _check_version(file, where, header, sealed)
        values = _values(dataset, name, device is None)
    blocks = Blocks(name, values, sealed[1][1:]) if sealed else None
    if blocks and not isinstance(values, np.memmap):
        blocks.check()
        blocks = None
    return TableFile(header, torch.from_numpy(values).to(device or "cpu"), blocks)


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


def _check_version(file: h5py.File, where: str, header: TableHeader,
                   sealed: tuple[Seal, np.ndarray] | None) -> None:
    """Raise `ConfigurationError` for a file of a later version, without its seal, or with missing vectors."""
    require, rows = functools.partial(_require, where), header.shape[0]
    version = attribute_of(file, "format_version", where, int, 0)
    require(header.fingerprint is None or 1 <= version <= FORMAT_VERSION, "expected format version 1 to "
            f"{FORMAT_VERSION}, found {version}; a newer elmo-fast may read it")
    require(version < 2 or sealed is not None, "expected a seal with checksums at its end, found none: the file "
            "was cut or changed; write it again (elmo-fast cache)")
    require(sealed is None or sealed[0].rows == rows, f"expected the checksums of {rows} vectors, "
            f"found those of {sealed[0].rows if sealed else 0}; write it again (elmo-fast cache)")
    done = sealed[1][0] if sealed else rows
    if not sealed and version and "done" in file:
        done = dataset_of(file, "done", where, "iu", 1)[0]
    require(done == rows, f"expected all of its {rows} vectors, found {done}; elmo-fast cache "
            "resumes the partial file OUT.part, and renames it when it is complete")


def _require(where: str, fits: bool, message: str) -> None:
    if not fits:
        raise ConfigurationError(f"{where}: {message}")


def _values(dataset: h5py.Dataset, name: str, mapped: bool) -> np.ndarray:
    """The vectors in memory, or memory-mapped if `mapped` and the dataset allow it."""
    offset = dataset.id.get_offset()
    if mapped and offset is not None and dataset.dtype.isnative:
        # Copy on write: torch requires writable memory, and the file must not change.
        return np.memmap(name, dataset.dtype, "c", offset, dataset.shape)
    return dataset[...].astype(dataset.dtype.newbyteorder("="), copy=False)


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


@contextlib.contextmanager
def table_writer(path: str | os.PathLike, header: TableHeader, resume: bool = False,
                 lock: Path | None = None) -> Iterator["TableWriter"]:
    """A writer of a table; the file appears at `path` only after the body has succeeded and written every vector.

    With `resume` it writes `PATH.part`, which remains after a failure or a kill: the next run continues it. `lock` is
    what `locked(path)` gave a caller that has locked `path`, else None.
    """
    check_target(path, "token table")
    target = Path(os.path.realpath(local_path(path)))
    with lock_of(target, lock) as new:
        part = target.with_name(f"{target.name}.part") if resume else new
        if not (resume and part.exists() and _belongs_to(part, header)):
            _create(new, path, header)
            replace(new, part)
        with contextlib.closing(TableWriter(part, header, resume)) as writer:
            yield writer
            writer.finish()
        replace(part, target)


def _belongs_to(part: Path, header: TableHeader) -> bool:
    """Whether a partial file is the beginning of the table of `header`, and undamaged except for its vectors."""
    where = f"partial token table {part}"
    try:
        seal, progress = read_seal(part)
        with open_hdf5(part, "partial token table") as file:
            dataset = dataset_of(file, "embedding", where)
            found, first = _header(file, dataset, where), dataset.id.get_offset()
        if found == header and (seal.first, seal.rows) == (first, header.shape[0]) and 0 <= progress[0] <= seal.rows:
            return True
    except HDF5_ERRORS:
        pass
    logger.info("%s: starts over, since %s has another vocabulary, model, precision or storage, or is damaged",
                part.stem, part.name)
    return False


def _create(path: Path, target: str | os.PathLike, header: TableHeader) -> None:
    """Write a sealed file without vectors, with a contiguous dataset as in bilm-tf's files. Errors name `target`."""
    (rows, dim), dtype = header.shape, np.dtype(header.storage)
    with new_hdf5(path, target) as (file, _):
        properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        properties.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
        properties.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
        dataset = h5py.h5d.create(file.id, b"embedding", h5py.h5t.py_create(dtype),
                                  h5py.h5s.create_simple(header.shape), dcpl=properties)
        if header.words is not None:
            file["vocabulary"], file["vocabulary_ends"] = joined(list(map(_checked, header.words)))
        if header.fingerprint is not None:
            file.attrs["fingerprint"] = header.fingerprint
        file.attrs["format_version"], file.attrs["precision"] = FORMAT_VERSION, header.precision
        first = dataset.get_offset()
    with open(path, "r+b") as sealed:
        write_seal(sealed, first, rows * dim * dtype.itemsize, rows)


class TableWriter:
    """Writes vectors block by block into a sealed file; `done` counts those that are written and match their checksums.

    If `durable`, vectors are synchronized to the disk before they are counted.
    """

    def __init__(self, path: Path, header: TableHeader, durable: bool):
        self._shape, self._dtype, self._durable = header.shape, np.dtype(header.storage), durable
        self._seal, self._progress = read_seal(path)
        self.done = self._undamaged(path)
        self._file = open(path, "r+b", buffering=0)  # noqa: SIM115

    def close(self) -> None:
        self._file.close()

    def append(self, vectors: np.ndarray) -> None:
        """Write the next vectors [N, P], then count them."""
        values = np.ascontiguousarray(vectors, dtype=self._dtype)
        self._put(self._seal.first + self.done * self._shape[1] * self._dtype.itemsize, values)
        self._sync()
        for piece in np.split(values, range(ROWS - self.done % ROWS, len(values), ROWS)):  # each piece within a block
            block = 1 + self.done // ROWS
            self._progress[block] = zlib.crc32(piece, int(self._progress[block]))
            self.done += len(piece)
        self._progress[0] = self.done
        self._put(self._seal.size, self._progress)

    def finish(self) -> None:
        """Synchronize the file; `ValueError` unless every vector was written."""
        if self.done != self._shape[0]:
            raise ValueError(f"vectors: expected {self._shape[0]}, got {self.done}")
        self._sync()

    def _sync(self) -> None:
        if self._durable:
            os.fsync(self._file.fileno())

    def _put(self, offset: int, values: np.ndarray) -> None:
        rest = memoryview(values).cast("B")
        self._file.seek(offset)
        while rest:
            rest = rest[self._file.write(rest) :]

    def _undamaged(self, path: Path) -> int:
        """The number of written vectors before the first block that differs from its checksum."""
        done = int(self._progress[0])
        vectors = np.memmap(path, self._dtype, "r", self._seal.first, self._shape)[:done]
        blocks = Blocks(str(path), vectors, self._progress[1:])
        for block in range(-(-done // ROWS)):
            if not blocks.fits(block):
                done, self._progress[1 + block :] = block * ROWS, 0
                logger.warning("%s: word %d and those after it are encoded again, since %s is damaged there",
                               path.stem, done, path.name)
                break
        return done
