"""`Embed`: a function for `Dataset.map(..., batched=True)` of Hugging Face datasets, which need not be installed."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from elmo_fast.arguments import DEFAULT_BATCH_SIZE, FreeState, Layers, Pool, check_path, shown
from elmo_fast.embed.api import LoadedElmo, Text, load
from elmo_fast.integrations import check_arguments, pooled_vectors, token_vectors, tokenized
from elmo_fast.text.tokenizers import Tokenizer, find_tokenizer
from elmo_fast.weights.sources import DEFAULT_MODEL


class Embed:
    """Adds a column `output` of vectors to batches: float32 [tokens, width] per text, or [width] with `pool`.

    `column` has strings or lists of tokens. `layers`, `pool`, `state` (`zero` or `warm`), `batch_size` and `tokenizer`
    are the arguments of `LoadedElmo.embed`, `how` those of `load`. With `layers="all"` the layers are concatenated. The
    pooled vector of a text without tokens is zero.

    The pickle, which datasets hashes and sends to its processes, has the model's name and fingerprint, not its weights:
    every process reads the weights itself, and refuses weights with another fingerprint.
    """

    def __init__(self, column: str, output: str = "elmo", *, model: str | os.PathLike = DEFAULT_MODEL,
                 layers: Layers = "average", pool: Pool | None = None, state: FreeState = "warm",
                 batch_size: int = DEFAULT_BATCH_SIZE, tokenizer: str | Tokenizer = "auto", **how):
        self._columns, self._pool, self._tokenizer = (column, output), pool, tokenizer
        find_tokenizer(tokenizer)
        self._model, self._how = check_path("model", model), how
        self._settings = {"layers": layers, "state": state, "batch_size": batch_size}
        self._elmo: LoadedElmo | None = load(self._model, **how)
        check_arguments(self._elmo, **self._settings, pool=pool)
        self._fingerprint = self._elmo.model.fingerprint

    def __call__(self, batch: Mapping[str, Sequence[Text]]) -> dict[str, Sequence[np.ndarray]]:
        """Compute the new column of a batch, a mapping from column names to lists."""
        column, output = self._columns
        if column not in batch:
            raise ValueError(f"column: expected one of {', '.join(batch)}, got {shown(column)}")
        if isinstance(batch[column], str):
            raise ValueError(f"{column}: expected a list of texts, got a single text; use map(..., batched=True)")
        texts = tokenized(batch[column], column, self._tokenizer)
        if self._pool is not None:
            return {output: pooled_vectors(self._loaded(), texts, **self._settings, pool=self._pool)}
        return {output: token_vectors(self._loaded(), texts, **self._settings)}

    def _loaded(self) -> LoadedElmo:
        if self._elmo is None:
            elmo = load(self._model, **self._how)
            if elmo.model.fingerprint != self._fingerprint:
                raise ValueError(f"model: expected the weights that {self._model} had before, got others")
            self._elmo = elmo
        return self._elmo

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_elmo": None}
