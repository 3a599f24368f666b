"""Stops: in a `stoppable` body SIGINT and SIGTERM set a flag, and loops that check the flag raise.

An exception raised by a handler is lost inside callbacks of HDF5 and of the garbage collector, or turns into another
error. Signals belong to the process and are handled in its main thread: in other threads this module has no effect.
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
        self.number: int | None = None  # number of the signal that arrived
        self.raises_at_once = False
        self.in_command = False
        self.handlers: dict[int, Any] = {}

    def handle(self, number: int, frame: Any) -> None:
        self.number = number
        if number == signal.SIGINT:  # a second SIGINT acts at once
            signal.signal(number, signal.SIG_DFL if self.in_command else self.handlers[number])
        if self.raises_at_once:
            try:
                self.pass_on()
            finally:
                self.number = number  # in case the handler's exception is lost

    def pass_on(self) -> None:
        """Call the replaced handler once: Python's default handler raises `KeyboardInterrupt`."""
        number, self.number = self.number, None
        handler = self.handlers[number]
        (handler if callable(handler) else signal.default_int_handler)(number, None)


_stop = _Stop()
# Windows never delivers SIGTERM; another process can send Ctrl-Break instead.
_NUMBERS = (signal.SIGINT, signal.SIGTERM, *filter(None, [getattr(signal, "SIGBREAK", None)]))


@contextlib.contextmanager
def stoppable(*, terminate: bool = False, in_command: bool = False) -> Iterator[None]:
    """In the body the first SIGINT or SIGTERM sets a flag; a second SIGINT acts at once. Nested bodies change nothing.

    `terminate` also covers a SIGTERM that would end the process at once. A flag that no loop checked is passed on after
    the body, except in a command, which is finished then; a second SIGINT ends a command's process.
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
    """Yield the items, with a `check` before every item."""
    for item in items:
        check()
        yield item


def interruptible(function: Callable) -> Callable:
    """Wrap a function that waits for input or another process: a stop raises at once inside the function."""
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
