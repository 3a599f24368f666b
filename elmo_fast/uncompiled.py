"""A call that torch.compile leaves alone. In a module of its own, as the decorator imports torch's compiler (1.5 s)."""

import inspect
from collections.abc import Callable
from typing import Any

import torch

_REASON = {"reason": "an ELMo runs outside torch.compile's graphs, by each batch's own tokens and lengths"}


@torch.compiler.disable(**(_REASON if "reason" in inspect.signature(torch.compiler.disable).parameters else {}))
def call(function: Callable, *arguments: Any, **named: Any) -> Any:
    """`function(*arguments, **named)`."""
    return function(*arguments, **named)
