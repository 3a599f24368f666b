"""The first LSTM layer's input products of a small vocabulary, tabled: 25 amino acids take 3 MB."""

import numpy as np
import torch

from elmo_fast.model.lstm import LstmStack, InputProjections
from elmo_fast.model.token_table import TokenTable
from elmo_fast.ops.weight_cache import version_key
from elmo_fast.ops.projected_lstm import input_projections, accepts_input_projections

BYTES = 1 << 27  # 1,024 words in the original size, 4,096 in the small one


class FirstLayerTable:
    """x W + B of both directions for every word of a token table, made when first needed and again for other weights."""

    def __init__(self, table: TokenTable, stack: LstmStack):
        self._table, self._stack = table, stack
        self._count = len(table)
        self._made: tuple[tuple, torch.Tensor] | None = None

    @staticmethod
    def fits(table: TokenTable, dim: int) -> bool:
        """Whether the products of the vocabulary take at most `BYTES`, in a model with cells of `dim`."""
        return len(table) * 8 * dim * 4 <= BYTES

    def products(self, rows: np.ndarray | torch.Tensor, backend: str, precision: str) -> InputProjections | None:
        """InputProjections of rows of the token table, int64 [N]; None where a row, or a way to use them, is missing."""
        weights = self._stack.layer_weights(0)
        if not accepts_input_projections(backend, precision, weights):
            return None
        rows = torch.as_tensor(rows)
        if rows.numel() and not 0 <= int(rows.min()) <= int(rows.max()) < self._count:
            return None
        return InputProjections(self._whole(weights, backend), rows)

    def __getstate__(self) -> dict:
        """A copy makes its own products."""
        return {**self.__dict__, "_made": None}

    def _whole(self, weights, backend: str) -> torch.Tensor:
        key = backend, *(version_key(each) for pair in weights for each in pair[:2])
        if self._made is None or self._made[0] != key:
            vectors = self._table.vectors(np.arange(self._count)).to(weights[0][1].device)
            self._made = key, input_projections(vectors, weights, backend=backend)
        return self._made[1]
