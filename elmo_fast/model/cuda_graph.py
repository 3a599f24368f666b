"""A forward whose shapes do not depend on its data, for a CUDA graph that the user captures.

Nothing is de-duplicated, checked or copied back; `prepare` does beforehand what a capture does not allow (docs/gpu.md).
"""

from dataclasses import dataclass

import torch

from elmo_fast.model.layers.batch_layout import BiLmOutput, add_boundaries
from elmo_fast.model.layers.lstm import LstmStack
from elmo_fast.model.token_table.lookup import TokenEncoder, check_shape
from elmo_fast.ops.backend import why_not
from elmo_fast.ops.device import to_device
from elmo_fast.ops.numerics import numerics
from elmo_fast.ops.projected_lstm import unsupported_weights
from elmo_fast.ops.projected_lstm.cuda.graphs import recording
from elmo_fast.ops.projected_lstm.reference import State


@dataclass(frozen=True)
class Preparation:
    """What `BiLm.warmup` prepared for captures; `key` names the weights and settings at that time.

    `boundaries` are the ids of `<S>` and `</S>` on the model's device, None for a model of words without a vocabulary.
    """

    key: tuple
    boundaries: tuple[torch.Tensor, torch.Tensor] | None


def why_no_capture(tokens: TokenEncoder, stack: LstmStack) -> str | None:
    """The reason why a CUDA graph cannot capture a forward; None if it can."""
    reason, lacking = why_not("projected_lstm", "native", [stack.B_0_0]), unsupported_weights(stack.layer_weights(0))
    if lacking:
        reason = reason or f"the native kernels do not support {lacking}"
    return reason or (None if tokens.backend in ("auto", "native") else "it runs in plain PyTorch")


def prepare(tokens: TokenEncoder, stack: LstmStack, key: tuple, rows: int) -> Preparation:
    """Load and tune all kernels of `forward`, pack the weights, and allocate at least `rows` carried rows."""
    source = tokens.source
    source.warmup(tokens.backend)
    stack.prepare_capture(rows, tokens.precision)
    boundaries = source.boundary_ids() if source.reads_text else None
    return Preparation(key, boundaries and tuple(to_device(ids, tokens.device) for ids in boundaries))


def check(tokens: TokenEncoder, stack: LstmStack, ids: torch.Tensor, boundaries: str, prepared: Preparation | None,
          key: tuple) -> None:
    """Raise `ValueError` or `RuntimeError` for a forward that cannot be captured."""
    check_shape(ids, boundaries, tokens.source)
    if ids.device != tokens.device:
        raise ValueError(f"ids: expected ids on {tokens.device} while a CUDA graph is captured, got {ids.device}")
    if reason := why_no_capture(tokens, stack):
        raise RuntimeError("backend: expected one that a CUDA graph can capture, 'native' or 'auto', got "
                           f"{tokens.backend!r}: {reason}")
    if prepared is None or prepared.key != key:
        raise RuntimeError("warmup: expected model.warmup() before a CUDA graph is captured, with the device, "
                           "precision, backend, state and weights as they are in the capture; got "
                           + ("no warm-up" if prepared is None else "a warm-up with others"))


def forward(tokens: TokenEncoder, stack: LstmStack, ids: torch.Tensor, boundaries: str, carried: bool,
            initial_state: State | None, prepared: Preparation) -> BiLmOutput:
    """The output of `BiLm.forward` for valid ids [B, T, ...] on the GPU, without gradients.

    `initial_state` is the state that sentences start from unless states are `carried`, None for zeros.
    """
    with torch.no_grad(), recording(), numerics(tokens.precision, tokens.device):
        mask = (ids > 0).flatten(2).any(2) if ids.dim() > 2 else ids > 0
        if boundaries == "add":
            ids, mask = add_boundaries(ids, mask, *(prepared.boundaries or tokens.source.boundary_ids()))
        vectors = tokens.source.encode_rows(ids.flatten(0, 1), tokens.backend).view(*mask.shape, -1)  # [B, T, P]
        token_layer = torch.where(mask[..., None], torch.cat([vectors, vectors], dim=2), 0)
        layers = [token_layer, *stack.run_captured(vectors, mask.sum(1), carried, initial_state, tokens.precision)]
    return BiLmOutput([layer.to(stack.B_0_0.dtype) for layer in layers], mask)
