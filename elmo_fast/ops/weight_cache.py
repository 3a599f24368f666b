"""Values computed from weights once: cached while the weights exist, computed again after an edit in place.

One cache serves the packed weights of the CPU and the operands of a GPU.
"""

import functools
from collections.abc import Callable, Sequence

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.weak import WeakTensorKeyDictionary

Tensors = Sequence[torch.Tensor | None]

_cache = WeakTensorKeyDictionary()  # first tensor -> kind -> (key, value)


def cached(tensors: Tensors, kind: str, make: Callable[[Tensors], object], keep: bool = True):
    """`make(tensors)`, detached, or its earlier value for the same tensors; `kind` names the use.

    Without `keep`, for weights in training, the new value is not cached and the cached ones are dropped.
    """
    key = _key(tensors)
    of_first = _cache.setdefault(tensors[0], {})
    if keep and kind in of_first and of_first[kind][0] == key:
        return of_first[kind][1]
    value = make([None if tensor is None else tensor.detach() for tensor in tensors])
    if keep:
        of_first[kind] = key, value
    else:
        of_first.clear()
    return value


def emptied(tensors: Tensors) -> list[torch.Tensor | None]:
    """The tensors, matrices replaced by parameters on the meta device; cached values are transferred to them."""
    without_data = [torch.nn.Parameter(torch.empty_like(tensor, device="meta"), requires_grad=False)
                    if tensor is not None and tensor.dim() == 2 else tensor for tensor in tensors]
    _cache[without_data[0]] = {kind: (_key(without_data), value)
                               for kind, (key, value) in _cache.pop(tensors[0]).items() if len(key) == len(tensors)}
    return without_data


def version_key(tensor: torch.Tensor) -> tuple:
    """Equal for an unchanged tensor; different after an edit in place, and for another tensor.

    Torch counts no edits of an inference tensor, so each of its keys is new. Nor does it count edits through `.data`.
    Updates of torch's fused optimizers are counted from the first key on.
    """
    if tensor.requires_grad:
        _count_fused_updates()
    return tensor.data_ptr(), tensor.device, tensor.dtype, object() if tensor.is_inference() else tensor._version


def _key(tensors: Tensors) -> tuple:
    return tuple(None if tensor is None else version_key(tensor) for tensor in tensors)


@functools.cache
def _count_fused_updates() -> None:
    """Count the updates of fused optimizers, which write weights without counting it (torch 2.11 to 2.13)."""
    register_optimizer_step_post_hook(_count_updates)


def _count_updates(optimizer: torch.optim.Optimizer, *_) -> None:
    updated = [weight for group in optimizer.param_groups if group.get("fused") for weight in group["params"]
               if weight.grad is not None]
    if updated:
        torch.autograd.graph.increment_version(updated)
