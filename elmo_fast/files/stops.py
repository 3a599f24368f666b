"""Stops: in a `stoppable` body SIGINT and SIGTERM set a flag, and loops raise where they look at it.

A handler that raises is lost inside callbacks of HDF5 and of the garbage collector, or turns into another error there.
Signals belong to the process and are handled in its main thread: in other threads nothing here has an effect.
"""

import contextlib
import functools
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any


class _Stop:
    """The flag of the process, and the handlers that `stoppable` replaced."""

    def __init__(self):
        self.number: int | None = None  # of the signal that arrived
        self.raises_at_once = False
        self.in_command = False
        self.handlers: dict[int, Any] = {}

    def handle(self, number: int, frame: Any) -> None:
        self.number = number
        if number == signal.SIGINT:  # the next one acts at once
            signal.signal(number, signal.SIG_DFL if self.in_command else self.handlers[number])
        if self.raises_at_once:
            try:
                self.pass_on()
            finally:
                self.number = number  # in case what it raises is lost

    def pass_on(self) -> None:
        """Call the handler that was there before, once: Python's own raises `KeyboardInterrupt`."""
        number, self.number = self.number, None
        handler = self.handlers[number]
        (handler if callable(handler) else signal.default_int_handler)(number, None)


_stop = _Stop()
# SIGTERM is never delivered on Windows, where Ctrl-Break is what another process can send.
_NUMBERS = (signal.SIGINT, signal.SIGTERM, *filter(None, [getattr(signal, "SIGBREAK", None)]))


@contextlib.contextmanager
def stoppable(*, terminate: bool = False, in_command: bool = False) -> Iterator[None]:
    """In the body the first SIGINT or SIGTERM sets a flag; a second SIGINT acts at once. Inner bodies change nothing.

    With `terminate` also a SIGTERM that would end the process at once. A flag that nothing looked at is passed on after
    the body, but not in a command, which is done then, and whose second SIGINT ends the process.
    """
    if _stop.handlers or not _in_main_thread():
        yield
        return
    _stop.handlers = {number: handler for number in _NUMBERS
                      if callable(handler := signal.getsignal(number)) or (terminate and number != signal.SIGINT)}
    _stop.in_command = in_command
    for number in _stop.handlers:
        signal.signal(number, _stop.handle)
    try:
        yield
    except KeyboardInterrupt:
        _stop.number = None
        raise
    finally:
        for number, handler in _stop.handlers.items():
            signal.signal(number, handler)
        try:
            if is_requested() and not in_command:
                _stop.pass_on()
        finally:
            _stop.number, _stop.handlers = None, {}


def is_requested() -> bool:
    """Whether a signal arrived in the body."""
    return _stop.number is not None and _in_main_thread()


def check() -> None:
    """Raise `KeyboardInterrupt` if a stop is requested."""
    if is_requested():
        _stop.pass_on()


def checked(items: Iterable[Any]) -> Iterator[Any]:
    """The items; `check` before each of them is given out."""
    for item in items:
        check()
        yield item


def interruptible(function: Callable) -> Callable:
    """The function, which waits for input or another process, such that a stop raises inside it at once."""
    @functools.wraps(function)
    def call(*arguments, **keywords):
        if not _in_main_thread():
            return function(*arguments, **keywords)
        _stop.raises_at_once = True
        try:
            check()
            return function(*arguments, **keywords)
        finally:
            _stop.raises_at_once = False
    return call


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()
