"""The two small kernels of an LSTM step in torch operations: where Triton is absent or the GPU older than it needs.

Shapes and arguments are those of `elmo_fast.kernels.lstm_pointwise`. L slots, D cells, P values of h; direction first.
"""

import torch

from elmo_fast.ops.projected_lstm.reference import clip


def gates(zh, z, scale, bias, meta, fresh_c, c, m, cell_clip: float) -> None:
    """One step's gates: updates `c` fp32 [2, L, D] and `m` [2, L, D] of the slots that have a token.

    `zh` fp32 [2, L, 4 D] recurrent products; `z` [M, 2, 4 D] input projections, times `scale` fp32 [M, 2] where given;
    `bias` fp32 [2, 4 D]; `meta` int32 [3, L]: the row of `z` for each direction, -1 for a slot without a token, and
    whether a sequence starts here (`fresh_c` fp32 [2, D] then stands for c).
    """
    has_token, rows = meta[:2] >= 0, meta[:2].clamp(min=0).long()  # [2, L]
    direction = torch.arange(2, device=z.device)[:, None]
    inner = z[rows, direction].float()  # [2, L, 4 D]
    if scale is not None:
        inner = inner * scale[rows, direction][..., None]
    i, j, f, o = (zh + inner + bias[:, None]).chunk(4, dim=-1)
    before = torch.where((meta[2] != 0)[:, None], fresh_c[:, None], c)
    after = clip(torch.sigmoid(f + 1) * before + torch.sigmoid(i) * torch.tanh(j), cell_clip)
    m.copy_(torch.sigmoid(o) * torch.tanh(after))
    c.copy_(torch.where(has_token[..., None], after, c))


def hidden(r, meta, after, fresh_h, h, operand, out, proj_clip: float) -> None:
    """What follows the projection: clips `r` [2, L, P] into `h` fp32 [2, L, P] and `out` fp32 [L, 2 P].

    `operand` [2, L, P] is what the next step multiplies: h, or `fresh_h` fp32 [2, P] where `after`, the next step's
    `meta`, starts a sequence.
    """
    has_token = (meta[:2] >= 0)[..., None]
    h.copy_(torch.where(has_token, clip(r.float(), proj_clip), h))
    out.copy_(h.transpose(0, 1).reshape(out.shape))
    operand.copy_(torch.where((after[2] != 0)[:, None], fresh_h[:, None], h))
