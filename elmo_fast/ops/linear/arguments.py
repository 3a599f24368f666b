"""The arguments of products in `torch.library`, in the order of their schemas.

`weights` are [W, b] of `linear` and [W_carry, b_carry, W_transform, b_transform] of `highway`. On the CPU `packed`
holds them in the engine's packed format, and `weights` is empty: products with gradients run in torch there.
"""

from typing import NamedTuple

import torch

from elmo_fast.ops.library import library, schema_of


class LinearArguments(NamedTuple):
    """The arguments of the op `linear`."""

    x: torch.Tensor
    weights: list[torch.Tensor]
    packed: torch.Tensor | None
    outputs: int
    precision: str
    bounded: bool


class HighwayArguments(NamedTuple):
    """The arguments of the op `highway`."""

    x: torch.Tensor
    weights: list[torch.Tensor]
    packed: torch.Tensor | None
    precision: str
    bounded: bool

    @property
    def outputs(self) -> int:
        """Columns of the result."""
        return self.x.shape[1]


library.define(f"linear({schema_of(LinearArguments)}) -> Tensor")
library.define(f"highway({schema_of(HighwayArguments)}) -> Tensor")
