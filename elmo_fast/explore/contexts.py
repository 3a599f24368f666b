"""An index of the contexts of words in a corpus, and the search of the nearest ones."""

import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import cached_property
from itertools import tee
from numbers import Integral
from typing import NamedTuple

import h5py
import numpy as np

from elmo_fast.arguments import (
    DEFAULT_BATCH_SIZE,
    FREE_STATES,
    LAYERS,
    STORAGES,
    FreeState,
    Layers,
    check_choice,
    check_count,
    check_path,
    local_path,
    shown,
)
from elmo_fast.embed.api import Given, LoadedElmo, tokens_of
from elmo_fast.errors import ConfigurationError
from elmo_fast.explore.comparison import unit
from elmo_fast.files import stops
from elmo_fast.files.atomic import check_target
from elmo_fast.files.hdf5 import atomic_hdf5, attribute_of, dataset_of, open_hdf5, strings_of
from elmo_fast.files.strings import joined, spans
from elmo_fast.text.batching import check_iterable
from elmo_fast.text.fasta import FastaRecord
from elmo_fast.text.tokenizers import Tokenizer, find_tokenizer
from elmo_fast.vectors.open import Embeddings

FORMAT = "elmo-fast context index"
_ROWS_AT_ONCE = 1 << 14  # of vectors in fp32


class Neighbour(NamedTuple):
    """A result of a search: the occurrence's cosine, its number, and its text and position in the index."""

    similarity: float
    number: int
    text: int
    position: int


class ContextIndex:
    """Occurrences of words with their vectors, and an exact search of the nearest occurrences by cosine.

    `texts` are lists of tokens; occurrence k is token `places[k, 1]` of text `places[k, 0]`, and `vectors[k]` is its
    vector. `vectors` are float16 or float32 [n, dim], in memory or mapped from a file. `lines` are the numbers of the
    texts in the corpus, `layers` the stored layer or mixture, `model` the model's fingerprint and `precision` that of
    its products, both None if unknown.
    """

    def __init__(self, texts: Sequence[Sequence[str]], places: np.ndarray, vectors: np.ndarray, *,
                 lines: Sequence[int] | None = None, layers: Layers = "average", state: FreeState = "warm",
                 model: str | None = None, precision: str | None = None):
        if vectors.ndim != 2 or places.shape != (len(vectors), 2):
            raise ValueError("vectors, places: expected [n, dim] and [n, 2], got "
                             f"{list(vectors.shape)} and {list(places.shape)}")
        self.texts = texts
        self.places = places
        self.vectors = vectors
        self.lines = np.arange(len(texts)) if lines is None else np.asarray(lines, np.int64)
        self.layers = int(layers) if isinstance(layers, Integral) else layers
        self.state = state
        self.model = model
        self.precision = precision

    @classmethod
    def build(cls, elmo: LoadedElmo, texts: Iterable[Given], *, words: Collection[str] | None = None,
              layers: Layers = "average", state: FreeState = "warm", dtype: str = "float32",
              batch_size: int = DEFAULT_BATCH_SIZE, tokenizer: str | Tokenizer = "auto") -> "ContextIndex":
        """An index in memory of a corpus: of every token, or only of `words`, in upper or lower case.

        Texts are read as needed, and texts without the words are not embedded. `layers` as in `LoadedElmo.embed`, but
        not `all`, and `tokenizer` too; `state` is warm or zero. Vectors are scaled to length 1 and stored as `dtype`,
        float32 or float16.
        """
        check_choice("state", state, FREE_STATES)
        check_choice("dtype", dtype, STORAGES)
        if isinstance(layers, str) and layers == "all":
            raise ValueError("layers: expected a layer or a mixture of them, got 'all'")
        if isinstance(texts, FastaRecord):
            raise ValueError("texts: expected a list of texts, got one FastaRecord; put it into a list")
        check_iterable(texts, "texts")
        matches = _chosen(texts, words, find_tokenizer(tokenizer))
        return cls._gather(_embedded(elmo, matches, layers, state, batch_size), dtype,
                           elmo.dim, layers=layers, state=state, model=elmo.model.fingerprint,
                           precision=elmo.model.computes_in)

    @classmethod
    def from_embeddings(cls, embeddings: Embeddings, *, words: Collection[str] | None = None) -> "ContextIndex":
        """An index in memory of the vectors of a file: of every token in the file, or only of `words`.

        If the file has all layers, the index has their average. Vectors are scaled to length 1 and stored in the file's
        type. `ConfigurationError` for pooled vectors, and for a file without tokens.
        """
        if embeddings.pool:
            raise ConfigurationError("embeddings: expected vectors of tokens, got pooled ones")
        about = embeddings.fingerprint or {}
        state = about.get("state")
        layers = "average" if embeddings.layers in (None, "all") else embeddings.layers
        width = embeddings[0].shape[-1] if len(embeddings) else 0
        return cls._gather(_stored_rows(embeddings, words), embeddings.dtype.name, width, layers=layers,
                           state=state if state in FREE_STATES else "warm", model=about.get("model"),
                           precision=about.get("effective precision"))

    @classmethod
    def _gather(cls, rows: Iterable[tuple[int, list[str], np.ndarray, np.ndarray]], dtype: str, width: int,
                **about) -> "ContextIndex":
        """An index of (number, tokens, positions [n], vectors [n, dim]) of texts."""
        texts: list[list[str]] = []
        lines, places, vectors = [], [np.zeros((0, 2), np.int64)], [np.zeros((0, width), dtype)]
        for line, tokens, positions, array in rows:
            places.append(np.stack([np.full(len(positions), len(texts)), positions], axis=1))
            vectors.append(unit(array).astype(dtype))
            texts.append(tokens)
            lines.append(line)
        return cls(texts, np.concatenate(places), np.concatenate(vectors), lines=lines, **about)

    def check(self, elmo: LoadedElmo) -> "ContextIndex":
        """Return the index; `ConfigurationError` for vectors of another model."""
        width, expected = self.vectors.shape[1], elmo.dim
        if len(self) and (width != expected or self.model not in (None, elmo.model.fingerprint)):
            raise ConfigurationError(f"index: expected vectors of this model ({expected} values), got vectors of "
                                     f"another model ({width} values)")
        return self

    def save(self, path: str | os.PathLike) -> None:
        """Write the index to an HDF5 file, atomically."""
        check_target(path, "index")
        content, ends = joined([token for text in self.texts for token in text])
        with atomic_hdf5(path) as (file, disk):
            file.attrs["format"], file.attrs["version"], file.attrs["state"] = FORMAT, 1, self.state
            file.attrs["model"], file.attrs["precision"] = self.model or "", self.precision or ""
            file.attrs["layers"] = (self.layers if isinstance(self.layers, (str, int)) else
                                    np.asarray(self.layers, np.float64))
            for name, values in (("places", self.places), ("lines", self.lines), ("token_bytes", content),
                                 ("token_ends", ends),
                                 ("text_ends", np.cumsum([len(text) for text in self.texts], dtype=np.int64))):
                file.create_dataset(name, data=values)
            stored = file.create_dataset("vectors", self.vectors.shape, self.vectors.dtype)
            for rows in _slices(len(self.vectors)):
                stored[rows] = self.vectors[rows]
                disk.check()
                stops.check()

    @classmethod
    def load(cls, path: str | os.PathLike) -> "ContextIndex":
        """The index of a file that `save` wrote; the vectors stay in the file and are read when they are needed.

        `ConfigurationError` for any other file and for a damaged file.
        """
        where = f"index {check_path('index', path)}"
        with open_hdf5(path, "index") as file:
            if attribute_of(file, "format", where, str) != FORMAT or attribute_of(file, "version", where, int) != 1:
                raise ConfigurationError(f"{where}: expected a file that ContextIndex.save wrote (format version 1), "
                                         "got another HDF5 file")
            texts = _stored_texts(file, where)
            places = dataset_of(file, "places", where, "i", None, 2)[...]
            lines = dataset_of(file, "lines", where, "i", len(texts))[...]
            lengths = np.array([len(text) for text in texts], np.int64)
            text, position = places.T
            if (places < 0).any() or (text >= len(texts)).any() or (position >= lengths[text]).any():
                raise ConfigurationError(f"{where}: places: expected occurrences in the texts, found others: "
                                         "the file is damaged")
            return cls(texts, places, _stored(path, dataset_of(file, "vectors", where, "f", len(places), None), where),
                       lines=lines, layers=_stored_layers(file, where),
                       model=attribute_of(file, "model", where, str) or None,
                       precision=attribute_of(file, "precision", where, str) or None,
                       state=check_choice(f"{where}: state", attribute_of(file, "state", where, str), FREE_STATES,
                                          ConfigurationError))

    def __len__(self) -> int:
        return len(self.places)

    def occurrences(self, word: str) -> np.ndarray:
        """Numbers of the occurrences of a word in upper or lower case: int64 [n], in the order of the corpus."""
        return self._by_word.get(word.casefold(), np.zeros(0, np.int64))

    @cached_property
    def _by_word(self) -> dict[str, np.ndarray]:
        by_word: dict[str, list[int]] = {}
        for number, (text, position) in enumerate(self.places.tolist()):
            by_word.setdefault(self.texts[text][position].casefold(), []).append(number)
        return {word: np.array(numbers, np.int64) for word, numbers in by_word.items()}

    def nearest(self, query: int | np.ndarray, top: int = 10, *, among: np.ndarray | None = None,
                center: bool = False) -> list[Neighbour]:
        """The `top` occurrences nearest to a vector [dim], or to an occurrence given by its number, which is left out.

        `among` are the numbers to search, by default all. `center` scales the searched vectors to length 1 and
        subtracts their mean from them and from the query. Occurrences of equal similarity are in the order of the
        corpus. The search is exact, in fp32, 16,384 vectors at a time.
        """
        check_count("top", top)
        numbers = np.arange(len(self)) if among is None else np.asarray(among, np.int64)
        is_number = isinstance(query, (int, np.integer))
        for name, values in (("among", numbers if among is not None else []), ("query", [query] if is_number else [])):
            if len(values) and not 0 <= np.min(values) <= np.max(values) < len(self):
                raise ValueError(f"{name}: expected numbers of occurrences, from 0 to {len(self) - 1}, got "
                                 f"{shown(values)}")
        vector = np.asarray(self.vectors[query] if is_number else query, np.float32)
        if vector.shape != self.vectors.shape[1:]:
            raise ValueError(f"query: expected a vector of {self.vectors.shape[1]} values, those of the index's model, "
                             f"got shape {vector.shape}")
        mean = self._mean(numbers) if center else None
        vector = unit(vector) if mean is None else unit(unit(vector) - mean)
        best, scores = np.zeros(0, np.int64), np.zeros(0, np.float32)
        for rows, block in self._blocks(numbers):
            block = block if mean is None else unit(block) - mean
            with np.errstate(invalid="ignore"):
                similarities = block @ vector / np.sqrt(np.einsum("nd,nd->n", block, block))
            similarities = np.nan_to_num(similarities, nan=-2)  # a zero vector is last
            if is_number:
                rows, similarities = rows[rows != query], similarities[rows != query]
            best, scores = np.concatenate([best, rows]), np.concatenate([scores, similarities])
            order = np.lexsort((best, -scores))[:top]
            best, scores = best[order], scores[order]
        return [Neighbour(score if score > -2 else float("nan"), number, *self.places[number].tolist())
                for number, score in zip(best.tolist(), scores.clip(-2, 1).tolist())]

    def _blocks(self, numbers: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Blocks of numbers and their vectors, float32."""
        for rows in _slices(len(numbers)):
            yield numbers[rows], self.vectors[numbers[rows]].astype(np.float32)

    def _mean(self, numbers: np.ndarray) -> np.ndarray:
        total = np.zeros(self.vectors.shape[1])
        for _, block in self._blocks(numbers):
            total += np.nansum(unit(block), axis=0, dtype=np.float64)
        return (total / max(1, len(numbers))).astype(np.float32)


def principal_plane(vectors: np.ndarray) -> tuple[np.ndarray, float]:
    """Scale vectors [n, dim] to length 1 and project them onto their two directions of greatest variance.

    Returns coordinates float32 [n, 2], and the fraction of the variance in these directions, from 0 to 1.
    """
    vectors = np.nan_to_num(unit(vectors, np.float64))
    vectors -= vectors.mean(axis=0, keepdims=True)
    variances, axes = np.linalg.eigh(vectors.T @ vectors)  # ascending
    axes = axes[:, :-3:-1]
    axes *= np.sign(axes[np.abs(axes).argmax(axis=0), range(axes.shape[1])])
    total = variances.sum()
    return (vectors @ axes).astype(np.float32), float(variances[-2:].sum() / total) if total > 0 else 1.0


def _chosen(texts: Iterable[Given], words: Collection[str] | None,
            split: Tokenizer) -> Iterator[tuple[int, list[str], np.ndarray]]:
    """(number, tokens, positions int64 of the words) of the texts that have at least one of the words."""
    if isinstance(words, (str, bytes)):
        raise ValueError(f"words: expected a list of words, got {shown(words)}")
    words = None if words is None else {word.casefold() for word in words}
    for number, text in enumerate(texts):
        tokens = list(tokens_of(text, f"texts[{number}]", split))
        positions = [position for position, token in enumerate(tokens) if words is None or token.casefold() in words]
        if positions:
            yield number, tokens, np.array(positions, np.int64)


def _embedded(elmo: LoadedElmo, matches: Iterator[tuple[int, list[str], np.ndarray]], layers: Layers, state: str,
              batch_size: int) -> Iterator[tuple[int, list[str], np.ndarray, np.ndarray]]:
    matches, running = tee(matches)
    arrays = elmo.stream((tokens for _, tokens, _ in running), layers, state, batch_size=batch_size)
    for array, (number, tokens, positions) in zip(arrays, matches):
        yield number, tokens, positions, array[positions]
        stops.check()


def _stored_rows(embeddings: Embeddings,
                 words: Collection[str] | None) -> Iterator[tuple[int, list[str], np.ndarray, np.ndarray]]:
    texts = (embeddings.tokens(number) for number in range(len(embeddings)))
    for number, tokens, positions in _chosen(texts, words, str.split):
        stored = embeddings.positions(number)
        rows = positions if stored is None else np.flatnonzero(np.isin(stored, positions))
        if len(rows):
            vectors = np.asarray(embeddings[number], np.float32)
            vectors = vectors.mean(axis=0) if vectors.ndim == 3 else vectors
            embeddings.check_vectors(number, vectors, range(len(tokens)) if stored is None else stored)
            yield number, tokens, positions if stored is None else np.asarray(stored)[rows], vectors[rows]
        stops.check()


def _slices(count: int) -> Iterator[slice]:
    return (slice(start, min(count, start + _ROWS_AT_ONCE)) for start in range(0, count, _ROWS_AT_ONCE))


def _stored(path: str | os.PathLike, dataset: h5py.Dataset, where: str) -> np.ndarray:
    """The rows of a contiguous dataset, mapped from the file: [n, dim], read-only."""
    if dataset.dtype not in STORAGES:
        raise ConfigurationError(f"{where}: vectors: expected {' or '.join(STORAGES)}, found {dataset.dtype}")
    offset = dataset.id.get_offset()
    return dataset[...] if offset is None else np.memmap(local_path(path), dataset.dtype, "r", offset, dataset.shape)


def _stored_texts(file: h5py.File, where: str) -> list[list[str]]:
    tokens, ends = strings_of(file, "token_bytes", "token_ends", where), dataset_of(file, "text_ends", where, "i", None)
    try:
        return [tokens[start:end] for start, end in spans(ends[...], len(tokens))]
    except ValueError as error:
        raise ConfigurationError(f"{where}: text_{error}: the file is damaged") from error


def _stored_layers(file: h5py.File, where: str) -> Layers:
    layers = file.attrs.get("layers")
    if isinstance(layers, np.ndarray) and layers.ndim == 1 and layers.dtype.kind == "f" and np.isfinite(layers).all():
        return tuple(layers.tolist())
    if isinstance(layers, np.integer) and layers >= 0:
        return int(layers)
    return check_choice(f"{where}: layers", layers, LAYERS[1:], ConfigurationError)
