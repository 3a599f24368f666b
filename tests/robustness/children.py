"""Calls functions in child processes with limits of time and memory, and reports the outcomes."""

import multiprocessing
import os
import re
import resource
import signal
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

SECONDS, MEMORY = 10, 2 << 30  # of one processor; a process that waits for others has six times as long
WAITS = 6
# Errors that the Python interface raises for bad input, and for files or devices that fail.
REFUSALS = (ValueError, OSError, ImportError)
MOST_LETTERS = 1500  # of a refusal
# Words of errors that blame the code and not the input.
OF_PYTHON = ("object has no attribute", "object is not", "bytes-like", "unhashable", "'NoneType'", "unpack ",
             "unexpected keyword", "index out of range", "unsupported operand", "not supported between")


@dataclass(frozen=True)
class Outcome:
    """`kind` is returned, warned, refused, raised, killed or timeout; `detail` a value, message, traceback, signal."""

    kind: str
    detail: Any
    seconds: float
    memory: int  # bytes, the largest resident size

    def fault(self, file: str = "") -> str | None:
        """The reason if this outcome is a defect for any input, else None. A refusal must contain `file`."""
        if self.kind == "refused":
            own = re.sub(r"\(.*\)", "", self.detail)  # without the reason that a library gave
            is_good = (self.detail.strip() and self.detail.count("\n") == 0 and file in self.detail
                       and len(self.detail) < MOST_LETTERS and not any(word in own for word in OF_PYTHON))
            return None if is_good else f"message: {self.detail[: 2 * MOST_LETTERS]!r}"
        if self.kind != "returned":
            return f"{self.kind}: {self.detail}"
        return None if self.memory <= MEMORY else f"memory: {self.memory >> 20} MiB"


def calls(functions: Sequence[Callable[[], Any]], seconds: int = SECONDS, memory: int = MEMORY) -> Iterator[Outcome]:
    """Outcomes of functions, called one after another in a fork of this process; results are pickled.

    After one that ends the fork, the next are called in another fork.
    """
    rest = list(functions)
    while rest:
        outcomes = _in_fork(rest, seconds, memory)
        yield from outcomes
        del rest[: len(outcomes)]


def call(function: Callable[[], Any], seconds: int = SECONDS, memory: int = MEMORY) -> Outcome:
    """The outcome of a single function."""
    return next(calls([function], seconds, memory))


def _in_fork(functions: Sequence[Callable[[], Any]], seconds: int, memory: int) -> list[Outcome]:
    """Outcomes up to that of a function which ends the fork."""
    receiver, sender = multiprocessing.Pipe(duplex=False)
    child = os.fork()
    if child == 0:
        receiver.close()
        _answer(functions, sender, seconds, memory)
    sender.close()
    outcomes: list[Outcome] = []
    is_late, begin = False, time.monotonic()
    with receiver:
        while len(outcomes) < len(functions) and not (is_late := not receiver.poll(WAITS * seconds)):
            try:
                answer = receiver.recv()
            except EOFError:
                break
            outcomes.append(Outcome(*answer[:2], time.monotonic() - begin, answer[2]))
            begin = time.monotonic()
    if is_late:
        os.kill(child, signal.SIGKILL)
    _, status, usage = os.wait4(child, 0)
    if len(outcomes) < len(functions):
        number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
        end = ("timeout", f"more than {seconds} s") if is_late or number == signal.SIGXCPU else (
            "killed", f"signal {number}" if number else f"exit {status}")
        outcomes.append(Outcome(*end, time.monotonic() - begin, usage.ru_maxrss << 10))
    return outcomes


def _answer(functions: Sequence[Callable[[], Any]], sender: Connection, seconds: int, memory: int) -> None:
    """Never returns: the fork must not run its parent's clean-up."""
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + memory, size + memory))
    for function in functions:
        used = resource.getrusage(resource.RUSAGE_SELF)
        limit = int(used.ru_utime + used.ru_stime) + 1 + seconds
        resource.setrlimit(resource.RLIMIT_CPU, (limit, resource.RLIM_INFINITY))
        answer = _answer_of(function)
        sender.send((*answer, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10))
    os._exit(0)


def _answer_of(function: Callable[[], Any]) -> tuple[str, Any]:
    try:
        with tempfile.TemporaryFile() as file:
            os.dup2(file.fileno(), 2)  # warnings of C libraries too
            value = function()
            file.seek(0)
            text = file.read()
        return ("warned", text.decode(errors="replace")[:2000]) if text else ("returned", value)
    except REFUSALS as error:
        return "refused", str(error)
    except BaseException:
        return "raised", traceback.format_exc(limit=-6)
