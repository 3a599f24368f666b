"""When a module in evaluation computes with packed weights, and when it packs them anew.

A module has parameters, which a program may edit at any time; a packed model never changes. `AtRest` keeps what was
made of the parameters until one of these differs: a parameter's object, its address, its version (torch counts edits
in it), `requires_grad`, or a sum over its words. Torch counts no edits through `.data`, NumPy views and fused
optimizers. So the sum of a parameter that requires gradients is over all of its words, and sees every edit of one
number. Of a frozen parameter a sample of words is compared: edits of a whole tensor are seen, those of few numbers may
not be; call `train()` and `eval()` after them. On a GPU no words are read, as the host would have to wait.

A module whose parts have hooks, were replaced or wrapped, calls them one by one, as AllenNLP does (`Now.is_plain`).
"""

import functools
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

    def values_of(self, parameters: Sequence[torch.Tensor]) -> dict[Hashable, Any]:
        """The values made of these parameters, by kind; empty after an edit."""
        held = self._held
        if held is None or not held.is_of(parameters):
            self._held = None  # frees the memory
            held = self._held = _Held(parameters)
        return held.values

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


class Now:
    """A module as a call finds it: its `tensors`, and whether its parts are ours (`forwards`) and have no hooks.

    One call has one of these: the parts are visited and the parameters compared once, however many ask.
    """

    def __init__(self, module: nn.Module, forwards: frozenset, at_rest: AtRest | None = None):
        parts, self._at_rest = list(_parts(module)), at_rest
        self.tensors = [value for part in parts for value in _parameters(part)]
        self.is_ours = all(type(part).forward in forwards and "forward" not in vars(part) for part in parts)
        self.is_plain = self.is_ours and not any(getattr(torch_module, f"_global{kind}") for kind in _HOOKS) and (
            not any(any(map(vars(part).get, _HOOKS)) for part in parts))

    def get(self, kind: Hashable, make: Callable[[], _Value]) -> _Value:
        """The value of this kind for the parameters, made unless it was made before, without gradients."""
        values = self._values  # compared before `make`: an edit meanwhile is seen by the next call
        if kind not in values:
            with torch.inference_mode(False), torch.no_grad():  # a training step could not read inference tensors
                values[kind] = make()
        return values[kind]

    @functools.cached_property
    def _values(self) -> dict[Hashable, Any]:
        return self._at_rest.values_of(self.tensors)


def parameter_of(module: nn.Module) -> torch.Tensor:
    """A parameter of a module, with the device and type of all."""
    return next(value for part in _parts(module) for value in _parameters(part))


def _parts(module: nn.Module) -> Iterator[nn.Module]:
    """What `modules()` yields, in other order and a third of the time; a part that is there twice comes twice."""
    parts = [module]
    for part in parts:
        yield part
        parts += [below for below in part._modules.values() if below is not None]


def _parameters(part: nn.Module) -> list[torch.Tensor]:
    """Its own parameters, or those that a replica of DataParallel has in their place."""
    own = part._parameters or vars(part).get("_former_parameters", {})
    return [value for value in own.values() if value is not None]
