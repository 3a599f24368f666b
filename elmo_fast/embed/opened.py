"""`open_embeddings`: files and directories of vectors, in every layout, as sequences of arrays."""

import os
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import overload

import numpy as np

from elmo_fast.choices import check_path
from elmo_fast.embed.layouts.allennlp import AllennlpSource
from elmo_fast.embed.layouts.arrays import NpySource, NpzSource
from elmo_fast.embed.layouts.item import Source
from elmo_fast.embed.layouts.packed import PackedSource
from elmo_fast.embed.layouts.shards import ShardsSource
from elmo_fast.model.hdf5 import open_hdf5
from elmo_fast.model.options import ConfigurationError
from elmo_fast.model.seal import PACKED, TABLE, read_seal

_WEIGHTS = "CNN", "char_embed", "RNN_0"


def open_embeddings(path: str | os.PathLike) -> "Embeddings":
    """Open what `embed`, `seqvec`, `LoadedElmo.save_vectors`, AllenNLP or SeqVec wrote.

    Nothing is read but what is asked for. Raises `FileNotFoundError`, and `ConfigurationError` for files that are
    incomplete, damaged, or hold something else.
    """
    return Embeddings(path)


class Embeddings(Sequence):
    """The vectors of texts, in order: `[i]` is what `LoadedElmo.embed` gave, in the type that was stored.

    [layers, tokens, 2 P], without the first axis where layers were mixed, and without tokens where they were pooled;
    with targets, the tokens are those alone. Texts are numbered from 0, from the end with negative numbers. What a
    layout does not store, as texts in `.npz`, raises `ConfigurationError`. A copy in another process opens the file
    again.
    """

    def __init__(self, path: str | os.PathLike):
        self._path = os.path.abspath(check_path("embeddings", path))
        self._source = _source(Path(self._path))

    @property
    def layout(self) -> str:
        """The layout, as `--layout` names it."""
        return self._source.layout

    @property
    def layers(self) -> str | list[float] | None:
        """`all`, `top`, `average`, or the factors of the layers; None where the file does not say."""
        return self._source.form["layers"] if self._source.form else None

    @property
    def pool(self) -> str | None:
        """How tokens were pooled; None where they were not, or the file does not say."""
        return self._source.form["pool"] if self._source.form else None

    @property
    def dtype(self) -> np.dtype:
        """The type of the vectors."""
        if self._source.form:
            return np.dtype(self._source.form["dtype"])
        return self._source.vectors(0).dtype if len(self) else np.dtype(np.float32)

    @property
    def fingerprint(self) -> dict | None:
        """The model and the settings that the vectors were made with, where the file says."""
        return self._source.fingerprint

    @property
    def keys(self) -> list[str]:
        """A key for each text: its number, its identifier, or the sentence itself."""
        return self._source.keys

    def __len__(self) -> int:
        return len(self._source)

    @overload
    def __getitem__(self, index: int) -> np.ndarray: ...

    @overload
    def __getitem__(self, index: slice) -> list[np.ndarray]: ...

    def __getitem__(self, index):
        if isinstance(index, slice):
            return [self._source.vectors(number) for number in range(*index.indices(len(self)))]
        return self._source.vectors(self._number(index))

    def __iter__(self) -> Iterator[np.ndarray]:
        return map(self._source.vectors, range(len(self)))

    def by_key(self, key: str) -> np.ndarray:
        """The vectors of the first text with a key; `KeyError` where there is none."""
        return self._source.vectors(self._numbers[key])

    def text(self, index: int) -> str:
        """The text."""
        return self._stored("text", index)

    def tokens(self, index: int) -> list[str]:
        """The text's tokens."""
        return self._stored("tokens", index)

    def positions(self, index: int) -> np.ndarray | None:
        """Positions in the text of the tokens whose vectors are stored, int64 [n]; None where all are."""
        return self._source.positions(self._number(index))

    def occurrences(self, word: str) -> tuple[np.ndarray, list[tuple[int, int]]]:
        """The vectors of a word, [n, ..., 2 P], wherever it is a token: with the (text, position) of each."""
        if self.pool:
            raise ConfigurationError(f"embeddings {self._path}: expected vectors of tokens, found pooled ones")
        try:
            found = list(self._source.occurrences(word))
        except LookupError:
            raise self._absent("tokens") from None
        places = [(number, position) for number, positions, _ in found for position in positions.tolist()]
        if found:
            return np.concatenate([vectors for _, _, vectors in found]), places
        shape = np.moveaxis(self[0], -2, 0).shape[1:] if len(self) else ()
        return np.empty((0, *shape), self.dtype), places

    def close(self) -> None:
        """Close the file; what was read stays."""
        self._source.close()

    def __enter__(self) -> "Embeddings":
        return self

    def __exit__(self, *_) -> None:
        self.close()

    def __reduce__(self):
        return open_embeddings, (self._path,)

    def __repr__(self) -> str:
        return f"<Embeddings of {len(self)} texts, {self.layout}: {self._path}>"

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {key: number for number, key in reversed(list(enumerate(self.keys)))}

    def _number(self, index: int) -> int:
        return range(len(self))[index]  # IndexError beyond the end

    def _stored(self, what: str, index: int):
        try:
            return getattr(self._source, what)(self._number(index))
        except IndexError:
            raise
        except LookupError:
            raise self._absent(what) from None

    def _absent(self, what: str) -> ConfigurationError:
        return ConfigurationError(f"embeddings {self._path}: expected a file that stores {what}, found none in it "
                                  f"({self.layout}); packed, parquet and arrow store them")


def _source(path: Path) -> Source:
    if path.is_dir():
        return ShardsSource(path, _source)
    if not path.exists():
        raise FileNotFoundError(f"embeddings: expected a file or directory, found nothing at {path}")
    with open(path, "rb") as file:
        start = file.read(8)
    if start.startswith(b"PK"):
        return NpzSource(path)
    if start.startswith(b"\x93NUMPY"):
        return NpySource(path)
    if start.startswith((b"PAR1", b"ARROW1")):
        from elmo_fast.embed.layouts.columns import ColumnsSource

        return ColumnsSource(path)
    if start == b"\x89HDF\r\n\x1a\n":
        return _hdf5(path)
    raise ConfigurationError(f"embeddings {path}: expected HDF5, Parquet, Arrow, .npz or .npy, found none of them")


def _hdf5(path: Path) -> Source:
    if read_seal(path, PACKED):
        return PackedSource(path)
    read_seal(path, TABLE)
    with open_hdf5(path, "embeddings") as file:
        if file.attrs.get("format") == "elmo-fast packed":
            return PackedSource(path)
        if "embedding" in file:
            raise ConfigurationError(f"embeddings {path}: expected vectors of texts, found a table of token vectors "
                                     "(elmo-fast cache, or bilm-tf's): open it with TokenTable.open")
        if any(name in file for name in _WEIGHTS):
            raise ConfigurationError(f"embeddings {path}: expected vectors of texts, found the weights of a model")
    return AllennlpSource(path)
