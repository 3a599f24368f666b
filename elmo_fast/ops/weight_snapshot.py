"""What weights hold: tells the next call whether they were edited, also in ways that torch does not count.

Torch counts edits of a tensor, but none through `.data` or a NumPy view. So every call compares samples of the weights,
and checksums of all of them where they are likely to have changed: after a backward, and when their module goes from
training to evaluation. On a GPU reading samples would wait for all queued work: it compares the checksums alone.
"""

import contextlib
import functools
import math
from collections.abc import Iterable, Iterator, Sequence
from contextvars import ContextVar
from typing import Any

import numpy as np
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.weak import TensorWeakRef, WeakTensorKeyDictionary

from elmo_fast.ops.calling_thread import UNDIVIDED
from elmo_fast.ops.device import is_capturing

Tensors = Sequence[torch.Tensor | None]

_SMALL = 1 << 13  # numbers in a matrix: those of at most as many are compared in full, as vectors are
_PIECE = 32  # bytes of a sample
_SPARSEST = 256  # pieces from one sample to the next in a row of up to twice as many; in a longer row there are two
_MOST = 1 << 13  # samples of a matrix
_BLOCK = 512  # words in a checksum
_WORDS = (torch.int64, torch.int32, torch.int16, torch.int8)

_current = WeakTensorKeyDictionary()  # first tensor -> number of tensors -> snapshot
_compared: ContextVar["set[Snapshot] | None"] = ContextVar("compared", default=None)


def snapshot_of(tensors: Tensors) -> "Snapshot":
    """The object that stands for what these tensors hold: that of the last call while they are unedited.

    The tensors, some of which may be None, are on one device and used together, as those of a layer.
    """
    of_first, compared = _current.setdefault(tensors[0], {}), _compared.get()
    snapshot, key = of_first.get(len(tensors)), _key(tensors)
    is_known = snapshot is not None and snapshot.key == key
    if not (is_known and ((compared and snapshot in compared) or snapshot.holds(tensors))):
        snapshot = of_first[len(tensors)] = Snapshot(tensors, key)
        for size, earlier in list(of_first.items()):  # they keep in memory what the first tensor held then
            if earlier.key[:1] != snapshot.key[:1]:
                of_first.pop(size, None)
    if compared is not None:
        compared.add(snapshot)
    return snapshot


def drop_values(tensors: Tensors) -> None:
    """Drop what was computed from tensors of which the first is that of `tensors`."""
    for snapshot in list(_current.get(tensors[0], {}).values()):
        snapshot.values.clear()


@contextlib.contextmanager
def one_call() -> Iterator[None]:
    """In the body weights are compared once, however often they are asked for."""
    token = _compared.set(set()) if _compared.get() is None else None
    try:
        yield
    finally:
        if token:
            _compared.reset(token)


def check_in_full(weights: Iterable[torch.Tensor]) -> None:
    """Have the next call compare all of what these weights hold, with others of their layers."""
    for weight in weights:
        for snapshot in list(_current.get(weight, {}).values()):
            snapshot.is_doubtful = True


class Snapshot:
    """What some tensors of one device hold, and `values` computed from it, by name.

    Samples are every number of a vector and of a matrix of up to 8192 numbers. Of a larger one they are pieces of 32
    bytes, 8 numbers in fp32 (of 8 bytes where a row is no multiple of 32), evenly over rows and columns: at least one
    in every row, two in one of more than 4096 numbers, and at least one in every column. A matrix of more than 8192
    rows has 8192 pieces. Tensors with gaps in memory, and inference tensors, have a new snapshot for every call.
    """

    def __init__(self, tensors: Tensors, key: tuple):
        self.values: dict[str, Any] = {}
        held = _held(tensors)
        is_followed = not any(tensor.is_inference() or not _is_dense(tensor) or is_capturing(tensor.device)
                              for tensor in held)
        self.key = key if is_followed else (None,)  # equal to no key
        self.is_doubtful, self._gradients = False, _gradients(tensors)
        self._samples = _samples(held if is_followed else [])  # views: no other weights take their address
        self._read = _read(self._samples)
        self._checksums = _checksums(held) if is_followed else []

    def holds(self, tensors: Tensors) -> bool:
        """Whether the tensors, which have its key, are unedited."""
        if (self.is_doubtful or not _are_gradients(self._gradients, tensors)) and not self._holds_in_full(tensors):
            return False
        return all((found == before).all() for found, before in zip(_read(self._samples), self._read))

    def _holds_in_full(self, tensors: Tensors) -> bool:
        held, gradients = _held(tensors), _gradients(tensors)
        if held and is_capturing(held[0].device):
            return True  # nothing can be waited for; `warmup` came before
        self.is_doubtful = False  # what sets it from here on is for the next call
        if not all(map(torch.equal, _checksums(held), self._checksums)):
            return False
        self._gradients = gradients
        return True


def version_key(tensor: torch.Tensor) -> tuple:
    """Equal for an unchanged tensor; different after an edit that torch counts, and for another tensor.

    Torch counts no edits of an inference tensor, so each of its keys is new. Updates of torch's fused optimizers are
    counted from the first key on.
    """
    if tensor.requires_grad:
        _count_fused_updates()
    return (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.device, tensor.dtype,
            object() if tensor.is_inference() else tensor._version)


def _key(tensors: Tensors) -> tuple:
    return tuple([None if tensor is None else version_key(tensor) for tensor in tensors])


@functools.cache
def _count_fused_updates() -> None:
    """Count the updates of fused optimizers, which write weights without counting it (torch 2.11 to 2.13)."""
    register_optimizer_step_post_hook(_count_updates)


def _count_updates(optimizer: torch.optim.Optimizer, *_) -> None:
    updated = [weight for group in optimizer.param_groups if group.get("fused") for weight in group["params"]
               if weight.grad is not None]
    if updated:
        torch.autograd.graph.increment_version(updated)


def _held(tensors: Tensors) -> list[torch.Tensor]:
    return [tensor.detach() for tensor in tensors if tensor is not None and not tensor.is_meta]


def _is_dense(tensor: torch.Tensor) -> bool:
    """Whether its numbers fill one piece of memory, in whatever order."""
    return tensor.is_contiguous() or torch.empty_like(tensor, device="meta").stride() == tensor.stride()


# ---- gradients -------------------------------------------------------------------------------------------------------

_Gradients = list[tuple[TensorWeakRef, int] | None]


def _gradients(tensors: Tensors) -> _Gradients:
    """The gradient of every trained weight, which is not kept in memory, and its version."""
    found = [tensor.grad for tensor in tensors if tensor is not None and tensor.requires_grad and tensor.is_leaf]
    return [None if gradient is None else (TensorWeakRef(gradient), gradient._version) for gradient in found]


def _are_gradients(known: _Gradients, tensors: Tensors) -> bool:
    found = [tensor.grad for tensor in tensors if tensor is not None and tensor.requires_grad and tensor.is_leaf]
    return len(found) == len(known) and all(
        gradient is None if before is None else before[0]() is gradient is not None and before[1] == gradient._version
        for gradient, before in zip(found, known))


# ---- samples and checksums -------------------------------------------------------------------------------------------


def _samples(held: Sequence[torch.Tensor]) -> list[list[torch.Tensor]]:
    """Views of the samples on a CPU, words [n, words of a piece]; those of one type and width together."""
    alike: dict[tuple, list[torch.Tensor]] = {}
    for view in (_samples_of(tensor) for tensor in held if tensor.device.type == "cpu"):
        alike.setdefault((view.dtype, view.shape[1]), []).extend(view.split(UNDIVIDED // view.shape[1]))
    return list(alike.values())


def _read(samples: Sequence[Sequence[torch.Tensor]]) -> list[np.ndarray]:
    return [torch.cat(alike).numpy() for alike in samples]


def _samples_of(tensor: torch.Tensor) -> torch.Tensor:
    words = _words(tensor)
    width = _PIECE // words.itemsize
    if tensor.dim() < 2 or tensor.numel() <= _SMALL:
        return words.view(-1, 1 if len(words) % width else width)
    rows = tensor.numel() // min(zip(tensor.stride(), tensor.size()))[1]  # in the order of memory
    columns = len(words) // rows
    width = 1 if columns % width else width
    step = width * _step(rows, max(1, columns // width))
    return words.as_strided(((len(words) - width) // step + 1, width), (step, 1))


@functools.cache
def _step(rows: int, columns: int) -> int:
    """From one sample to the next of a matrix [rows, columns] of pieces, counted along its rows.

    It is at most the length of a row, and coprime to it and at most that of a column, so that all of both come up. From
    row to row the samples move by about the golden section of it, so that no large rectangle is without one.
    """
    most = max(min(rows, columns, max(columns // 2, _SPARSEST)), rows * columns // _MOST)
    coprime = [step for step in range(1, most + 1) if math.gcd(step, columns) == 1]
    long = [step for step in coprime if step > 7 * most // 8] or coprime[-1:]
    return min(long, key=lambda step: min(abs(columns % step / step - ratio) for ratio in (0.382, 0.618)))


def _words(tensor: torch.Tensor) -> torch.Tensor:
    """The bits of a dense tensor as integers, in the order of memory: as few as possible, [n]."""
    flat = tensor.as_strided((tensor.numel(),), (1,))
    size, first = flat.itemsize, flat.storage_offset() * flat.itemsize
    return next(flat.view(dtype) for dtype in _WORDS if dtype.itemsize <= size or not (
        len(flat) * size % dtype.itemsize or first % dtype.itemsize or flat.data_ptr() % dtype.itemsize))


def _checksums(held: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The sum of every block of words, and the words that fill none; int64 on the tensors' device."""
    found = []
    for words in map(_words, held):
        blocks = len(words) // _BLOCK * _BLOCK
        found += [words[:blocks].view(-1, _BLOCK).sum(1), words[blocks:].clone()]
    return found
