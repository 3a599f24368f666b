"""The arguments of products in `torch.library`, in the order of their schema."""

from typing import NamedTuple

import torch

from elmo_fast.ops.library import library, schema_of


class ProductArguments(NamedTuple):
    """The arguments of `linear`, with weights [W, b], and of `highway`: [W_carry, b_carry, W_transform, b_transform].

    On the CPU they have no gradients: products with gradients run in torch there.
    """

    x: torch.Tensor
    weights: list[torch.Tensor]
    precision: str
    bounded: bool


library.define(f"linear({schema_of(ProductArguments)}) -> Tensor")
library.define(f"highway({schema_of(ProductArguments)}) -> Tensor")
