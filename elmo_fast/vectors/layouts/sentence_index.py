"""AllenNLP's `sentence_to_index`: a JSON string in an HDF5 file that maps every sentence to its key."""

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path

import h5py

from elmo_fast.errors import ConfigurationError

INDEX = "sentence_to_index"
_COPIED = 1 << 20  # bytes copied at a time


class Index:
    """Collects the JSON of an index in a temporary file beside `path`, the file of vectors for `target`."""

    def __init__(self, path: Path, target):
        self._path, self._target = path.with_name(f"{path.name}.index"), target
        self._size = 0

    def __enter__(self) -> "Index":
        self._file = open(self._path, "w+b")
        return self

    def __exit__(self, *_) -> None:
        with contextlib.suppress(OSError):  # of a full disk, which was raised before
            self._file.close()
        self._path.unlink()

    def add(self, text: str, key: str) -> None:
        """Add a text. Among equal texts, JSON readers use the last."""
        self.extend(f"{{{json.dumps(text)}: {json.dumps(key)}}}".encode())

    def extend(self, index: bytes) -> None:
        """Add all entries of another index's JSON."""
        if pairs := index[1:-1]:
            with self._writing():
                self._size += self._file.write(b", " + pairs)

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise OSError(error.errno, error.strerror, os.fspath(self._target)) from error

    @property
    def size(self) -> int:
        """Bytes of the JSON: its two braces take the place of the separator before the first pair."""
        return max(2, self._size)

    def json(self) -> Iterator[bytes]:
        """The JSON, in pieces."""
        with self._writing():
            self._file.seek(2)
        yield b"{"
        while piece := self._file.read(_COPIED):
            yield piece
        yield b"}"


def has_index(file: h5py.File) -> bool:
    """Whether the file has AllenNLP's `sentence_to_index`, not a text's vectors with that name."""
    item = file.get(INDEX)
    return isinstance(item, h5py.Dataset) and item.dtype.kind != "f"


def read_index(file: h5py.File, where: str) -> dict[str, str]:
    """Map keys to texts. The JSON has a pair for every text, also for repeated ones."""
    dataset = file[INDEX]
    if dataset.shape != (1,) or h5py.check_string_dtype(dataset.dtype) is None:
        raise ConfigurationError(f"{where}: {INDEX}: expected a string, found {dataset.dtype!s:.80} of shape "
                                 f"{dataset.shape}")
    try:
        index = json.loads(dataset[0], object_pairs_hook=tuple)
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"{where}: {INDEX}: expected JSON ({error!s:.160})") from error
    if not isinstance(index, tuple) or not all(isinstance(key, str) for _, key in index):
        raise ConfigurationError(f"{where}: {INDEX}: expected an object that maps sentences to keys, found "
                                 f"{index!r:.80}")
    return {key: text for text, key in index}
