"""Cache values computed from weights: kept while the weights exist, computed again after an edit.

The cache serves the packed weights of the CPU and the operands of a GPU. `weight_snapshot` detects the edits.
"""

import weakref
from collections.abc import Callable, Sequence
from typing import Any

from elmo_fast.ops.device import synchronize_stream
from elmo_fast.ops.weight_snapshot import Snapshot, Tensors, drop_values, snapshot_of


def cached(tensors: Tensors, kind: str, make: Callable[[Tensors], object], keep: bool = True):
    """`make` of the detached tensors, or the cached result for the same unedited tensors; `kind` names the use.

    Without `keep`, for weights in training, the new value is not cached and the cached ones are dropped.
    """
    if not keep:
        drop_values(tensors)
    # taken before `make`, so that the next call sees an edit made while it runs
    values = snapshot_of(tensors).values if keep else {}
    value = values.get(kind)
    if value is None:
        value = make([None if tensor is None else tensor.detach() for tensor in tensors])
        if keep:
            _settle(tensors)
        values[kind] = value
    return value


def _settle(tensors: Tensors) -> None:
    """Wait until what was computed from these weights may be read on any stream."""
    synchronize_stream(next(tensor.device for tensor in tensors if tensor is not None))


class LastResult:
    """The last result of a computation on the weights of some layers, valid while the weights and a key stay the same.

    Copies and pickles are empty.
    """

    def __init__(self):
        self._last: tuple[Any, list[weakref.ref[Snapshot]], Any] | None = None

    def get(self, key: Any, layers: Sequence[Tensors], compute: Callable[[], Any]) -> Any:
        """The result for `key` and the layers' weights, computed unless the last result was for the same."""
        snapshots, last = references(layers), self._last
        if last is None or last[:2] != (key, snapshots):
            result = compute()
            for tensors in layers:
                _settle(tensors)
            self._last = last = key, snapshots, result
        return last[2]

    def __getstate__(self) -> dict:
        return {"_last": None}


def references(layers: Sequence[Tensors]) -> list[weakref.ref[Snapshot]]:
    """Weak references to the layers' snapshots, since a snapshot keeps its weights in memory."""
    return [weakref.ref(snapshot_of(tensors)) for tensors in layers]
