"""Characters of unique tokens to filter values: chooses the backend."""

from collections.abc import Sequence

import torch

from elmo_fast.ops import reference
from elmo_fast.ops.backend import resolve
from elmo_fast.ops.checks import check_ids, check_range
from elmo_fast.ops.cpu import char_cnn as native_char_cnn
from elmo_fast.ops.device import is_capturing
from elmo_fast.ops.precision import full_precision
from elmo_fast.ops.torch import char_cnn as torch_char_cnn


def char_cnn(
    ids: torch.Tensor,
    char_embed: torch.Tensor,
    filters: Sequence[tuple[torch.Tensor, torch.Tensor]],
    activation: str,
    *,
    backend: str = "auto",
    precision: str | None = None,
    bounded: bool = False,
) -> torch.Tensor:
    """See `reference.char_cnn`; `backend` as in `elmo_fast.ops.backend`.

    `precision` is what the native kernels on a GPU compute in, by default that of `precision.numerics` around the call;
    in `medium` their result is fp16 where `bounded` says that it fits (`operands.fits_fp16`), else bf16. The other
    backends follow `numerics`; 16-bit weights compute in fp32.

    On the CPU `native` computes in fp32 at every precision; it has no second derivatives.
    """
    check_ids(ids, filters)
    operands = char_embed, *(part for pair in filters for part in pair)
    chosen = resolve("char_cnn", backend, *operands)
    if chosen == "native" and char_embed.device.type == "cuda":
        from elmo_fast.ops.cuda import encoder

        check_range(ids, len(char_embed))
        return encoder.char_cnn(ids.to(char_embed.device), char_embed, filters, activation, precision, bounded)
    table, filters = full_precision(char_embed), [tuple(map(full_precision, pair)) for pair in filters]
    if chosen == "native":
        return native_char_cnn.char_cnn(ids, table, filters, activation)
    # sorting tokens by length reads the lengths back, which a captured graph cannot
    whole = chosen == "reference" or is_capturing(ids.device)
    run = reference.char_cnn if whole else torch_char_cnn.char_cnn
    return run(ids, table, filters, activation)
