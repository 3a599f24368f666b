"""A forward whose shapes do not depend on its data: what somebody's CUDA graph can capture.

Every position of the padded batch is encoded and every step runs for every sentence. Lengths stay on the GPU, nothing
is de-duplicated, checked or copied back. The model must have run once before, so that its weights are prepared.
"""

import torch

from elmo_fast.model.layout import add_boundaries
from elmo_fast.model.lstm import LstmStack
from elmo_fast.model.token_source import TokenSource
from elmo_fast.ops.host_device import to_device
from elmo_fast.ops.reference import State


class Marks:
    """Ids of `<S>` and `</S>` on the devices that a model ran on: a capture cannot copy them there."""

    def __init__(self):
        self._there: dict[tuple[torch.device, torch.dtype], tuple[torch.Tensor, torch.Tensor]] = {}

    def prepare(self, source: TokenSource, ids: torch.Tensor) -> None:
        """Have the ids at hand in the type of `ids` and where those are."""
        key = ids.device, ids.dtype
        if key not in self._there:
            self._there[key] = tuple(to_device(each.to(ids.dtype), ids.device) for each in source.boundary_ids())

    def ready(self, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The ids; `RuntimeError` where the model has not run with such `ids`."""
        marks = self._there.get((ids.device, ids.dtype))
        if marks is None:
            raise RuntimeError(f"ids: expected a model that has run once with {ids.dtype} ids on {ids.device} before a "
                               "CUDA graph is captured, got one that has not")
        return marks


def forward(source: TokenSource, stack: LstmStack, ids: torch.Tensor, marks: tuple[torch.Tensor, torch.Tensor] | None,
            fresh: State | None, backend: str, precision: str) -> tuple[list[torch.Tensor], torch.Tensor]:
    """Every layer [B, T, 2 P], token layer first, zero past a sentence's end, and the mask bool [B, T].

    `ids` [B, T, ...] on the GPU, valid ones; `marks` go around each sentence, where given; `fresh` is where sentences
    start unless states are carried, None for zeros.
    """
    mask = (ids > 0).flatten(2).any(2) if ids.dim() > 2 else ids > 0
    if marks is not None:
        ids, mask = add_boundaries(ids, mask, *marks)
    vectors = source(ids.flatten(0, 1), backend).view(*mask.shape, -1)  # [B, T, P]
    tokens = torch.where(mask[..., None], torch.cat([vectors, vectors], dim=2), 0)
    return [tokens, *stack.run_padded(vectors, mask.sum(1), fresh, precision)], mask
