"""The two pointwise kernels of an LSTM step in torch operations, for GPUs where Triton is not available.

Shapes and arguments are those of `elmo_fast.kernels.lstm_pointwise`. L slots, D cells, P values of h; the first axis is
the direction.
"""

import torch

from elmo_fast.ops.projected_lstm.reference import clip


def gates(zh, z, scale, bias, meta, initial_c, c, m, cell_clip: float) -> None:
    """Compute a step's gates: update `c` fp32 [2, L, D] and `m` [2, L, D] of the slots that have a token.

    `zh` fp32 [2, L, 4 D] recurrent products; `z` [M, 2, 4 D] input projections, times `scale` fp32 [M, 2] if given;
    `bias` fp32 [2, 4 D]; `meta` int32 [3, L]: the row of `z` for each direction, -1 for a slot without a token, and
    1 where a sequence starts, and `initial_c` fp32 [2, D] replaces c.
    """
    has_token, rows = meta[:2] >= 0, meta[:2].clamp(min=0).long()  # [2, L]
    direction = torch.arange(2, device=z.device)[:, None]
    inner = z[rows, direction].float()  # [2, L, 4 D]
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
