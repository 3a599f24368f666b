"""The pointwise kernels of an LSTM step in torch operations, for GPUs where Triton is not available.

Shapes and arguments are those of `elmo_fast.kernels.lstm_pointwise`. L slots, D cells, P values of h; the first axis is
the direction.
"""

import torch

from elmo_fast.ops.projected_lstm.reference import clip


def gates(zh, z, scale, bias, meta, initial_c, c, m, cell_clip: float) -> None:
    """Compute a step's gates: update `c` fp32 [2, L, D] and `m` [2, L, D] of the slots that have a token.

    `zh` fp32 [2, L, 4 D] recurrent products; `z` [M, 2, D, 4] input projections, times `scale` fp32 [M, 2] if given;
    `bias` fp32 [2, 4 D]; `meta` int32 [3, L]: the row of `z` for each direction, -1 for a slot without a token, and
    1 where a sequence starts, and `initial_c` fp32 [2, D] replaces c.
    """
    has_token, rows = meta[:2] >= 0, meta[:2].clamp(min=0).long()  # [2, L]
    direction = torch.arange(2, device=z.device)[:, None]
    inner = z[rows, direction].float().transpose(2, 3).flatten(2)  # [2, L, 4 D]
    if scale is not None:
        inner = inner * scale[rows, direction][..., None]
    i, j, f, o = (zh + inner + bias[:, None]).chunk(4, dim=-1)
    before = torch.where((meta[2] != 0)[:, None], initial_c[:, None], c)
    after = clip(torch.sigmoid(f + 1) * before + torch.sigmoid(i) * torch.tanh(j), cell_clip)
    m.copy_(torch.sigmoid(o) * torch.tanh(after))
    c.copy_(torch.where(has_token[..., None], after, c))


def hidden(r, meta, after, initial_h, h, operand, out, proj_clip: float) -> None:
    """Clip the projection `r` [2, L, P] and write it to `h` fp32 [2, L, P] and `out` fp32 [L, 2 P].

    `operand` [2, L, P], the operand of the next step, is set to h, or to `initial_h` fp32 [2, P] where `after`, the
    `meta` of the next step, starts a sequence.
    """
    has_token = (meta[:2] >= 0)[..., None]
    h.copy_(torch.where(has_token, clip(r.float(), proj_clip), h))
    out.copy_(h.transpose(0, 1).reshape(out.shape))
    operand.copy_(torch.where((after[2] != 0)[:, None], initial_h[:, None], h))


def gates_saving(zh, z, bias, before, c, m, cell_clip: float) -> None:
    """Compute the gates of n slots for training: c after the step to `c` [n, 2, D], and `m` [n, 2, D].

    `zh` [n, 2, 4 D] recurrent products; `z` [n, 2, 4 D] input projections, replaced by the gates after their functions;
    `bias` [2, 4 D]; `before` [n, 2, D], c before the step. All are fp32 but `m`. Where the clip fires, the gates i, j
    and f are saved as zeros, which makes their gradients and that of `before` zero.
    """
    i, j, f, o = z.add_(zh).add_(bias).chunk(4, dim=-1)
    f.add_(1).sigmoid_()
    i.sigmoid_(), j.tanh_(), o.sigmoid_()
    after = torch.addcmul(f * before, i, j)
    c.copy_(clip(after, cell_clip))
    m.copy_(o * torch.tanh(c))
    z.unflatten(2, (4, -1))[:, :, :3].masked_fill_((after.abs() > cell_clip)[:, :, None], 0)


def gates_gradient(m, gates, before, c, grad_c, grad_z) -> None:
    """Write the gradient of a step's `z` to `grad_z` [n, 2, 4 D], and replace the gradient in `m` [n, 2, D] by m.

    `gates`, `before` and `c` are those of `gates_saving`; `grad_c` [n, 2, D] is replaced by the gradient of `before`.
    """
    i, j, f, o = gates.chunk(4, dim=-1)
    tanh_c, grad_o = torch.tanh(c), m * o * (1 - o)
    grad = grad_c + m * o * (1 - tanh_c * tanh_c)
    torch.cat([grad * j * i * (1 - i), grad * i * (1 - j * j), grad * before * f * (1 - f), grad_o * tanh_c], dim=-1,
              out=grad_z)
    torch.mul(grad, f, out=grad_c)
    torch.mul(o, tanh_c, out=m)
