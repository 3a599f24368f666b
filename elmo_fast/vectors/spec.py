"""Selects which vectors of a text are stored, and where: layers mixed, tokens pooled, only target words."""

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from numbers import Integral
from typing import Any, NamedTuple

import numpy as np

from elmo_fast.arguments import LAYERS, STORAGES, check_choice, local_path, shown


class Selection(NamedTuple):
    """The selected vectors and, with targets, the positions of their tokens in the text, int64 [n]."""

    vectors: np.ndarray
    positions: np.ndarray | None


@dataclass(frozen=True)
class OutputSpec:
    """Which of a text's vectors [layers, T, 2 P] are stored, and their type.

    `layers`: `all`, `top`, `average`, the number of a layer from 0, or one factor per layer; every value except `all`
    drops the first axis. `pool`, a key of `POOLS`, drops the token axis; a text without tokens is pooled to zeros. With
    `targets` only tokens equal to a target word are kept. `dtype` is `float32` or `float16`.
    """

    layers: str | int | Sequence[float] = "all"
    pool: str | None = None
    dtype: str = "float32"
    targets: Iterable[str] | None = None

    def __post_init__(self):
        if isinstance(self.layers, Integral) and not isinstance(self.layers, bool):
            object.__setattr__(self, "layers", int(self.layers))
        elif not isinstance(self.layers, str):
            object.__setattr__(self, "layers", _factors(self.layers))
        if self.pool is not None and not (isinstance(self.pool, str) and self.pool in POOLS):
            raise ValueError(f"pool: expected None or one of {', '.join(POOLS)}, got {shown(self.pool)}")
        check_choice("dtype", self.dtype, STORAGES)
        if self.targets is not None:
            is_list = isinstance(self.targets, Iterable) and not isinstance(self.targets, (str, bytes))
            words = list(self.targets) if is_list else []
            if not words or not all(isinstance(word, str) for word in words):
                raise ValueError(f"targets: expected words, got {shown(self.targets)}")
            object.__setattr__(self, "targets", frozenset(words))
            if self.pool:
                raise ValueError("pool: expected None with targets, since targets select single tokens, got "
                                 f"{shown(self.pool)}")

    def check(self, num_layers: int) -> "OutputSpec":
        """Return self; `ValueError` unless `layers` fits a model with `num_layers` layers."""
        if isinstance(self.layers, int):
            if not 0 <= self.layers < num_layers:
                raise ValueError(f"layers: expected the number of a layer, 0 to {num_layers - 1}, got {self.layers}")
        elif isinstance(self.layers, str):
            if self.layers not in LAYERS:
                raise ValueError(f"layers: expected one of {', '.join(LAYERS)}, the number of a layer or {num_layers} "
                                 f"numbers, got {shown(self.layers)}")
        elif (shape := np.shape(self.layers)) != (num_layers,):
            raise ValueError(f"layers: expected {num_layers} numbers, one for each layer, got shape {shape}")
        return self

    def apply(self, vectors: np.ndarray, tokens: Sequence[str]) -> Selection:
        """Select from the vectors of a text, [layers, T, 2 P]. No result is a view of a single layer."""
        mixed = mix_layers(vectors, self.layers)
        if self.pool:
            return Selection(POOLS[self.pool](mixed) if vectors.shape[1] else mixed.sum(axis=-2), None)
        if self.targets is None:
            is_view = self.layers == "top" or isinstance(self.layers, int)
            return Selection(mixed.copy() if is_view else mixed, None)
        positions = np.array([index for index, token in enumerate(tokens) if token in self.targets], dtype=np.int64)
        return Selection(mixed[..., positions, :], positions)

    def shape_in_words(self, num_layers: int, width: int) -> str:
        """The shape of a text's array, for a message: `[3, tokens, 256]`."""
        layers = [str(num_layers)] if self.layers == "all" else []
        tokens = [] if self.pool else ["tokens" if self.targets is None else "occurrences"]
        return f"[{', '.join([*layers, *tokens, str(width)])}]"

    def describe(self) -> dict:
        """The spec as JSON values; `targets` only says whether there are any."""
        return {"layers": self.layers if isinstance(self.layers, (str, int)) else list(self.layers), "pool": self.pool,
                "dtype": self.dtype, "targets": self.targets is not None}


@dataclass(frozen=True)
class Target:
    """An output's path, layout and form; `options` are those of `layouts.segment`."""

    path: str | os.PathLike
    layout: str
    form: OutputSpec = field(default_factory=OutputSpec)
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self):
        object.__setattr__(self, "path", local_path(self.path))

    def settings(self) -> dict[str, Any]:
        """JSON values that are equal where the same vectors give the same file."""
        words = self.form.targets and hashlib.blake2b(json.dumps(sorted(self.form.targets)).encode(),
                                                      digest_size=16).hexdigest()
        return {"layout": self.layout, **self.form.describe(), "targets": words, **self.options}


def mix_layers(vectors: np.ndarray, layers: str | int | Sequence[float]) -> np.ndarray:
    """Mix [layers, ...] to [...]: the last layer for `top`, the mean for `average`, a weighted sum for factors.

    `all` changes nothing. A number is that of a layer, from 0.
    """
    if isinstance(layers, int):
        return vectors[layers]
    if isinstance(layers, str):
        if layers == "all":
            return vectors
        return vectors[-1] if layers == "top" else vectors.mean(axis=0)
    return np.tensordot(np.asarray(layers, dtype=np.float32), vectors, axes=1)


def _factors(layers: Sequence[float]) -> tuple:
    expected = f"layers: expected one of {', '.join(LAYERS)} or numbers that float32 holds, got {shown(layers)}"
    try:
        with np.errstate(over="ignore"):
            factors = np.asarray(layers, dtype=np.float32)
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(expected) from error
    if not np.isfinite(factors).all():
        raise ValueError(expected)
    return tuple(np.atleast_1d(factors).tolist())


def _first_last(vectors: np.ndarray) -> np.ndarray:
    """Concatenate the forward half of the last token and the backward half of the first."""
    half = vectors.shape[-1] // 2
    return np.concatenate([vectors[..., -1, :half], vectors[..., 0, half:]], axis=-1)


# [..., tokens, 2 P] to [..., 2 P]
POOLS: dict[str, Callable] = {"mean": partial(np.mean, axis=-2), "max": partial(np.max, axis=-2),
                              "first_last": _first_last}
