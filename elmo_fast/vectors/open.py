"""`open_embeddings` opens a file or directory of vectors, in any layout, as a sequence of arrays."""

import os
from pathlib import Path

from elmo_fast.arguments import check_path, listed
from elmo_fast.errors import ConfigurationError
from elmo_fast.vectors.layouts import source_of
from elmo_fast.vectors.layouts.embeddings import Embeddings
from elmo_fast.vectors.layouts.parts import PartsSource
from elmo_fast.vectors.layouts.table import LAYOUTS, by_first_bytes


def open_embeddings(path: str | os.PathLike) -> Embeddings:
    """Open a file or directory that `embed`, `seqvec`, `LoadedElmo.save_vectors`, AllenNLP or SeqVec wrote.

    Vectors are read when they are accessed. Raises `FileNotFoundError`, and `ConfigurationError` for files that are
    incomplete or damaged, or hold other data.
    """
    path = Path(os.path.abspath(check_path("embeddings", path)))
    if path.is_dir():
        return PartsSource(path, open_embeddings)
    if not path.exists():
        raise FileNotFoundError(f"embeddings: expected a file or directory, found nothing at {path}")
    with open(path, "rb") as file:
        start = file.read(8)
    layout = by_first_bytes(start)
    if layout:
        return source_of(layout)(path)
    kinds = listed(dict.fromkeys(row.kind for row in LAYOUTS.values()))
    raise ConfigurationError(f"embeddings {path}: expected {kinds}, found none of them")
