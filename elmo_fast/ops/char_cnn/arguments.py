"""The arguments of the char-CNN in `torch.library`."""

from typing import NamedTuple

import torch

from elmo_fast.ops.library import library, schema_of


class CharCnnArguments(NamedTuple):
    """The arguments of the op, in the order of its schema, which every implementation takes.

    `weights` [1, width, E, n] and `biases` [n], a pair for every width. With `save` the op also returns the picked
    windows, which its gradient reads.
    """

    ids: torch.Tensor
    char_embed: torch.Tensor
    weights: list[torch.Tensor]
    biases: list[torch.Tensor]
    activation: str
    precision: str
    bounded: bool
    save: bool

    @property
    def floats(self) -> list[torch.Tensor]:
        """The operands that have gradients."""
        return [self.char_embed, *self.weights, *self.biases]


library.define(f"char_cnn({schema_of(CharCnnArguments)}) -> (Tensor, Tensor)")
library.define("char_cnn_backward(Tensor grad, Tensor values, Tensor picks, bool[] needed, "
               f"{schema_of(CharCnnArguments)}) -> Tensor[]")
