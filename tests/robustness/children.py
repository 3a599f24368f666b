"""Calls functions in child processes with limits of time and memory, and reports the outcomes."""

import os
import pickle
import resource
import select
import signal
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
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
            is_good = (self.detail.strip() and self.detail.count("\n") == 0 and file in self.detail
                       and len(self.detail) < MOST_LETTERS and not any(word in self.detail for word in OF_PYTHON))
            return None if is_good else f"message: {self.detail[: 2 * MOST_LETTERS]!r}"
        if self.kind != "returned":
            return f"{self.kind}: {self.detail}"
        return None if self.memory <= MEMORY else f"memory: {self.memory >> 20} MiB"


def call(function: Callable[[], Any], seconds: int = SECONDS, memory: int = MEMORY) -> Outcome:
    """Call a function in a fork of this process; its result is pickled."""
    begin = time.monotonic()
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        _answer(function, writer, seconds, memory)
    os.close(writer)
    content = _read(reader, begin + WAITS * seconds)
    if content is None:
        os.kill(child, signal.SIGKILL)
    _, status, usage = os.wait4(child, 0)
    wall, peak = time.monotonic() - begin, usage.ru_maxrss << 10
    if content is None or (os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGXCPU):
        return Outcome("timeout", f"more than {seconds} s", wall, peak)
    if not content:
        return Outcome("killed", f"signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else f"exit {status}", wall,
                       peak)
    return Outcome(*pickle.loads(content), wall, peak)


def _answer(function: Callable[[], Any], writer: int, seconds: int, memory: int) -> None:
    """Never returns: the fork must not run its parent's clean-up."""
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 5))
    resource.setrlimit(resource.RLIMIT_AS, (size + memory, size + memory))
    try:
        with tempfile.TemporaryFile() as file:
            os.dup2(file.fileno(), 2)  # warnings of C libraries too
            answer = "returned", function()
            file.seek(0)
            if text := file.read():
                answer = "warned", text.decode(errors="replace")[:2000]
    except REFUSALS as error:
        answer = "refused", str(error)
    except BaseException:
        answer = "raised", traceback.format_exc(limit=-6)
    with open(writer, "wb") as file:
        pickle.dump(answer, file)
    os._exit(0)


def _read(reader: int, deadline: float) -> bytes | None:
    pieces = []
    with open(reader, "rb", buffering=0) as file:
        while select.select([file], [], [], max(0, deadline - time.monotonic()))[0]:
            piece = file.read(1 << 16)
            if not piece:
                return b"".join(pieces)
            pieces.append(piece)
    return None
