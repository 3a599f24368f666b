"""`ElmoModel` with the calls of simple_elmo, written from its documentation (github.com/ltgoslo/simple_elmo).

No TensorFlow: `session` arguments are taken and ignored.
"""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from elmo_fast.choices import LAYERS
from elmo_fast.embed.embedder import ElmoEmbedder
from elmo_fast.model.options import ConfigurationError
from elmo_fast.model.softmax_head import SoftmaxHead
from elmo_fast.model.sources import SOFTMAX_FILE, ModelFiles, find_model
from elmo_fast.text import characters
from elmo_fast.text.batching import check_batch
from elmo_fast.text.vocabulary import Vocabulary


class ElmoModel:
    """Contextual vectors of tokenized sentences, as padded arrays.

    As in simple_elmo, states are carried from batch to batch, and `warmup` runs every batch twice and keeps the second
    result. Set `state` to `zero` or `warm` at construction for results that depend on the sentence alone; then there is
    nothing to warm up. `precision` and `backend` as in `BiLm`, `cuda_device` as in `ElmoEmbedder`.
    """

    def __init__(self, *, state: str = "carry", precision: str = "highest", backend: str = "auto", cuda_device: int = -1):
        self._arguments = {"state": state, "precision": precision, "backend": backend, "cuda_device": cuda_device}
        self._embedder: ElmoEmbedder | None = None
        self._head: SoftmaxHead | None = None
        self.batch_size: int = 0
        self.vocab: Vocabulary | None = None

    def load(self, directory: str | os.PathLike, max_batch_size: int = 32, limit: int = 100, full: bool = False) -> None:
        """Read a model from a directory or ZIP with `options.json` and `model.hdf5`, or else its first `*.hdf5`.

        `max_batch_size` sentences run at a time. `limit`, how many words of `vocab.txt` to prepare, is taken and ignored:
        every unique word of a batch is prepared once anyway. `full=True`, for `get_elmo_substitutes`, needs
        `softmax.hdf5` and `vocab.txt` beside the weights, as `elmo-fast import-tf` and `export --softmax` write them.
        """
        if isinstance(max_batch_size, bool) or not isinstance(max_batch_size, int) or max_batch_size < 1:
            raise ValueError(f"max_batch_size: expected an integer of at least 1, got {max_batch_size!r}")
        files = _files(directory)
        softmax = files.weight_file.parent / SOFTMAX_FILE
        if full and not (softmax.is_file() and files.vocab_file):
            raise FileNotFoundError(f"full: expected {SOFTMAX_FILE} and vocab.txt beside {files.weight_file.name}, which "
                                    f"`elmo-fast import-tf` makes of a TensorFlow checkpoint; found none in {directory}")
        self._embedder = ElmoEmbedder(files.options_file, files.weight_file, **self._arguments)
        bilm = self._embedder.elmo_bilm
        self._head = SoftmaxHead.from_files(bilm, softmax, files.vocab_file) if full else None
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

    def get_elmo_substitutes(self, data: Sequence[str], topn: int = 3,
                             nodelimiters: bool = True) -> list[list[dict[str, Any]]]:
        """The `topn` likeliest words in place of each token of raw sentences, by each direction's language model.

        For every sentence a list with a dictionary for each token: `word`, and under `forward` and `backward`
        `candidate_ids`, `candidate_words` and `logp`, their scores before normalization (logits), the highest first.
        `nodelimiters` leaves out `<S>` and `</S>`. Sentences are split at whitespace and run one by one.
        """
        if self._head is None:
            raise RuntimeError("get_elmo_substitutes: expected load(..., full=True) to be called first")
        if isinstance(data, (str, bytes)) or not all(isinstance(text, str) for text in data):
            raise ValueError(f"data: expected a list of sentences as strings, got {data!r:.60}")
        if isinstance(topn, bool) or not isinstance(topn, int) or topn < 1:
            raise ValueError(f"topn: expected an integer of at least 1, got {topn!r}")
        return [self._substitutes(text.split(), topn, nodelimiters) for text in data]

    def _substitutes(self, tokens: list[str], topn: int, nodelimiters: bool) -> list[dict[str, Any]]:
        ways = dict(zip(("forward", "backward"), self._head.logits(tokens)))
        best = {way: self._best(scores, topn, nodelimiters) for way, scores in ways.items()}
        return [{"word": token, **{way: best[way][number] for way in ways}} for number, token in enumerate(tokens)]

    def _best(self, scores: torch.Tensor, topn: int, nodelimiters: bool) -> list[dict[str, list]]:
        marks = (characters.BEGIN_SENTENCE_TOKEN, characters.END_SENTENCE_TOKEN) if nodelimiters else ()
        scores[:, [self.vocab.word_to_id(mark) for mark in marks]] = -torch.inf
        values, ids = scores.topk(min(topn, self.vocab.size - len(marks)), dim=1)
        return [{"candidate_ids": row, "candidate_words": [self.vocab.id_to_word(word) for word in row], "logp": logits}
                for row, logits in zip(ids.tolist(), values.tolist())]

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
    weights = sorted(path for path in place.glob("*.hdf5") if path.name != SOFTMAX_FILE) if place.is_dir() else []
    if len(weights) < 2:
        return find_model(directory)
    named = place / "model.hdf5"
    chosen = named if named in weights else weights[0]
    if not (place / "options.json").is_file():
        raise ConfigurationError(f"model {place}: expected a file options.json, found none")
    vocabularies = [place / name for name in ("vocab.txt", "vocab.txt.gz") if (place / name).is_file()]
    return ModelFiles(place / "options.json", chosen, vocabularies[0] if vocabularies else None)
