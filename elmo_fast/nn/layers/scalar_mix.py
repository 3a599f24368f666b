"""The learned mixture of layers (Peters et al. 2018, equation 1)."""

from collections.abc import Sequence

import torch
from torch import nn

from elmo_fast.errors import ConfigurationError
from elmo_fast.ops.numerics import full_precision


class ScalarMix(nn.Module):
    """`gamma * sum_k softmax(w)_k h_k`, with trainable scalars `w` and `gamma`. From AllenNLP's `ScalarMix`.

    With `do_layer_norm`, each layer is first centred and scaled by one mean and one variance over all unmasked
    elements of the whole batch (1e-12 inside the root). `initial_scalar_parameters` are the w before the softmax.
    Parameters are named `scalar_parameters.0`, `.1`, ... and `gamma`, as in AllenNLP's checkpoints.
    """

    def __init__(self, mixture_size: int, do_layer_norm: bool = False,
                 initial_scalar_parameters: Sequence[float] | None = None, trainable: bool = True):
        super().__init__()
        initial = [0.0] * mixture_size if initial_scalar_parameters is None else list(initial_scalar_parameters)
        if len(initial) != mixture_size:
            raise ConfigurationError(f"initial_scalar_parameters: expected {mixture_size} numbers, one for each layer, "
                                     f"got {initial}")
        self.mixture_size = mixture_size
        self.do_layer_norm = do_layer_norm
        self.scalar_parameters = nn.ParameterList(
            nn.Parameter(torch.tensor([value], dtype=torch.float32), trainable) for value in initial)
        self.gamma = nn.Parameter(torch.ones(1, dtype=torch.float32), trainable)

    def forward(self, tensors: Sequence[torch.Tensor], mask: torch.Tensor | None = None) -> torch.Tensor:
        """Mix `tensors`, `mixture_size` of shape [..., D] each; `mask` [...] is needed for layer norm -> [..., D]."""
        if len(tensors) != self.mixture_size:
            raise ConfigurationError(f"tensors: expected {self.mixture_size}, one for each layer, got {len(tensors)}")
        if self.do_layer_norm:
            if mask is None:
                raise ConfigurationError("mask: expected a tensor, because do_layer_norm averages over real positions")
            tensors = [masked_layer_norm(tensor, mask) for tensor in tensors]
        shares = torch.softmax(full_precision(torch.cat(list(self.scalar_parameters))), dim=0)
        mixed = self.gamma * sum(share * full_precision(tensor) for share, tensor in zip(shares, tensors))
        return mixed.to(torch.result_type(self.gamma, tensors[0]))


def masked_layer_norm(tensor: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """(`tensor` [..., D] - mean) / standard deviation, both taken over all unmasked elements of the batch."""
    full = full_precision(tensor)
    present = mask.to(full.dtype)[..., None]
    count = present.sum() * full.shape[-1]
    mean = (full * present).sum() / count
    variance = (((full - mean) * present) ** 2).sum() / count
    return ((full - mean) / torch.sqrt(variance + 1e-12)).to(tensor.dtype)
