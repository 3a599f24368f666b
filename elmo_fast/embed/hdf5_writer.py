"""One HDF5 dataset a sentence, in AllenNLP's layout; the file takes its name only when it is whole."""

import contextlib
import json
import os
from collections.abc import Iterator

import h5py
import numpy as np

from elmo_fast.model.options import ConfigurationError
from elmo_fast.model.atomic_file import Disk, atomic_hdf5, check_target

INDEX_KEY = "sentence_to_index"


class Hdf5Writer:
    """Writes datasets of float32 by key into an open file."""

    def __init__(self, file: h5py.File, disk: Disk):
        self._file = file
        self._disk = disk

    def write(self, key: str, vectors: np.ndarray) -> None:
        """Add one sentence's vectors; `ConfigurationError` when the key is taken or cannot be a name in HDF5."""
        if "\0" in key or key.rpartition("/")[2] in ("", "."):
            raise ConfigurationError(f"use_sentence_keys: expected sentences that HDF5 takes as names, "
                                     f"got {key!r:.80}; line numbers always work")
        if key in self._file:
            raise ConfigurationError(f"use_sentence_keys: expected different sentences, got {key!r:.80} twice "
                                     f"(or as a part of another's path) in {self._disk.target}; line numbers always work")
        try:
            self._file.create_dataset(key, data=vectors, dtype="float32")
        except (ValueError, TypeError) as error:
            raise ConfigurationError(f"use_sentence_keys: expected sentences that HDF5 takes as names, "
                                     f"got {key!r:.80} ({error}); line numbers always work") from error
        self._disk.check()

    def write_index(self, sentence_to_index: dict[str, str]) -> None:
        """Add AllenNLP's `sentence_to_index`: one JSON string that maps each sentence to its key."""
        index = self._file.create_dataset(INDEX_KEY, (1,), dtype=h5py.string_dtype())
        index[0] = json.dumps(sentence_to_index)


@contextlib.contextmanager
def hdf5_file(path: str | os.PathLike) -> Iterator[Hdf5Writer]:
    """A writer whose file appears at `path` when the body succeeds, and leaves nothing behind when it does not."""
    check_output(path)
    with atomic_hdf5(path) as (file, disk):
        yield Hdf5Writer(file, disk)


def check_output(path: str | os.PathLike) -> None:
    """Raise `OSError` when a file cannot come to be at `path`: before any work is done for it."""
    check_target(path, "output file")
