"""The states that a model carries from call to call, for all threads that call it."""

import threading

from elmo_fast.ops.projected_lstm.reference import State


class CarriedStates:
    """`value` is (h [L, rows, 2 P], c [L, rows, 2 D]), forward half first, or None.

    A batch holds `lock` from reading the value to storing a new value, so that batches of several threads run one after
    another. Copies and pickles contain the value.
    """

    def __init__(self, value: State | None = None):
        self.lock = threading.RLock()
        self.value = value

    def __reduce__(self) -> tuple:
        return CarriedStates, (self.value,)
