"""Arrays to files, written atomically: HDF5 as AllenNLP's, and `.h5`, `.npz`, `.npy`."""

import contextlib
import json
import os
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import h5py
import numpy as np

from elmo_fast import stops
from elmo_fast.model.atomic_file import Disk, atomic_hdf5, atomic_path, check_target
from elmo_fast.model.options import ConfigurationError


class Hdf5Writer:
    """Writes float32 datasets, one a sentence, into an open file in the layout of AllenNLP's `ElmoEmbedder`."""

    def __init__(self, file: h5py.File, disk: Disk):
        self._file = file
        self._disk = disk

    def write(self, key: str, vectors: np.ndarray) -> None:
        """Add one sentence's vectors; `ConfigurationError` when the key is taken or cannot be a name in HDF5."""
        accepted = "\0" not in key and key.rpartition("/")[2] not in ("", ".")
        if accepted and key in self._file:
            raise ConfigurationError(f"use_sentence_keys: expected different sentences, got {key!r:.80} twice (or as a "
                                     f"part of another's path) in {self._disk.target}; line numbers always work")
        try:
            if not accepted:
                raise ValueError("HDF5 would cut the name or take it for a group's")
            self._file.create_dataset(key, data=vectors, dtype="float32")
        except (ValueError, TypeError) as error:
            raise ConfigurationError("use_sentence_keys: expected sentences that HDF5 takes as names, got "
                                     f"{key!r:.80}; line numbers always work") from error
        self._disk.check()
        stops.check()

    def write_index(self, sentence_to_index: dict[str, str]) -> None:
        """Add AllenNLP's `sentence_to_index`: one JSON string that maps each sentence to its key."""
        index = self._file.create_dataset("sentence_to_index", (1,), dtype=h5py.string_dtype())
        index[0] = json.dumps(sentence_to_index)


@contextlib.contextmanager
def hdf5_file(path: str | os.PathLike) -> Iterator[Hdf5Writer]:
    """A writer of a file that appears at `path` only when the body succeeds; `OSError` where none can be written."""
    check_target(path, "output file")
    with atomic_hdf5(path) as (file, disk):
        yield Hdf5Writer(file, disk)


def check_array_file(path: str | os.PathLike, equal_shapes: bool) -> None:
    """Raise `ConfigurationError` or `OSError` when `write_arrays` could not write there; `.npy` needs equal shapes."""
    suffix = Path(path).suffix
    if suffix not in _WRITERS:
        raise ConfigurationError(f"output: expected a file that ends in {', '.join(_WRITERS)}, got {os.fspath(path)}")
    if suffix == ".npy" and not equal_shapes:
        raise ConfigurationError("output: expected .h5 or .npz for arrays of different lengths, got .npy, which is for "
                                 "a single vector a text (pooled; --protein)")
    check_target(path, "output")
    if suffix == ".npy":
        check_target(Path(path).with_suffix(".json"), "output")


def write_arrays(path: str | os.PathLike, arrays: Iterable[tuple[str, np.ndarray]]) -> None:
    """Write named arrays as they come; `.npy` stacks them and puts their names, in order, into a `.json` beside it."""
    _WRITERS[Path(path).suffix](path, map(_unless_stopped, arrays))


def _unless_stopped(named: tuple[str, np.ndarray]) -> tuple[str, np.ndarray]:
    stops.check()
    return named


def _write_h5(path, arrays) -> None:
    with atomic_hdf5(path) as (file, disk):
        for name, values in arrays:
            try:
                file.create_dataset(name, data=values)
            except (ValueError, TypeError) as error:
                raise ConfigurationError(f"output: expected identifiers that HDF5 takes as names, got {name!r:.60} "
                                         f"({error}); .npz takes any") from error
            disk.check()


def _write_npz(path, arrays) -> None:
    with atomic_path(path) as part, Disk(part, path) as disk:
        with zipfile.ZipFile(disk, "w", zipfile.ZIP_STORED) as archive:
            for name, values in arrays:
                with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                    np.lib.format.write_array(member, np.asanyarray(values), allow_pickle=False)
                disk.check()
        disk.check()


def _write_npy(path, arrays) -> None:
    names_path = Path(path).with_suffix(".json")
    with (atomic_path(names_path) as names_part, atomic_path(path) as part, Disk(names_part, names_path) as names_disk,
          Disk(part, path) as disk):
        named = list(arrays)
        values = np.asarray([values for _, values in named])
        names_disk.write(json.dumps([name for name, _ in named]).encode())
        np.lib.format.write_array_header_1_0(disk, np.lib.format.header_data_from_array_1_0(values))
        disk.write(values if values.size else b"")  # `np.save` would go past the `Disk`, to the file's descriptor
        for written in (names_disk, disk):
            written.check()
        Path(os.path.realpath(names_path)).unlink(missing_ok=True)  # old names never stand beside new vectors


_WRITERS = {".h5": _write_h5, ".npz": _write_npz, ".npy": _write_npy}
