"""Whether a tensor was edited in place since something was made of it."""

import functools

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook


def edit_key(tensor: torch.Tensor) -> tuple:
    """Equal for a tensor that is still what it was; another one after an edit in place, and for another tensor.

    An inference tensor does not count its edits, so its key never comes twice. Edits through `.data` are not counted
    either, by torch's own choice; updates of torch's fused optimizers are, from the first key on.
    """
    if tensor.requires_grad:
        _count_fused_updates()
    return tensor.data_ptr(), tensor.device, tensor.dtype, object() if tensor.is_inference() else tensor._version


@functools.cache
def _count_fused_updates() -> None:
    """Fused optimizers write weights without counting it (torch 2.11 to 2.13); after their steps it is counted here."""
    register_optimizer_step_post_hook(_count)


def _count(optimizer: torch.optim.Optimizer, *_) -> None:
    updated = [each for group in optimizer.param_groups if group.get("fused") for each in group["params"]
               if each.grad is not None]
    if updated:
        torch.autograd.graph.increment_version(updated)
