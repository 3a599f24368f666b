"""Files of token tables: bilm-tf's HDF5 with the dataset `embedding`, and beside it what makes it safe to use.

    embedding          float32 or float16 [V, P]: row k is the vector of word k, no row for padding
    vocabulary         uint8: the words in UTF-8, one after the other
    vocabulary_ends    int64 [V]: where each word ends
    format_version, fingerprint, precision    attributes of the file

Only `embedding` is there in a file that bilm-tf wrote.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import h5py
import numpy as np
import torch

from elmo_fast.choices import STORAGES
from elmo_fast.model.options import ConfigurationError
from elmo_fast.model.atomic_file import check_target
from elmo_fast.model.atomic_hdf5 import atomic_hdf5
from elmo_fast.ops.precision import check_precision

FORMAT_VERSION = 1
_DAMAGE = (OSError, RuntimeError, KeyError, ValueError, TypeError, UnicodeDecodeError)
_ROWS_AT_ONCE = 1 << 14


@dataclass(frozen=True)
class TableFile:
    """What a file holds: `vectors` [V, P], and `words` and `fingerprint` unless bilm-tf wrote it.

    `precision` is what the vectors were computed in; bilm-tf, which does not say, knows fp32 alone.
    """

    vectors: torch.Tensor
    words: list[str] | None
    fingerprint: str | None
    precision: str


def read_table(path: str | os.PathLike, device: torch.device | None = None) -> TableFile:
    """Read a table: onto `device`, or memory-mapped without one.

    Raises `ConfigurationError` for a file that is not HDF5, is cut short, holds no `embedding` [V, P] of float32 or
    float16, has another number of words than of vectors, or a format of the future.
    """
    name = os.fspath(path)
    check_readable(name)
    try:
        with h5py.File(name, "r") as file:
            dataset = _embedding(file, name)
            words = _words(file, len(dataset), name)
            fingerprint = _fingerprint(file, name)
            precision = check_precision(str(file.attrs.get("precision", "highest")))
            return TableFile(_vectors(dataset, name, device), words, fingerprint, precision)
    except ConfigurationError:
        raise
    except _DAMAGE as error:
        raise ConfigurationError(f"token table {name}: expected an HDF5 file, got something else or a file cut short "
                                 f"or damaged ({error})") from error


def write_table(path: str | os.PathLike, vectors: torch.Tensor, words: Sequence[str] | None,
                fingerprint: str | None, precision: str) -> None:
    """Write a table; the file takes its name only when it is whole."""
    check_target(path, "token table")
    with atomic_hdf5(path) as (file, disk):
        numpy_type = np.float16 if vectors.dtype == torch.float16 else np.float32
        dataset = file.create_dataset("embedding", tuple(vectors.shape), dtype=numpy_type)
        for first in range(0, len(vectors), _ROWS_AT_ONCE):
            dataset[first : first + _ROWS_AT_ONCE] = vectors[first : first + _ROWS_AT_ONCE].cpu().numpy()
            disk.check()
        describe(file, words, fingerprint, precision)


def describe(file: h5py.File, words: Sequence[str] | None, fingerprint: str | None, precision: str) -> None:
    """Put the vocabulary and the attributes beside `embedding`, as far as they are known."""
    if words is not None:
        text, ends = joined(words)
        file.create_dataset("vocabulary", data=text)
        file.create_dataset("vocabulary_ends", data=ends)
    if fingerprint is not None:
        file.attrs["format_version"] = FORMAT_VERSION
        file.attrs["fingerprint"] = fingerprint
    file.attrs["precision"] = precision


def joined(words: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Words as UTF-8 bytes end to end, uint8, and the end of each, int64 [V]. Every string comes back as it was."""
    encoded = [_utf8(word) for word in words]
    lengths = np.fromiter(map(len, encoded), dtype=np.int64, count=len(encoded))
    return np.frombuffer(b"".join(encoded), dtype=np.uint8), np.cumsum(lengths)


def split(text: np.ndarray, ends: np.ndarray) -> list[str]:
    """Undo `joined`; `ValueError` for ends that do not fit."""
    whole, marks = text.tobytes(), [0, *ends.tolist()]
    if marks[-1] != len(whole) or any(end < begin for begin, end in zip(marks, marks[1:])):
        raise ValueError(f"vocabulary_ends: expected ends within {len(whole)} bytes, the last at the end")
    return [whole[begin:end].decode("utf-8", "surrogatepass") for begin, end in zip(marks, marks[1:])]


def check_storage(storage: str) -> str:
    """The argument itself, or `ValueError` when it is none of `STORAGES`."""
    if storage not in STORAGES:
        raise ValueError(f"storage: expected one of {', '.join(STORAGES)}, got {storage!r}")
    return storage


def _utf8(word: str) -> bytes:
    if not isinstance(word, str):
        raise ValueError(f"vocabulary: expected strings, got {type(word).__name__} ({word!r:.60})")
    return word.encode("utf-8", "surrogatepass")


def check_readable(name: str) -> None:
    """Raise `OSError` unless there is a file at `name` that can be read."""
    if os.path.isdir(name):
        raise IsADirectoryError(f"token table: expected an HDF5 file, got the directory {name}")
    if not os.path.exists(name):
        raise FileNotFoundError(f"token table: expected an HDF5 file, found nothing at {name}")
    if not os.access(name, os.R_OK):
        raise PermissionError(f"token table: expected a file that can be read, got {name}")


def _embedding(file: h5py.File, name: str) -> h5py.Dataset:
    dataset = file.get("embedding")
    if not isinstance(dataset, h5py.Dataset):
        raise ConfigurationError(f"token table {name}: expected the dataset embedding, found {sorted(file)}")
    if dataset.ndim != 2 or 0 in dataset.shape or dataset.dtype.name not in STORAGES:
        raise ConfigurationError(f"token table {name}: embedding: expected float32 or float16 of shape [words, values], "
                                 f"found {dataset.dtype} of shape {dataset.shape}")
    return dataset


def _words(file: h5py.File, count: int, name: str) -> list[str] | None:
    if "vocabulary" not in file:
        return None
    words = split(file["vocabulary"][...], file["vocabulary_ends"][...])
    if len(words) != count:
        raise ConfigurationError(f"token table {name}: expected a word for each of {count} vectors, found {len(words)}")
    return words


def _fingerprint(file: h5py.File, name: str) -> str | None:
    attributes: Mapping[str, Any] = file.attrs
    if "fingerprint" not in attributes:
        return None
    version = int(attributes.get("format_version", 0))
    if not 1 <= version <= FORMAT_VERSION:
        raise ConfigurationError(f"token table {name}: expected format version 1 to {FORMAT_VERSION}, found {version}; "
                                 "a newer elmo-fast may read it")
    return str(attributes["fingerprint"])


def _vectors(dataset: h5py.Dataset, name: str, device: torch.device | None) -> torch.Tensor:
    offset = dataset.id.get_offset()
    if device is None and offset is not None and dataset.dtype.isnative:
        # Copy on write: torch wants memory that may be written, the file stays as it is.
        return torch.from_numpy(np.memmap(name, dataset.dtype, "c", offset, dataset.shape))
    values = dataset[...].astype(dataset.dtype.newbyteorder("="), copy=False)
    return torch.from_numpy(values).to(device or "cpu")
