"""Compute the filter values of unique tokens from their characters, on the backend that is chosen."""

import torch

# the first three register implementations
import elmo_fast.ops.char_cnn.cpu
import elmo_fast.ops.char_cnn.cuda
import elmo_fast.ops.char_cnn.gradients  # noqa: F401
from elmo_fast.ops.backend import needs_gradient, resolve
from elmo_fast.ops.char_cnn import pytorch, reference
from elmo_fast.ops.char_cnn.reference import Filters
from elmo_fast.ops.numerics import active_precision, full_precision


def char_cnn(ids: torch.Tensor, char_embed: torch.Tensor, filters: Filters, activation: str, *, backend: str = "auto",
             precision: str | None = None, bounded: bool = False) -> torch.Tensor:
    """See `reference.char_cnn`; `backend` as in `elmo_fast.ops.backend`.

    `precision` is the precision of the native kernels on a GPU, by default that of the enclosing `numerics.numerics`;
    in `medium` their result is fp16 where `bounded` says that all values fit (`cuda.fits_fp16`), else bf16. The other
    backends follow `numerics`; 16-bit weights are converted to fp32.

    On the CPU `native` computes in fp32 at every precision and has no second derivatives.
    """
    widest = max(weight.shape[1] for weight, _ in filters)
    if ids.dim() != 2 or ids.is_floating_point() or ids.shape[1] < widest:
        raise ValueError(f"ids: expected integers [tokens, characters], at least {widest} characters, "
                         f"got {ids.dtype} of shape {tuple(ids.shape)}")
    operands = char_embed, *(part for pair in filters for part in pair)
    chosen, precision = resolve("char_cnn", backend, *operands), precision or active_precision()
    if chosen == "native" and char_embed.device.type == "cuda":
        largest = len(char_embed)  # ids on a GPU are not checked: the host would have to wait for them
        if ids.device.type == "cpu" and ids.numel() and not (int(ids.min()) >= 0 and int(ids.max()) <= largest):
            raise ValueError(f"ids: expected character ids from 0 to {largest}, got {int(ids.min())} to "
                             f"{int(ids.max())}")
        ids = ids.to(char_embed.device)
    else:
        char_embed, precision = full_precision(char_embed), "highest"
        filters = [tuple(map(full_precision, pair)) for pair in filters]
    if chosen == "native":
        weights, biases = ([pair[k] for pair in filters] for k in (0, 1))
        save = ids.device.type == "cpu" and needs_gradient(operands)
        return torch.ops.elmo_fast.char_cnn(ids, char_embed, weights, biases, activation, precision, bounded, save)[0]
    return (reference if chosen == "reference" else pytorch).char_cnn(ids, char_embed, filters, activation)
