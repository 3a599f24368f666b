"""Register the ops in `torch.library`: a schema, a fake implementation and a gradient, the same on every device.

`torch.compile` then sees a single op. A schema's arguments are the fields of a `NamedTuple`, which every implementation
reads by name.
"""

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import get_type_hints

import torch

library = torch.library.Library("elmo_fast", "FRAGMENT")

_TYPES = {torch.Tensor: "Tensor", torch.Tensor | None: "Tensor?", list[torch.Tensor]: "Tensor[]",
          list[bool]: "bool[]", bool: "bool", int: "int", float: "float", str: "str"}


def schema_of(arguments: type) -> str:
    """The fields of a `NamedTuple`, written as the arguments of a schema."""
    return ", ".join(f"{_TYPES[hint]} {name}" for name, hint in get_type_hints(arguments).items())


def register(op: str, fake: Callable, gradient: Callable, save: Callable | None = None) -> None:
    """Register an op's `fake` (shapes and types of results), its `gradient`, and `save`, which keeps tensors for it."""
    torch.library.register_fake(f"elmo_fast::{op}", fake, lib=library)
    torch.library.register_autograd(f"elmo_fast::{op}", gradient, setup_context=save, lib=library)


def register_backward(op: str, fake: Callable) -> None:
    """Register the op `NAME_backward`, which computes the gradient of `op` and has no gradient itself."""
    register(f"{op}_backward", fake, functools.partial(_no_second_derivatives, op))


def _no_second_derivatives(op: str, ctx, *_):
    raise RuntimeError(f"{op}: the native backend has no second derivatives; backend='torch' has them")


def no_gradient(tensor: torch.Tensor) -> torch.Tensor:
    """An empty tensor [0], returned in place of a gradient that is not needed."""
    return tensor.new_empty(0)


def gradient_memory(tensors: Iterable[torch.Tensor], needed: Sequence[bool]) -> list[torch.Tensor]:
    """Uninitialized gradients of tensors; [0] for those that are not needed."""
    return [tensor.new_empty(tensor.shape) if wanted else no_gradient(tensor)
            for tensor, wanted in zip(tensors, needed)]


def needed_only(gradients: Sequence[torch.Tensor], needed: Sequence[bool]) -> list[torch.Tensor | None]:
    """The gradients, None for those that are not needed."""
    return [gradient if wanted else None for gradient, wanted in zip(gradients, needed)]
