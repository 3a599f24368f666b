"""The specification: the char-CNN in plain torch, for any float dtype.

Written for readability. Weights have the shapes of bilm-tf's weight file. Every faster implementation has this
signature and is tested against this function.
"""

from collections.abc import Sequence

import torch

from elmo_fast.ops.char_cnn.activations import ACTIVATIONS

Filters = Sequence[tuple[torch.Tensor, torch.Tensor]]


def char_cnn(ids: torch.Tensor, char_embed: torch.Tensor, filters: Filters, activation: str) -> torch.Tensor:
    """Convolutions over a token's characters, max over positions (Kim et al. 2016; Jozefowicz et al. 2016).

    `ids` int [N, C], 0 to 261, where 0 reads a row of zeros; `char_embed` [261, E]; `filters` a pair
    (weight [1, width, E, n], bias [n]) for each width; `activation` a name of `ACTIVATIONS` -> [N, sum of n].
    Of windows that tie for a maximum the first takes its gradient.
    """
    table = with_zero_row(char_embed)
    characters = table[ids].flatten(1)  # [N, C * E]
    dim = char_embed.shape[1]
    pooled = []
    for weight, bias in filters:
        width = weight.shape[1]
        windows = characters.unfold(1, width * dim, dim)  # [N, C - width + 1, width * E]
        convolved = windows @ weight.reshape(width * dim, -1)  # [N, C - width + 1, n]
        pooled.append(ACTIVATIONS[activation].apply(convolved.max(1).values + bias))
    return torch.cat(pooled, dim=1)


def with_zero_row(char_embed: torch.Tensor) -> torch.Tensor:
    """Add the row of zeros that id 0, no token, reads: [261, E] -> [262, E]."""
    return torch.cat([torch.zeros_like(char_embed[:1]), char_embed])
