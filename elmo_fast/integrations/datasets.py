"""`Embed`: a function for `Dataset.map(..., batched=True)` of Hugging Face datasets, which need not be installed."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from elmo_fast.arguments import DEFAULT_BATCH_SIZE, check_path, gathered, shown
from elmo_fast.embed.api import Layers, LoadedElmo, Text, load
from elmo_fast.integrations import check_arguments, pooled_vectors, token_vectors, tokenized
from elmo_fast.model.sources import DEFAULT_MODEL
from elmo_fast.text.tokenizers import Tokenizer, find_tokenizer


@dataclass(frozen=True)
class EmbedOptions:
    """How `Embed` computes vectors.

    `layers`, `pool`, `state` (`zero` or `warm`), `tokenizer` and `batch_size` are the arguments of `LoadedElmo.embed`,
    the others those of `load`. With `layers="all"` the layers are concatenated. The pooled vector of a text without
    tokens is zero.
    """

    layers: Layers = "average"
    pool: str | None = None
    state: str = "warm"
    device: str | None = None
    precision: str = "highest"
    backend: str = "auto"
    batch_size: int = DEFAULT_BATCH_SIZE
    allow_nonfinite: bool = False
    tokenizer: str | Tokenizer = "auto"

    def load(self, model: str) -> LoadedElmo:
        """A model on its device."""
        return load(model, device=self.device, precision=self.precision, backend=self.backend,
                    allow_nonfinite=self.allow_nonfinite)


class Embed:
    """Adds a column `output` of vectors to batches: float32 [tokens, width] per text, or [width] with `pool`.

    `column` has strings or lists of tokens. `options` are fields of `EmbedOptions`.

    The pickle, which datasets hashes and sends to its processes, has the model's name and fingerprint, not its weights:
    every process reads the weights itself, and refuses weights with another fingerprint.
    """

    def __init__(self, column: str, output: str = "elmo", *, model: str | os.PathLike = DEFAULT_MODEL, **options):
        self._columns, self._options = (column, output), gathered(EmbedOptions, options)
        layers, pool, state = self._options.layers, self._options.pool, self._options.state
        find_tokenizer(self._options.tokenizer)
        self._model = check_path("model", model)
        self._settings = {"layers": layers, "state": state, "batch_size": self._options.batch_size}
        self._elmo: LoadedElmo | None = self._options.load(self._model)
        check_arguments(self._elmo, **self._settings, pool=pool)
        self._fingerprint = self._elmo.bilm.fingerprint()

    def __call__(self, batch: Mapping[str, Sequence[Text]]) -> dict[str, Sequence[np.ndarray]]:
        """Compute the new column of a batch, a mapping from column names to lists."""
        column, output = self._columns
        if column not in batch:
            raise ValueError(f"column: expected one of {', '.join(batch)}, got {shown(column)}")
        if isinstance(batch[column], str):
            raise ValueError(f"{column}: expected a list of texts, got a single text; use map(..., batched=True)")
        texts, pool = tokenized(batch[column], column, self._options.tokenizer), self._options.pool
        if pool is not None:
            return {output: pooled_vectors(self._loaded(), texts, **self._settings, pool=pool)}
        return {output: token_vectors(self._loaded(), texts, **self._settings)}

    def _loaded(self) -> LoadedElmo:
        if self._elmo is None:
            elmo = self._options.load(self._model)
            if elmo.bilm.fingerprint() != self._fingerprint:
                raise ValueError(f"model: expected the weights that {self._model} had before, got others")
            self._elmo = elmo
        return self._elmo

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_elmo": None}
