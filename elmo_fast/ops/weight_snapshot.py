"""Detect edits of weights between calls, including edits that torch does not count.

Torch counts edits of a tensor, but not edits through `.data` or a NumPy view. So every call compares samples of the
weights, and checksums of all weights where an edit is likely: after a backward, and when their module goes from
training to evaluation. Reading samples on a GPU would wait for all queued work, so there only checksums are compared.
"""

import contextlib
import functools
import math
import operator
from collections.abc import Iterable, Iterator, Sequence
from contextvars import ContextVar
from typing import Any

import numpy as np
import torch
from torch.utils.weak import TensorWeakRef, WeakTensorKeyDictionary

from elmo_fast.engine.backend import native_module
from elmo_fast.ops.calling_thread import UNDIVIDED, threads_of_a_child

Tensors = Sequence[torch.Tensor | None]

_SMALL = 1 << 13  # a matrix of at most this many numbers is compared in full, as vectors are
_PIECE = 32  # bytes of a sample
_SPARSEST = 256  # pieces from a sample to the next in a row of up to 512 pieces; a longer row has two samples
_MOST = 1 << 13  # samples of a matrix
_BLOCK = 512  # words in a checksum
_WORDS = (torch.int64, torch.int32, torch.int16, torch.int8)

_NOT_FOLLOWED = (None,)  # differs from the key of any tensors

_current = WeakTensorKeyDictionary()  # first tensor -> number of tensors -> snapshot
# within `one_call`: (id of the first tensor, number of tensors) -> tensors that were compared, counts, and the snapshot
_compared: ContextVar["dict[tuple[int, int], tuple[Tensors, list, Snapshot]] | None"] = ContextVar(
    "compared", default=None)


def snapshot_of(tensors: Tensors) -> "Snapshot":
    """The snapshot of these tensors: that of the last call while the tensors are unedited.

    The tensors, some of which may be None, are on one device and used together, such as the weights of a layer.
    """
    compared, place = _compared.get(), (id(tensors[0]), len(tensors))
    if compared and place in compared:
        before, counts, snapshot = compared[place]
        if all(map(operator.is_, before, tensors)) and counts == _counts(tensors):
            return snapshot
    of_first, key = _current.setdefault(tensors[0], {}), _key(tensors)
    snapshot = of_first.get(len(tensors))
    if snapshot is None or snapshot.key != key or not snapshot.holds(tensors):
        snapshot = of_first[len(tensors)] = Snapshot(tensors, key)
        for size, earlier in list(of_first.items()):  # outdated snapshots keep the first tensor's former memory
            if earlier.key[:1] != snapshot.key[:1]:
                of_first.pop(size, None)
    if compared is not None and snapshot.key != _NOT_FOLLOWED:
        compared[place] = tensors, _counts(tensors), snapshot
    return snapshot


def drop_values(tensors: Tensors) -> None:
    """Drop the values computed from groups of tensors whose first tensor is the first of `tensors`."""
    for snapshot in list(_current.get(tensors[0], {}).values()):
        snapshot.values.clear()


@contextlib.contextmanager
def one_call() -> Iterator[None]:
    """Compare weights only once in the body, however often their snapshots are asked for; see `threads_of_a_child`."""
    token = _compared.set({}) if _compared.get() is None else None
    try:
        with threads_of_a_child():
            yield
    finally:
        if token:
            _compared.reset(token)


def check_in_full(weights: Iterable[torch.Tensor]) -> None:
    """Make the next call compare these weights, and the others of their layers, in full."""
    for weight in weights:
        for snapshot in list(_current.get(weight, {}).values()):
            snapshot.is_doubtful = True


class Snapshot:
    """The contents of some tensors on one device, and `values` computed from them, by name.

    Samples are all numbers of a vector and of a matrix of up to 8192 numbers. Samples of a larger matrix are pieces of
    32 bytes, 8 numbers in fp32 (of 8 bytes where a row is not a multiple of 32), spread evenly over rows and columns:
    at least one in every row, two in a row of more than 4096 numbers, and at least one in every column. A matrix of
    more than 8192 rows has 8192 pieces. Tensors with gaps in memory, and inference tensors, get a new snapshot in every
    call.
    """

    def __init__(self, tensors: Tensors, key: tuple):
        self.values: dict[str, Any] = {}
        held = _held(tensors)
        is_followed = not any(tensor.is_inference() or not _is_dense(tensor) for tensor in held)
        self.key = key if is_followed else _NOT_FOLLOWED
        self.is_doubtful, self._gradients = False, _gradients(tensors)
        self._samples = _samples(held if is_followed else [])  # views: they keep the address from being reused
        self._read = _read(self._samples)
        self._table = _table(self._samples, self._read)
        self._checksums = _checksums(held) if is_followed else []

    def holds(self, tensors: Tensors) -> bool:
        """Whether the tensors, which have the snapshot's key, are unedited."""
        may_be_updated = not self._samples and any(self._gradients)  # by a fused optimizer
        if (self.is_doubtful or may_be_updated or not _are_gradients(self._gradients, tensors)) and (
                not self._holds_in_full(tensors)):
            return False
        module = native_module()[0]
        if module:
            return module.weight_samples_are_equal(self._table.ctypes.data, len(self._table))
        return all((sample == before).all() for sample, before in zip(_read(self._samples), self._read))

    def _holds_in_full(self, tensors: Tensors) -> bool:
        gradients = _gradients(tensors)
        self.is_doubtful = False  # set again from here on, it concerns the next call
        if not all(map(torch.equal, _checksums(_held(tensors)), self._checksums)):
            return False
        self._gradients = gradients
        return True


def version_key(tensor: torch.Tensor) -> tuple:
    """A key that is equal for an unchanged tensor; different after an edit that torch counts, and for another tensor.

    Torch counts no edits of an inference tensor, so every key of such a tensor is new. Nor does torch count updates by
    its fused optimizers (2.11 to 2.13): samples show those, and where there are none, checksums while gradients exist.
    """
    return (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.device, tensor.dtype,
            object() if tensor.is_inference() else tensor._version)


def _counts(tensors: Tensors) -> list[tuple[int, int] | None]:
    """What changes in a tensor with an edit that torch counts, or with another memory."""
    return [None if tensor is None else (tensor.data_ptr(), tensor._version) for tensor in tensors]


def _key(tensors: Tensors) -> tuple:
    return tuple([None if tensor is None else version_key(tensor) for tensor in tensors])


def _held(tensors: Tensors) -> list[torch.Tensor]:
    return [tensor.detach() for tensor in tensors if tensor is not None and not tensor.is_meta]


def _is_dense(tensor: torch.Tensor) -> bool:
    """Whether the tensor's numbers fill one piece of memory without gaps, in any order."""
    return tensor.is_contiguous() or torch.empty_like(tensor, device="meta").stride() == tensor.stride()


# ---- gradients -------------------------------------------------------------------------------------------------------

_Gradients = list[tuple[TensorWeakRef, int] | None]


def _gradients(tensors: Tensors) -> _Gradients:
    """A weak reference to the gradient of every trained weight, and the gradient's version."""
    current = [tensor.grad for tensor in tensors if tensor is not None and tensor.requires_grad and tensor.is_leaf]
    return [None if gradient is None else (TensorWeakRef(gradient), gradient._version) for gradient in current]


def _are_gradients(known: _Gradients, tensors: Tensors) -> bool:
    current = [tensor.grad for tensor in tensors if tensor is not None and tensor.requires_grad and tensor.is_leaf]
    return len(current) == len(known) and all(
        gradient is None if before is None else before[0]() is gradient is not None and before[1] == gradient._version
        for gradient, before in zip(current, known))


# ---- samples and checksums -------------------------------------------------------------------------------------------


def _samples(held: Sequence[torch.Tensor]) -> list[list[torch.Tensor]]:
    """Views of the samples on a CPU, words [n, words of a piece], grouped by type and width."""
    alike: dict[tuple, list[torch.Tensor]] = {}
    for view in (_samples_of(tensor) for tensor in held if tensor.device.type == "cpu"):
        alike.setdefault((view.dtype, view.shape[1]), []).extend(view.split(UNDIVIDED // view.shape[1]))
    return list(alike.values())


def _read(samples: Sequence[Sequence[torch.Tensor]]) -> list[np.ndarray]:
    return [torch.cat(alike).numpy() for alike in samples]


def _table(samples: Sequence[Sequence[torch.Tensor]], copies: Sequence[np.ndarray]) -> np.ndarray:
    """int64 [views, 5]: the address of the view, its pieces, their step and size in bytes, the address of its copy."""
    rows = []
    for alike, copy in zip(samples, copies):
        ends = np.cumsum([view.numel() * view.itemsize for view in alike]).tolist()
        rows += [(view.data_ptr(), len(view), view.stride(0) * view.itemsize, view.shape[1] * view.itemsize,
                  copy.ctypes.data + begin) for view, begin in zip(alike, [0, *ends])]
    return np.array(rows, np.int64).reshape(-1, 5)


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
    """Pieces from a sample to the next in a matrix [rows, columns] of pieces, counted along its rows.

    The step is at most the length of a row and that of a column, and coprime to the length of a row, so that every row
    and column has a sample. From row to row the samples move by about the golden section of the step, so that no large
    rectangle is without a sample.
    """
    most = max(min(rows, columns, max(columns // 2, _SPARSEST)), rows * columns // _MOST)
    coprime = [step for step in range(1, most + 1) if math.gcd(step, columns) == 1]
    long = [step for step in coprime if step > 7 * most // 8] or coprime[-1:]
    return min(long, key=lambda step: min(abs(columns % step / step - ratio) for ratio in (0.382, 0.618)))


def _words(tensor: torch.Tensor) -> torch.Tensor:
    """The bits of a dense tensor as integers [n], in the order of memory, in the widest type that fits."""
    flat = tensor.as_strided((tensor.numel(),), (1,))
    size, first = flat.itemsize, flat.storage_offset() * flat.itemsize
    return next(flat.view(dtype) for dtype in _WORDS if dtype.itemsize <= size or not (
        len(flat) * size % dtype.itemsize or first % dtype.itemsize or flat.data_ptr() % dtype.itemsize))


def _checksums(held: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The sum of every block of words, int64, and the words after the last full block; on the tensors' device."""
    checksums = []
    for words in map(_words, held):
        blocks = len(words) // _BLOCK * _BLOCK
        checksums += [words[:blocks].view(-1, _BLOCK).sum(1), words[blocks:].clone()]
    return checksums
