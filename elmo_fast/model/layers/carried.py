"""The states that a model carries from call to call, for all threads that call it."""

import threading
from collections.abc import Callable

from elmo_fast.ops.projected_lstm.reference import State


class CarriedStates:
    """`value` is (h [L, rows, 2 P], c [L, rows, 2 D]), forward half first, or None; `changes` counts calls of `store`.

    A batch holds `lock` from reading the value to storing a new value, so that batches of several threads run one after
    another. A stored function is called when the value is first read. Copies and pickles contain the value.
    """

    def __init__(self, value: State | None = None):
        self.lock = threading.RLock()
        self.changes = 0
        self._value: State | Callable[[], State] | None = value

    @property
    def value(self) -> State | None:
        with self.lock:
            if callable(self._value):
                self._value = self._value()
            return self._value

    def store(self, value: State | Callable[[], State] | None) -> None:
        """Store a value, or a function that returns the value."""
        with self.lock:
            self._value = value
            self.changes += 1

    def __getstate__(self) -> dict:
        return {"value": self.value}

    def __setstate__(self, state: dict) -> None:
        self.__init__(state["value"])
