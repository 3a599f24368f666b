"""Characters of distinct tokens to filter values: chooses the backend."""

from collections.abc import Sequence

import torch

from elmo_fast.ops import reference, torch_char_cnn
from elmo_fast.ops.backend import resolve


def char_cnn(
    ids: torch.Tensor,
    char_embed: torch.Tensor,
    filters: Sequence[tuple[torch.Tensor, torch.Tensor]],
    activation: str,
    *,
    backend: str = "auto",
) -> torch.Tensor:
    """See `reference.char_cnn`; `backend` as in `elmo_fast.ops.backend`."""
    chosen = resolve("char_cnn", backend, ids.device)
    run = {"reference": reference.char_cnn, "torch": torch_char_cnn.char_cnn}[chosen]
    return run(ids, char_embed, filters, activation)
