"""HDF5 with the contiguous vectors of all texts, and checksums of every byte: docs/formats.md describes the layout."""

import contextlib
import json
import mmap
import os
import zlib
from array import array
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path

import h5py
import numpy as np

from elmo_fast.errors import ConfigurationError
from elmo_fast.files import stops
from elmo_fast.files.atomic import DeferredErrorFile
from elmo_fast.files.hdf5 import attribute_of, dataset_of, new_hdf5, open_hdf5
from elmo_fast.files.json import parse_json
from elmo_fast.files.seal import PACKED, ROWS, TABLE, Blocks, read_seal, write_seal
from elmo_fast.files.strings import joined, split
from elmo_fast.vectors.layouts.embeddings import Embeddings
from elmo_fast.vectors.layouts.text_vectors import TextVectors, beyond_float16, narrow, overflow_error
from elmo_fast.vectors.spec import OutputSpec

FORMAT, FORMAT_VERSION = "elmo-fast packed", 1
_BUFFER = 2 << 20  # bytes of float32 vectors written at a time
_PIECE = 1 << 17  # values of other arrays copied at a time
# The vectors are written before HDF5 creates their dataset, since its length is known only at the end. If it has at
# least `_LARGE` bytes and is the first dataset, HDF5 places it at `_FIRST`; smaller ones are still in the buffer.
_FIRST, _LARGE = 4096, 1 << 19
_OPTIONS = {"alignment_threshold": _LARGE, "alignment_interval": _FIRST}
_STRINGS = {"keys": "key_ends", "texts": "text_ends", "tokens": "token_ends"}


class PackedWriter:
    """Writes texts into a packed file."""

    def __init__(self, disk: DeferredErrorFile, form: OutputSpec):
        self._form = form
        self._buffer: np.ndarray | None = None  # [rows, ...]
        self._filled = 0
        self._ends = array("q", [0])  # ends of texts, in rows of vectors
        self._token_ends = array("q", [0])  # ends of texts, in tokens
        self._positions = array("q")
        self._recent: dict[str, list[str]] = {name: [] for name in _STRINGS}
        self._strings: dict[str, list] = {name: [] for name in _STRINGS}  # results of `joined`
        self.rows = _Rows(disk, np.dtype(form.dtype))

    def write(self, item: TextVectors) -> None:
        vectors = item.vectors
        if self._form.pool:
            vectors = vectors[np.newaxis]
        elif self._form.layers == "all":
            vectors = vectors.swapaxes(0, 1)
        if self._buffer is None:
            self.rows.shape = vectors.shape[1:]
            size = 4 * int(np.prod(self.rows.shape))
            self._buffer = np.empty((max(1, -(-_BUFFER // size)), *self.rows.shape), vectors.dtype)
        elif self._buffer.dtype != vectors.dtype == np.float32:
            self._buffer = self._buffer.astype(np.float32)
        self._ends.append(self._ends[-1] + len(vectors))
        self._token_ends.append(self._token_ends[-1] + len(item.tokens))
        if item.positions is not None:
            self._positions.frombytes(item.positions.tobytes())
        self._recent["keys"].append(item.key)
        self._recent["texts"].append(item.text)
        self._recent["tokens"].extend(item.tokens)
        if len(self._recent["tokens"]) >= 1 << 16:
            self._pack()
        self._gather(vectors)

    def finish(self, file: h5py.File, fingerprint: dict | None) -> None:
        """Write the rest of the vectors, then all other arrays and the attributes."""
        self._pack()
        if self.rows.done:
            self._flush()
            self.rows.place(file, self.rows.done)
        else:
            self.rows.place(file, self._filled)
            self._flush()
        _describe(file, self._form, fingerprint)
        for name, ends in _STRINGS.items():
            pieces = self._strings[name]
            _write_dataset(file, name, np.uint8, sum(len(text) for text, _ in pieces), (text for text, _ in pieces))
            _write_dataset(file, ends, np.int64, sum(len(limits) for _, limits in pieces),
                           _concatenate_ends(limits for _, limits in pieces))
        file["offsets"], file["token_offsets"] = np.array(self._ends), np.array(self._token_ends)
        if self._form.targets is not None:
            file["positions"] = np.array(self._positions, dtype=np.int64)

    def _gather(self, vectors: np.ndarray) -> None:
        begin = 0
        while begin < len(vectors):
            count = min(len(vectors) - begin, len(self._buffer) - self._filled)
            self._buffer[self._filled : self._filled + count] = vectors[begin : begin + count]
            begin, self._filled = begin + count, self._filled + count
            if self._filled == len(self._buffer):
                self._flush()

    def _flush(self) -> None:
        if not self._filled:
            return
        given = self._buffer[: self._filled]
        try:
            self.rows.append(narrow(given, self.rows.dtype))
        except OverflowError:
            row = int(beyond_float16(given.reshape(len(given), -1)).any(axis=1).argmax())
            text = int(np.searchsorted(np.array(self._ends), self.rows.done + row, side="right")) - 1
            keys = [key for piece in self._strings["keys"] for key in split(*piece)] + self._recent["keys"]
            raise overflow_error(keys[text], given[row]) from None
        self._filled = 0

    def _pack(self) -> None:
        for name, strings in self._recent.items():
            if strings:
                self._strings[name].append(joined(strings))
            self._recent[name] = []


class _Rows:
    """Writes contiguous rows of vectors without HDF5, and computes the CRC-32 of every block of 256 rows."""

    def __init__(self, disk: DeferredErrorFile, dtype: np.dtype):
        self._disk, self.dtype = disk, dtype
        self.shape: tuple[int, ...] = (0,)  # shape of a row
        self.first, self.done = _FIRST, 0
        self.sums: list[int] = []

    @property
    def size(self) -> int:
        """Bytes of a row."""
        return int(np.prod(self.shape)) * self.dtype.itemsize

    def append(self, values: np.ndarray) -> None:
        """Write the next rows, contiguous [N, ...]."""
        self._disk.seek(self.first + self.done * self.size)
        self._disk.write(values)
        begin = 0
        while begin < len(values):
            count = min(len(values) - begin, ROWS - self.done % ROWS)
            if self.done % ROWS == 0:
                self.sums.append(0)
            self.sums[-1] = zlib.crc32(values[begin : begin + count], self.sums[-1])
            begin, self.done = begin + count, self.done + count
        self._disk.check()
        stops.check()

    def place(self, file: h5py.File, count: int) -> None:
        """Create the dataset of `count` rows, before or after the rows are written."""
        properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        properties.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
        properties.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
        dataset = h5py.h5d.create(file.id, b"vectors", h5py.h5t.py_create(self.dtype),
                                  h5py.h5s.create_simple((count, *self.shape)), properties)
        first = dataset.get_offset() or 0
        if self.done and first != self.first:
            raise OSError(f"{self._disk.target}: expected HDF5 to place the vectors at {self.first}, found {first}")
        self.first = first


@contextlib.contextmanager
def segment(path: Path, target, form: OutputSpec, *, fingerprint: dict | None = None, **_) -> Iterator[PackedWriter]:
    """A writer of a file at `path`; its errors name `target`."""
    with new_hdf5(path, target, **_OPTIONS) as (file, disk):
        writer = PackedWriter(disk, form)
        yield writer
        writer.finish(file, fingerprint)
    _seal(path, target, writer.rows)


def join(segments: Sequence[Path], part: Path, target, form: OutputSpec, *, fingerprint: dict | None = None,
         **_) -> None:
    """Join segments, whose checksums are verified."""
    sources = [PackedSource(path) for path in segments]
    with contextlib.ExitStack() as stack, new_hdf5(part, target, **_OPTIONS) as (file, disk):
        for source in sources:
            stack.callback(source.close)
        rows = _Rows(disk, np.dtype(form.dtype))
        rows.shape = next((source.rows.shape[1:] for source in sources if len(source)), rows.shape)
        rows.place(file, sum(len(source.rows) for source in sources))
        for source in sources:
            for begin in range(0, len(source.rows), 16 * ROWS):
                values = source.rows[begin : begin + 16 * ROWS]
                source.blocks.check(np.arange(begin, begin + len(values)))
                rows.append(values)
                source.forget()
        _describe(file, form, fingerprint)
        names = [*_STRINGS, *_STRINGS.values(), "offsets", "token_offsets", *["positions"][: form.targets is not None]]
        for name in names:
            _join(file, name, [source.arrays[name] for source in sources])
            for source in sources:
                source.forget()
    _seal(part, target, rows)


def _join(file: h5py.File, name: str, arrays: Sequence[np.ndarray]) -> None:
    if name.endswith("_ends"):
        _write_dataset(file, name, np.int64, sum(map(len, arrays)), _concatenate_ends(arrays))
    elif name.endswith("offsets"):
        _write_dataset(file, name, np.int64, sum(map(len, arrays)) - len(arrays) + 1,
                       _concatenate_ends([arrays[0][:1], *(ends[1:] for ends in arrays)]))
    else:
        _write_dataset(file, name, arrays[0].dtype, sum(map(len, arrays)), arrays)


def _concatenate_ends(pieces: Iterable[np.ndarray]) -> Iterator[np.ndarray]:
    """Yield arrays of ends, each increased by the last end before it."""
    base = 0
    for piece in pieces:
        for begin in range(0, len(piece), _PIECE):
            yield piece[begin : begin + _PIECE] + base
        base += int(piece[-1]) if len(piece) else 0


def _write_dataset(file: h5py.File, name: str, dtype, length: int, pieces: Iterable[np.ndarray]) -> None:
    dataset, at = file.create_dataset(name, (length,), dtype), 0
    for piece in pieces:
        for begin in range(0, len(piece), _PIECE):
            part = piece[begin : begin + _PIECE]
            dataset[at : at + len(part)] = part
            at += len(part)
            stops.check()


def _describe(file: h5py.File, form: OutputSpec, fingerprint: dict | None) -> None:
    file.attrs["format"], file.attrs["format_version"] = FORMAT, FORMAT_VERSION
    file.attrs["form"], file.attrs["fingerprint"] = json.dumps(form.describe()), json.dumps(fingerprint)


def _seal(path: Path, target, rows: _Rows) -> None:
    try:
        with open(path, "r+b") as file:
            seal = write_seal(file, rows.first, rows.done * rows.size, rows.done, PACKED)
            file.seek(seal.size)
            file.write(np.array([rows.done, *rows.sums], dtype=np.int64))
    except OSError as error:
        raise OSError(error.errno, error.strerror, os.fspath(target)) from error


class PackedSource(Embeddings):
    """A memory-mapped packed file. Checksums of vectors are verified when the vectors are first read."""

    layout = "packed"

    @classmethod
    def recognizes(cls, path: Path) -> bool:
        """Whether a file has this layout's seal or format. Verifies a token table's checksum before HDF5 parses it."""
        if read_seal(path, PACKED):
            return True
        read_seal(path, TABLE)
        with open_hdf5(path, "embeddings") as file:
            return attribute_of(file, "format", f"embeddings {path}", str) == FORMAT

    def __init__(self, path: str | os.PathLike):
        self._name = name = os.fspath(path)
        sealed = read_seal(name, PACKED)
        where = f"embeddings {name}"
        with open_hdf5(path, "embeddings") as file:
            self._check_version(attribute_of(file, "format_version", where, int, 0), FORMAT_VERSION)
            if sealed is None:
                raise ConfigurationError(f"embeddings {name}: expected a seal with checksums at its end, found none: "
                                         "the file is incomplete, or was cut or changed; write it again")
            self._describe({each: parse_json(attribute_of(file, each, where, str, ""), f"{where}: attribute {each}")
                            for each in ("form", "fingerprint")})
            with open(name, "rb") as content:
                self._map = mmap.mmap(content.fileno(), 0, access=mmap.ACCESS_READ)
            mapped = np.frombuffer(self._map, np.uint8)
            datasets = _datasets(file, self.form, where)
            self.arrays = {each: _mapped(mapped, dataset) for each, dataset in datasets.items()}
        self.rows = self.arrays["vectors"]
        self._check_offsets()
        seal, progress = sealed
        if seal.rows != len(self.rows) or progress[0] != len(self.rows):
            raise ConfigurationError(f"embeddings {name}: expected all of its {len(self.rows)} vectors, found "
                                     f"{progress[0]}: the file is incomplete; write it again")
        self.blocks = Blocks(name, self.rows, progress[1:], PACKED)

    def _check_offsets(self) -> None:
        """Raise `ConfigurationError` unless the offsets into every array ascend to its end."""
        lengths = {"offsets": len(self.rows), "token_offsets": len(self.arrays["token_ends"])}
        lengths |= {ends: len(self.arrays[name]) for name, ends in _STRINGS.items()}
        for name, length in lengths.items():
            ends = self.arrays[name]
            first = int(ends[0]) if len(ends) else 0
            rises = first >= 0 and (int(ends[-1]) if len(ends) else 0) == length and not (ends[1:] < ends[:-1]).any()
            if not rises or (name.endswith("offsets") and first):
                raise ConfigurationError(f"embeddings {self._name}: {name}: expected offsets that rise to {length}, "
                                         "found others: the file is damaged")
        texts = {len(self.arrays[name]) for name in ("key_ends", "text_ends")}
        texts |= {len(self.arrays[name]) - 1 for name in ("offsets", "token_offsets")}
        if len(texts) > 1:
            raise ConfigurationError(f"embeddings {self._name}: expected keys, texts, tokens and vectors of the same "
                                     f"number of texts, found numbers {sorted(texts)}")

    @cached_property
    def keys(self) -> list[str]:
        return self._strings("keys", 0, len(self))

    def __len__(self) -> int:
        return len(self.arrays["offsets"]) - 1

    def _vectors(self, number: int) -> np.ndarray:
        begin, end = self.arrays["offsets"][number : number + 2].tolist()
        if self.blocks.left:
            self.blocks.check(np.arange(begin, end))
        return self._restore_shape(self.rows[begin:end])

    def _text(self, number: int) -> str:
        return self._strings("texts", number, number + 1)[0]

    def _tokens(self, number: int) -> list[str]:
        return self._strings("tokens", *self.arrays["token_offsets"][number : number + 2].tolist())

    def _positions(self, number: int) -> np.ndarray | None:
        if "positions" not in self.arrays:
            return None
        begin, end = self.arrays["offsets"][number : number + 2].tolist()
        return np.array(self.arrays["positions"][begin:end])

    def _strings(self, name: str, begin: int, end: int) -> list[str]:
        content, ends = self.arrays[name], self.arrays[_STRINGS[name]]
        first, last = (int(ends[text - 1]) if text else 0 for text in (begin, end))
        try:
            return split(content[first:last], ends[begin:end] - first)
        except ValueError as error:
            raise ConfigurationError(f"embeddings {self._name}: {name}: expected strings in UTF-8, found others: the "
                                     f"file is damaged ({error!s:.100})") from error

    def forget(self) -> None:
        """Release the memory of pages that were read; the file stays mapped."""
        if hasattr(self._map, "madvise"):
            self._map.madvise(mmap.MADV_DONTNEED)

    def close(self) -> None:
        self.arrays, self.rows, self.blocks, self._map = {}, self.rows[:0].copy(), None, None


def _datasets(file: h5py.File, form: dict, where: str) -> dict[str, h5py.Dataset]:
    """The datasets of a file, after checking the types and numbers of axes that its form requires."""
    vectors, axes = dataset_of(file, "vectors", where), 2 + (form["layers"] == "all")
    if vectors.dtype.name != form["dtype"] or not vectors.shape or (vectors.shape[0] and vectors.ndim != axes):
        raise ConfigurationError(f"{where}: vectors: expected {axes} axes of {form['dtype']}, found "
                                 f"{vectors.dtype!s:.80} of shape {vectors.shape}")
    datasets = {"vectors": vectors}
    datasets |= {name: dataset_of(file, name, where, "u", None) for name in _STRINGS}
    rows = {"positions": len(vectors)} if form["targets"] else {}
    for name, length in {**dict.fromkeys([*_STRINGS.values(), "offsets", "token_offsets"]), **rows}.items():
        datasets[name] = dataset_of(file, name, where, "i", length)
    for name, dataset in datasets.items():
        if (dataset.nbytes and dataset.id.get_offset() is None) or dataset.dtype.byteorder == ">":
            raise ConfigurationError(f"{where}: {name}: expected contiguous little-endian values, found others")
    return datasets


def _mapped(content: np.ndarray, dataset: h5py.Dataset) -> np.ndarray:
    first = dataset.id.get_offset()
    if first is None:
        return np.empty(dataset.shape, dataset.dtype)
    return content[first : first + dataset.nbytes].view(dataset.dtype).reshape(dataset.shape)

