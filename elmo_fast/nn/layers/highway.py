"""`Highway`: highway layers (Srivastava et al. 2015) with any activation, and AllenNLP's parameters."""

from collections.abc import Callable

import torch
from torch import nn


class Highway(nn.Module):
    """`g * x + (1 - g) * activation(A x)` with `g = sigmoid(B x)`, `num_layers` times. From AllenNLP's `Highway`.

    `_layers[k](x)` is `A x` followed by `B x`, of `input_dim` values each. Initial biases favor passing x on.
    """

    def __init__(self, input_dim: int, num_layers: int = 1,
                 activation: Callable[[torch.Tensor], torch.Tensor] = nn.functional.relu):
        super().__init__()
        self._input_dim = input_dim
        self._layers = nn.ModuleList(nn.Linear(input_dim, 2 * input_dim) for _ in range(num_layers))
        self._activation = activation
        for layer in self._layers:
            layer.bias.data[input_dim:] = 1

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """inputs [..., input_dim] -> [..., input_dim]."""
        x = inputs
        for layer in self._layers:
            transformed, gate = layer(x).chunk(2, dim=-1)
            gate = torch.sigmoid(gate)
            x = gate * x + (1 - gate) * self._activation(transformed)
        return x
