"""`ElmoModel` with the calls of simple_elmo, written from its documentation (github.com/ltgoslo/simple_elmo).

No TensorFlow: `session` arguments are taken and ignored.
"""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from elmo_fast.embed.embedder import ElmoEmbedder
from elmo_fast.model.options import ConfigurationError
from elmo_fast.model.sources import ModelFiles, find_model
from elmo_fast.text.batching import check_batch
from elmo_fast.text.vocabulary import Vocabulary

LAYERS = ("average", "top", "all")


class ElmoModel:
    """Contextual vectors of tokenized sentences, as padded arrays.

    As in simple_elmo, states are carried from batch to batch, and `warmup` runs every batch twice and keeps the second
    result. Set `state` to `zero` or `warm` at construction for results that depend on the sentence alone; then there is
    nothing to warm up. `precision` and `backend` as in `BiLm`, `cuda_device` as in `ElmoEmbedder`.
    """

    def __init__(self, *, state: str = "carry", precision: str = "highest", backend: str = "auto", cuda_device: int = -1):
        self._arguments = {"state": state, "precision": precision, "backend": backend, "cuda_device": cuda_device}
        self._embedder: ElmoEmbedder | None = None
        self.batch_size: int = 0
        self.vocab: Vocabulary | None = None

    def load(self, directory: str | os.PathLike, max_batch_size: int = 32, limit: int = 100, full: bool = False) -> None:
        """Read a model from a directory or ZIP with `options.json` and `model.hdf5`, or else its first `*.hdf5`.

        `max_batch_size` sentences run at a time. `limit`, how many words of `vocab.txt` to prepare, is taken and ignored:
        every distinct word of a batch is prepared once anyway. `full=True`, for `get_elmo_substitutes`, needs
        a model with softmax weights and a vocabulary.
        """
        if isinstance(max_batch_size, bool) or not isinstance(max_batch_size, int) or max_batch_size < 1:
            raise ValueError(f"max_batch_size: expected an integer of at least 1, got {max_batch_size!r}")
        if full:
            raise NotImplementedError
        files = _files(directory)
        self._embedder = ElmoEmbedder(files.options_file, files.weight_file, **self._arguments)
        self.vocab = None if files.vocab_file is None else Vocabulary(files.vocab_file)
        self.batch_size = max_batch_size

    @property
    def n_layers(self) -> int:
        """Layers of representations, the token layer included."""
        return self._loaded().elmo_bilm.num_layers

    @property
    def vector_size(self) -> int:
        """Values of one token in one layer."""
        return self._loaded().elmo_bilm.get_output_dim()

    def get_elmo_vectors(self, texts: Sequence[Sequence[str]], warmup: bool = True, layers: str = "average",
                         session=None) -> np.ndarray:
        """Vectors of tokenized sentences: float32 [sentences, T, 2 P], zero past a sentence's end, T the longest.

        `layers` is `average` (the mean of the layers), `top`, or `all`: [sentences, layers, T, 2 P].
        """
        texts = self._checked(texts, layers)
        longest = max(map(len, texts), default=0)
        middle = (self.n_layers, longest) if layers == "all" else (longest,)
        vectors = np.zeros((len(texts), *middle, self.vector_size), np.float32)
        for row, each in enumerate(self._runs(texts, warmup, layers)):
            vectors[row, ..., : each.shape[-2], :] = each
        return vectors

    def get_elmo_vector_average(self, texts: Sequence[Sequence[str]], warmup: bool = True, layers: str = "average",
                                session=None) -> np.ndarray:
        """One vector of length 1 a sentence, the direction of the mean of its tokens: float32 [sentences, 2 P].

        `layers` as in `get_elmo_vectors`; `all` gives [sentences, layers, 2 P]. An empty sentence has zeros.
        """
        texts = self._checked(texts, layers)
        middle = (self.n_layers,) if layers == "all" else ()
        averages = np.zeros((len(texts), *middle, self.vector_size), np.float32)
        for row, each in enumerate(self._runs(texts, warmup, layers)):
            total = each.sum(axis=-2)
            norm = np.linalg.norm(total, axis=-1, keepdims=True)
            averages[row] = np.divide(total, norm, out=np.zeros_like(total), where=norm > 0)
        return averages

    def _runs(self, texts: Sequence[Sequence[str]], warmup: bool, layers: str) -> Iterator[np.ndarray]:
        """Vectors of each sentence in order, [T, 2 P] or [layers, T, 2 P], batch by batch."""
        embedder = self._loaded()
        for start in range(0, len(texts), self.batch_size):
            batch = texts[start : start + self.batch_size]
            if warmup and embedder.elmo_bilm.state == "carry":
                embedder.embed_batch(batch)
            yield from (_chosen(each, layers) for each in embedder.embed_batch(batch))

    def _checked(self, texts: Sequence[Sequence[str]], layers: str) -> list[Sequence[str]]:
        self._loaded()
        if layers not in LAYERS:
            raise ValueError(f"layers: expected one of {', '.join(LAYERS)}, got {layers!r}")
        return list(check_batch(texts, "texts"))

    def _loaded(self) -> ElmoEmbedder:
        if self._embedder is None:
            raise RuntimeError("ElmoModel: expected load() to be called first")
        return self._embedder


def _chosen(vectors: np.ndarray, layers: str) -> np.ndarray:
    if layers == "all":
        return vectors
    return vectors[-1] if layers == "top" else vectors.mean(axis=0)


def _files(directory: str | os.PathLike) -> ModelFiles:
    """As `find_model`, and of several weight files none of which has a usual name the first in alphabetical order."""
    place = Path(directory)
    weights = sorted(place.glob("*.hdf5")) if place.is_dir() else []
    if len(weights) < 2:
        return find_model(directory)
    named = place / "model.hdf5"
    chosen = named if named in weights else weights[0]
    if not (place / "options.json").is_file():
        raise ConfigurationError(f"model {place}: expected a file options.json, found none")
    vocabularies = [place / name for name in ("vocab.txt", "vocab.txt.gz") if (place / name).is_file()]
    return ModelFiles(place / "options.json", chosen, vocabularies[0] if vocabularies else None)
