"""`open_embeddings`: files and directories of vectors, in every layout, as sequences of arrays."""

import os
from pathlib import Path

from elmo_fast.arguments import check_path
from elmo_fast.errors import ConfigurationError
from elmo_fast.files.hdf5 import attribute_of, open_hdf5
from elmo_fast.files.seal import PACKED, TABLE, read_seal
from elmo_fast.vectors.layouts.allennlp import AllennlpSource
from elmo_fast.vectors.layouts.arrays import NpySource, NpzSource
from elmo_fast.vectors.layouts.embeddings import Embeddings
from elmo_fast.vectors.layouts.packed import PackedSource
from elmo_fast.vectors.layouts.shards import ShardsSource

_WEIGHTS = "CNN", "char_embed", "RNN_0"


def open_embeddings(path: str | os.PathLike) -> Embeddings:
    """Open what `embed`, `seqvec`, `LoadedElmo.save_vectors`, AllenNLP or SeqVec wrote.

    Nothing is read but what is asked for. Raises `FileNotFoundError`, and `ConfigurationError` for files that are
    incomplete, damaged, or hold something else.
    """
    return _open(Path(os.path.abspath(check_path("embeddings", path))))


def _open(path: Path) -> Embeddings:
    if path.is_dir():
        return ShardsSource(path, _open)
    if not path.exists():
        raise FileNotFoundError(f"embeddings: expected a file or directory, found nothing at {path}")
    with open(path, "rb") as file:
        start = file.read(8)
    if start.startswith(b"PK"):
        return NpzSource(path)
    if start.startswith(b"\x93NUMPY"):
        return NpySource(path)
    if start.startswith((b"PAR1", b"ARROW1")):
        from elmo_fast.vectors.layouts.columns import ColumnsSource

        return ColumnsSource(path)
    if start == b"\x89HDF\r\n\x1a\n":
        return _hdf5(path)
    raise ConfigurationError(f"embeddings {path}: expected HDF5, Parquet, Arrow, .npz or .npy, found none of them")


def _hdf5(path: Path) -> Embeddings:
    if read_seal(path, PACKED):
        return PackedSource(path)
    read_seal(path, TABLE)
    with open_hdf5(path, "embeddings") as file:
        if attribute_of(file, "format", f"embeddings {path}", str) == "elmo-fast packed":
            return PackedSource(path)
        if "embedding" in file:
            raise ConfigurationError(f"embeddings {path}: expected vectors of texts, found a table of token vectors "
                                     "(elmo-fast cache, or bilm-tf's): open it with TokenTable.open")
        if any(name in file for name in _WEIGHTS):
            raise ConfigurationError(f"embeddings {path}: expected vectors of texts, found the weights of a model")
    return AllennlpSource(path)
