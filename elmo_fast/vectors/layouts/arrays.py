"""NumPy files: `.npz` with an array per text or target word, `.npy` of pooled vectors with their names in a `.json`."""

import contextlib
import json
import os
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from elmo_fast.arguments import local_path
from elmo_fast.errors import ConfigurationError
from elmo_fast.files import stops
from elmo_fast.files.atomic import DeferredErrorFile, replace, write_part
from elmo_fast.files.hdf5 import check_unpacked, new_hdf5
from elmo_fast.files.json import parse_json
from elmo_fast.files.lock import locked, own_file
from elmo_fast.vectors.layouts.allennlp import Hdf5Writer
from elmo_fast.vectors.layouts.embeddings import Embeddings
from elmo_fast.vectors.layouts.text_vectors import TextVectors, narrowed
from elmo_fast.vectors.spec import OutputSpec

_COPIED = 1 << 24  # bytes copied at a time
_LONGEST = (1 << 16) - 1 - len(".npy")  # bytes of a name in a ZIP file
_NAMES = b'["', b"[]"  # first bytes of a file of names
_EXPECTED = "arrays of NumPy, got something else or a file cut short or damaged"


def write_arrays(path: str | os.PathLike, arrays: Iterable[tuple[str, np.ndarray]]) -> None:
    """Write named arrays in order. A `.npy` has them stacked, and their names in a `.json` file beside it."""
    path = local_path(path)
    with locked(path) as folder:
        folder.mkdir()
        with WRITERS[Path(path).suffix](folder / "part", path) as write:
            for name, values in arrays:
                write(name, np.asanyarray(values))
                stops.check()
        place(folder / "part", path)


def names_of(path: str | os.PathLike) -> Path:
    """The `.json` file of names beside a `.npy`, or beside the file that a symbolic link leads to."""
    return Path(os.path.realpath(path)).with_suffix(".json")


def names_of_part(path: Path) -> Path:
    """The `.json` file of names beside a segment, whose name may have any suffix."""
    return path.with_name(f"{path.name}.json")


def check(target: str, form: OutputSpec, name: str) -> None:
    """Raise `ConfigurationError` or `OSError` if a `.npy` and its names cannot be written."""
    if Path(target).suffix == ".npy":
        if not form.pool or form.layers == "all":
            raise ConfigurationError(f"{name}: expected .h5 or .npz for arrays of different lengths, got .npy, which "
                                     "needs one vector per text: --pool with --top, --average, --layer or --weights "
                                     "(seqvec: --protein)")
        own_file(names_of(target), name, f"the names of {target}", lambda start, _: start[:2] in _NAMES)


def place(part: Path, target: str | os.PathLike) -> None:
    """Rename a file to its target; a `.npy` after its names.

    Old vectors are removed first, so that a kill between the renames leaves no vectors beside the names of others.
    """
    final, names_part = Path(os.path.realpath(target)), names_of_part(part)
    if names_part.exists():
        final.unlink(missing_ok=True)
        replace(names_part, names_of(final) if Path(target).suffix == ".npy" else names_of_part(final))
    replace(part, final)


@contextlib.contextmanager
def _h5(part: Path, target) -> Iterator:
    with new_hdf5(part, target) as (file, disk):
        yield Hdf5Writer(file, disk).write


@contextlib.contextmanager
def _npz(part: Path, target) -> Iterator:
    names: set[str] = set()
    with DeferredErrorFile(part, target) as disk, zipfile.ZipFile(disk, "w", zipfile.ZIP_STORED) as archive:
        def write(name: str, values: np.ndarray) -> None:
            try:
                is_valid = name not in names and "\0" not in name and len(name.encode()) <= _LONGEST
            except UnicodeEncodeError:
                is_valid = False
            if not is_valid:
                raise ConfigurationError("output: expected different identifiers without NUL, which are UTF-8 of at "
                                         f"most {_LONGEST:,} bytes, for .npz, got {name!r:.60}")
            names.add(name)
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, values, allow_pickle=False)
            disk.check()

        yield write


@contextlib.contextmanager
def _npy(part: Path, target) -> Iterator:
    names: list[str] = []
    arrays: list[np.ndarray] = []

    def write(name: str, values: np.ndarray) -> None:
        names.append(name)
        arrays.append(values.copy())  # the caller may fill its array anew

    yield write
    _stack(part, target, names, [np.asarray(arrays)])


def _stack(part: Path, target, names: list[str], arrays: Sequence[np.ndarray]) -> None:
    """Write a `.npy` of the rows of all arrays, and their names. `np.save` would bypass the `DeferredErrorFile`."""
    shape = (sum(map(len, arrays)), *arrays[0].shape[1:])
    described = np.lib.format.header_data_from_array_1_0(np.empty(0, arrays[0].dtype))
    with DeferredErrorFile(part, target) as disk:
        write_part(names_of_part(part), names_of(target), json.dumps(names).encode())
        np.lib.format.write_array_header_1_0(disk, {**described, "shape": shape})
        for values in arrays:
            rows = max(1, _COPIED // max(1, values[:1].nbytes))
            for begin in range(0, len(values), rows):
                disk.write(np.ascontiguousarray(values[begin : begin + rows]))
                disk.check()


WRITERS = {".h5": _h5, ".hdf5": _h5, ".npz": _npz, ".npy": _npy}


class _ArrayWriter:
    """Writes texts as named arrays."""

    def __init__(self, write, form: OutputSpec):
        self._write, self._dtype = write, np.dtype(form.dtype)

    def write(self, item: TextVectors) -> None:
        self._write(item.key, narrowed(item, self._dtype))
        stops.check()


class _WordWriter(_ArrayWriter):
    """Collects the vectors of every target word, [occurrences, ...], and writes them at the end."""

    def __init__(self, write, form: OutputSpec):
        super().__init__(write, form)
        self._words: dict[str, list[np.ndarray]] = {}

    def write(self, item: TextVectors) -> None:
        vectors = np.moveaxis(narrowed(item, self._dtype), -2, 0)
        for position, values in zip(item.positions.tolist(), vectors):
            self._words.setdefault(item.tokens[position], []).append(values)
        stops.check()

    def finish(self) -> None:
        """Write the words in order of first occurrence."""
        for word, values in self._words.items():
            self._write(word, np.stack(values))


@contextlib.contextmanager
def segment(path: Path, target, form: OutputSpec, **_) -> Iterator[_ArrayWriter]:
    """A writer of a file at `path`, in the format of the target's suffix."""
    with WRITERS[Path(target).suffix](path, target) as write:
        if form.targets is not None and Path(target).suffix == ".npz":
            words = _WordWriter(write, form)
            yield words
            words.finish()
        else:
            yield _ArrayWriter(write, form)


def join(segments: Sequence[Path], part: Path, target, form: OutputSpec, **_) -> None:
    """Join segments. Only target words are in several; `with_unique_keys` has refused texts with the same key."""
    if Path(target).suffix == ".npy":
        arrays = [np.load(path, mmap_mode="r") for path in segments]
        names = [name for path in segments for name in json.loads(names_of_part(path).read_text(encoding="utf-8"))]
        _stack(part, target, names, [values for values in arrays if values.size] or arrays[:1])
        return
    with contextlib.ExitStack() as stack, _npz(part, target) as write:
        archives = [stack.enter_context(np.load(path)) for path in segments]
        for name in dict.fromkeys(name for archive in archives for name in archive.files):
            parts = [_member(archive, name) for archive in archives if name in archive.files]
            write(name, parts[0] if len(parts) == 1 else np.concatenate(parts))
            stops.check()


def _member(archive: np.lib.npyio.NpzFile, name: str) -> np.ndarray:
    """The array of a name. `NpzFile` takes `a.npy` for the array `a` if there is one."""
    try:
        return archive[f"{name}.npy"]
    except KeyError:
        return archive[name]


def _check_floats(array: Any, name: str, least_axes: int = 0) -> None:
    if not isinstance(array, np.ndarray) or array.dtype.kind != "f" or array.ndim < least_axes:
        raise ValueError(f"{name} is not an array of floating-point numbers, or has no rows")


class NpzSource(Embeddings):
    """A `.npz`; an array is read, and its checksum verified, when it is accessed."""

    layout = "npz"
    _expected = _EXPECTED

    def __init__(self, path: str | os.PathLike):
        self._name = os.fspath(path)
        with self._reading():
            self._file = np.load(path)
        if not isinstance(self._file, np.lib.npyio.NpzFile):
            raise ConfigurationError(f"embeddings {self._name}: expected an archive of arrays, got another file")
        self.keys, stored = list(self._file.files), os.path.getsize(path)
        if len(set(self.keys)) < len(self.keys):  # of which one is read
            raise ConfigurationError(f"embeddings {self._name}: expected different names of arrays, found one twice")
        check_unpacked(f"embeddings {self._name}", sum(info.file_size for info in self._file.zip.infolist()), stored)

    def _vectors(self, number: int) -> np.ndarray:
        with self._reading():
            array = _member(self._file, self.keys[number])
            _check_floats(array, f"{self.keys[number]!r:.80}")
            return array

    def close(self) -> None:
        super().close()
        self._file.close()


class NpySource(Embeddings):
    """A memory-mapped `.npy`. Its keys are the names in the `.json` file beside it, else the numbers of its rows."""

    layout = "npy"
    _expected = _EXPECTED

    def __init__(self, path: str | os.PathLike):
        self._name = os.fspath(path)
        with self._reading(), np.errstate(over="ignore"):  # NumPy multiplies the sizes of a header
            self._rows = np.load(path, mmap_mode="r")
            _check_floats(self._rows, "the array", least_axes=1)
            keys, names = range(len(self._rows)), names_of(path)
            if not names.exists():  # a link to a file that is stored under another name has its names beside it
                names = Path(path).with_suffix(".json")
            if names.exists():
                keys = parse_json(names.read_bytes(), f"embeddings {names}")
            if not isinstance(keys, (list, range)) or not all(isinstance(key, (str, int)) for key in keys):
                raise ConfigurationError(f"embeddings {names}: expected a list of names, found {keys!r:.80}")
            if len(keys) != len(self._rows):
                raise ValueError(f"{len(self._rows)} vectors with {len(keys)} names in {names.name}")
        self.keys = list(map(str, keys))

    def _vectors(self, number: int) -> np.ndarray:
        with self._reading():
            return np.array(self._rows[number])

    def close(self) -> None:
        super().close()
        self._rows = self._rows[:0].copy()
