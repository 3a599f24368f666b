"""AllenNLP's parameters and bilm-tf's datasets: order of gates, signs, transposes and the forget gate's +1.

All functions are differentiable. bilm-tf's gates are i, j, f, o, AllenNLP's i, f, j, o.
"""

import torch

from elmo_fast.ops.projected_lstm.reference import LstmWeights


def lstm_weights(inputs: torch.Tensor, state: torch.Tensor, bias: torch.Tensor,
                 projection: torch.Tensor | None) -> LstmWeights:
    """`input_linearity` [4 D, I], `state_linearity` [4 D, P], its bias [4 D] with the +1, `state_projection` [P, D].

    Returns W [I + P, 4 D], B [4 D] without the +1, W_P [D, P] or None.
    """
    i, f, j, o = bias.chunk(4)
    w = _swap_gates(torch.cat([inputs, state], dim=1))
    return w.t().contiguous(), torch.cat([i, j, f - 1, o]), None if projection is None else projection.t().contiguous()


def cell_weights(w: torch.Tensor, b: torch.Tensor, w_p: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
    """The inverse of `lstm_weights`."""
    (i, j, f, o), rows = b.chunk(4), _swap_gates(w.t())  # [4 D, I + P]
    dim = len(b) // 4
    projection = dim if w_p is None else w_p.shape[1]
    return (rows[:, :-projection].contiguous(), rows[:, -projection:].contiguous(), torch.cat([i, f + 1, j, o]),
            None if w_p is None else w_p.t().contiguous())


def highway_weights(weight: torch.Tensor, bias: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """A layer of `Highway`, [2 F, F] and [2 F] -> W_carry [F, F], b_carry [F], W_transform, b_transform.

    AllenNLP's gate is one minus the carry.
    """
    (transform, carry), (b_transform, b_carry) = weight.chunk(2), bias.chunk(2)
    return -carry.t().contiguous(), -b_carry, transform.t().contiguous(), b_transform.contiguous()


def highway_layer(carry: torch.Tensor, b_carry: torch.Tensor, transform: torch.Tensor,
                  b_transform: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The inverse of `highway_weights`."""
    return torch.cat([transform.t(), -carry.t()]), torch.cat([b_transform, -b_carry])


def filters(weight: torch.Tensor) -> torch.Tensor:
    """`char_conv_k` [n, E, width] -> W_cnn [1, width, E, n]."""
    return weight.permute(2, 1, 0).unsqueeze(0).contiguous()


def convolution(weight: torch.Tensor) -> torch.Tensor:
    """The inverse of `filters`."""
    return weight.squeeze(0).permute(2, 1, 0).contiguous()


def _swap_gates(rows: torch.Tensor) -> torch.Tensor:
    """Reorder gates along the first dimension from one order to the other."""
    i, second, third, o = rows.chunk(4)
    return torch.cat([i, third, second, o])
