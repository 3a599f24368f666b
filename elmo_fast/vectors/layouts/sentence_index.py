"""AllenNLP's `sentence_to_index`: a JSON string in an HDF5 file that maps every sentence to its key."""

import json

import h5py

from elmo_fast.errors import ConfigurationError

INDEX = "sentence_to_index"


class Index:
    """Collects the JSON of an index."""

    def __init__(self):
        self._pairs = bytearray()

    def add(self, text: str, key: str) -> None:
        """Add a text. Among equal texts, JSON readers use the last."""
        self.extend(json.dumps({text: key}).encode())

    def extend(self, index: bytes) -> None:
        """Add all entries of another index's JSON."""
        if pairs := index[1:-1]:
            self._pairs += (b", " if self._pairs else b"") + pairs

    def json(self) -> bytes:
        """The JSON."""
        return b"{%b}" % self._pairs


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
