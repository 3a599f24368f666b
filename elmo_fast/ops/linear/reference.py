"""The specification: a product with a bias and a highway layer in plain torch, for any float dtype.

Weights have the shapes of bilm-tf's weight file. Every faster implementation is tested against these functions.
"""

import torch


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """x [N, K], weight [K, M], bias [M] -> x W + b [N, M]."""
    return x @ weight + bias


def highway(x: torch.Tensor, w_carry: torch.Tensor, b_carry: torch.Tensor, w_transform: torch.Tensor,
            b_transform: torch.Tensor) -> torch.Tensor:
    """One highway layer (Srivastava et al. 2015): x [N, D], weights [D, D], biases [D] -> [N, D].

    `w_carry` gates the transformed value, as bilm-tf names it (AllenNLP's gate is its complement).
    """
    gate = torch.sigmoid(x @ w_carry + b_carry)
    return gate * torch.relu(x @ w_transform + b_transform) + (1 - gate) * x
