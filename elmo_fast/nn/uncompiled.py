"""A call that torch.compile does not trace. A separate module, since the decorator imports torch's compiler (1.5 s)."""

import inspect
from collections.abc import Callable
from typing import Any

import torch

_REASON = {"reason": "an ELMo model runs outside torch.compile's graphs, since its tensors' shapes depend on the text"}


@torch.compiler.disable(**(_REASON if "reason" in inspect.signature(torch.compiler.disable).parameters else {}))
def call(function: Callable, *arguments: Any, **keywords: Any) -> Any:
    """`function(*arguments, **named)`."""
    return function(*arguments, **keywords)
