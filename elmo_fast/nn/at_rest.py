"""When a module in evaluation computes with packed weights, and when it packs them anew.

A module has parameters, which a program may edit at any time; a packed model never changes. `AtRest` keeps what was
made of the parameters until one of these differs: a parameter's object, its address, its version (torch counts edits
in it), `requires_grad`, or a sum over its words. Torch counts no edits through `.data`, NumPy views and fused
optimizers. So the sum of a parameter that requires gradients is over all of its words, and sees every edit of one
number. Of a frozen parameter a sample of words is compared: edits of a whole tensor are seen, those of few numbers may
not be; call `train()` and `eval()` after them. On a GPU no words are read, as the host would have to wait.

A module whose parts have hooks, were replaced or wrapped, calls them one by one, as AllenNLP does (`is_plain`).
"""

import operator
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np
import torch
from torch import nn
from torch.nn.modules import module as torch_module

_Value = TypeVar("_Value")
_HOOKS = "_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks"
_SAMPLE = 1 << 10  # words of a frozen parameter that are compared
_FACTORS = np.random.default_rng(0).integers(1 << 62, size=_SAMPLE) | 1  # so that words that change places are seen


class AtRest:
    """Values made of parameters, by kind, kept until the parameters are edited. Copies and pickles are empty."""

    def __init__(self) -> None:
        self._held: _Held | None = None

    def get(self, kind: Hashable, parameters: Sequence[torch.Tensor], make: Callable[[], _Value]) -> _Value:
        """The value of this kind for the parameters, made unless it was made before."""
        held = self._held
        if held is None or not held.is_of(parameters):
            self._held = None  # frees the memory
            held = self._held = _Held(parameters)  # before `make`: an edit meanwhile is seen by the next call
        if kind not in held.values:
            held.values[kind] = make()
        return held.values[kind]

    def drop(self) -> None:
        """Make all values anew at the next call."""
        self._held = None

    def __reduce__(self) -> tuple:
        return AtRest, ()


class _Held:
    """Parameters as they were, and the `values` made of them."""

    def __init__(self, parameters: Sequence[torch.Tensor]):
        self.values: dict[Hashable, Any] = {}
        self._parameters, self._marks = list(parameters), list(map(_mark, parameters))
        self._words = [(words, value.requires_grad) for value in parameters if (words := _words(value)) is not None]
        self._sums = self._read()

    def is_of(self, parameters: Sequence[torch.Tensor]) -> bool:
        return (len(parameters) == len(self._parameters) and all(map(operator.is_, parameters, self._parameters))
                and list(map(_mark, parameters)) == self._marks and self._read() == self._sums)

    def _read(self) -> list[int]:
        sums = []
        for words, is_trained in self._words:
            sample = words[:: -(-len(words) // _SAMPLE) | 1]  # an odd step, which meets all columns of a matrix
            sums.append(np.dot(sample, _FACTORS[: len(sample)]))
            if is_trained:
                sums.append(np.add.reduce(words))
        return sums


def _mark(value: torch.Tensor) -> tuple:
    return (value.data_ptr(), value.shape, value.stride(), value.device, value.dtype, value.requires_grad,
            None if value.is_inference() else value._version)


def _words(value: torch.Tensor) -> np.ndarray | None:
    """The words of a parameter on a CPU, int64, of 2 or 4 bytes if the size is no multiple of 8; gaps are included."""
    if value.device.type != "cpu" or not value.numel():
        return None
    span = 1 + sum((size - 1) * step for size, step in zip(value.shape, value.stride()))
    content = value.detach().as_strided((span,), (1,)).view(torch.uint8).numpy()
    size = next(size for size in (8, 4, 2) if len(content) % size == 0)
    return content.view(f"i{size}")


# ---- parts -----------------------------------------------------------------------------------------------------------


def is_plain(module: nn.Module, forwards: frozenset) -> bool:
    """Whether the module and all its parts are ours, and have no hooks."""
    return are_ours(module, forwards) and not any(getattr(torch_module, f"_global{kind}") for kind in _HOOKS) and (
        not any(any(map(vars(part).get, _HOOKS)) for part in module.modules()))


def are_ours(module: nn.Module, forwards: frozenset) -> bool:
    """Whether the module and all its parts have a `forward` of this set of functions."""
    return all(type(part).forward in forwards and "forward" not in vars(part) for part in module.modules())


def parameter_of(module: nn.Module) -> torch.Tensor:
    """A parameter of a module, with the device and type of all."""
    return next(tensors_of(module))


def tensors_of(module: nn.Module) -> Iterator[torch.Tensor]:
    """The parameters of a module, and those that a replica of DataParallel has in their place."""
    for part in module.modules():
        yield from (value for value in (part._parameters or vars(part).get("_former_parameters", {})).values()
                    if value is not None)
