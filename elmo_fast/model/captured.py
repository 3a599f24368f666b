"""A forward whose shapes do not depend on its data: what a user's CUDA graph can capture.

Every position of the padded batch is encoded and every step runs for every sentence. Lengths stay on the GPU, nothing
is de-duplicated, checked or copied back. What a capture may not do comes before it, in `warm_up`: loading and tuning
kernels, packing weights, copying ids of boundaries. Which kernels run does not depend on the batch (see
`kernels.configs`), so that one warm-up serves a batch of any shape.
"""

import torch

from elmo_fast.model.layout import add_boundaries
from elmo_fast.model.lstm import LstmStack
from elmo_fast.model.token_source import TokenSource
from elmo_fast.ops.cuda.graphs import recording
from elmo_fast.ops.device import to_device
from elmo_fast.ops.reference import State

Boundaries = tuple[torch.Tensor, torch.Tensor]


class WarmedUp:
    """What `BiLm.warmup` prepared a capture for: `key` names the weights and settings of then.

    `boundaries` are the ids of `<S>` and `</S>` on the model's device, None for a model that has none of its own.
    """

    def __init__(self, key: tuple, boundaries: Boundaries | None):
        self.key, self.boundaries = key, boundaries

    @staticmethod
    def check(prepared: "WarmedUp | None", key: tuple) -> "WarmedUp":
        """`prepared`, or `RuntimeError` where it does not serve a capture of `key`."""
        if prepared is None or prepared.key != key:
            raise RuntimeError("warmup: expected model.warmup() before a CUDA graph is captured, with the device, "
                               "precision, backend, state and weights as they are in the capture; got "
                               + ("no warm-up" if prepared is None else "one with others"))
        return prepared


def warm_up(source: TokenSource, stack: LstmStack, backend: str, precision: str) -> Boundaries | None:
    """Load and tune all that `forward` launches, and prepare the weights; the ids of the boundaries."""
    device = stack.B_0_0.device
    source.warmup(backend)
    stack.warmup(precision)
    if not source.row_shape:
        return None
    first, last = (to_device(each, device) for each in source.boundary_ids())
    return first, last


def forward(source: TokenSource, stack: LstmStack, ids: torch.Tensor, boundaries: Boundaries | None,
            fresh: State | None, backend: str, precision: str) -> tuple[list[torch.Tensor], torch.Tensor]:
    """Every layer [B, T, 2 P], token layer first, zero past a sentence's end, and the mask bool [B, T].

    `ids` [B, T, ...] on the GPU, valid ones; `boundaries` go around each sentence, where given; `fresh` is where
    sentences start unless states are carried, None for zeros. Nothing is recorded for gradients.
    """
    with torch.no_grad(), recording():
        mask = (ids > 0).flatten(2).any(2) if ids.dim() > 2 else ids > 0
        if boundaries is not None:
            ids, mask = add_boundaries(ids, mask, *boundaries)
        vectors = source(ids.flatten(0, 1), backend).view(*mask.shape, -1)  # [B, T, P]
        tokens = torch.where(mask[..., None], torch.cat([vectors, vectors], dim=2), 0)
        return [tokens, *stack.run_padded(vectors, mask.sum(1), fresh, precision)], mask
