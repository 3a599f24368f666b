"""The trial: kernels run in a user's process only after a process of their own has run them on the GPU there is.

A family of kernels is `char_cnn`, `highway`, `pointwise`, `captures`, or `persistent D P`, the persistent LSTM of that
many cells and projected values. Its verdict is a file, named by the family and a digest of all that a verdict depends
on. The first call that needs a verdict starts a supervisor (`python -m elmo_fast.ops.trial`), which outlives the
caller: under a lock of the operating system it writes `running`, runs the family in a child (`trial_child`) with a time
limit, and writes `passed` or `failed`. `running` that a supervisor finds under the lock is that of a process or a
machine that went down, and counts as failed. `postponed` is a trial that had no GPU or no memory to begin with; the
next process tries again.
"""

import contextlib
import contextvars
import functools
import hashlib
import importlib.util
import json
import logging
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from elmo_fast.arguments import check_choice
from elmo_fast.engine.backend import native_build
from elmo_fast.environment import cache_directory, version
from elmo_fast.errors import ConfigurationError
from elmo_fast.files.atomic import to_disk, write_bytes
from elmo_fast.files.json import read_json
from elmo_fast.files.lock import locked

if TYPE_CHECKING:
    import torch

VARIABLE, MODES = "ELMO_FAST_GPU_TRIAL", ("auto", "wait", "off", "never")
_FINAL = "passed", "failed"
POSTPONED = 75  # exit status of a child that could not begin
_LIMIT = 300.0  # seconds of a child, which imports torch and compiles a family's kernels: 10 s of one core here
# What PyTorch's errors say after a fault of a kernel. Assertions of the device are those of PyTorch's own kernels.
_FAULTS = ("illegal", "misaligned", "launch failure", "launch timed out", "stack error", "invalid program counter",
           "invalid address space")

logger = logging.getLogger(__name__)
_waits = contextvars.ContextVar("waits", default=False)


class Verdict(NamedTuple):
    """`state` is `running`, `passed`, `failed`, `postponed`, or `damaged` where a file holds no verdict."""

    state: str
    reason: str = ""


def read(path: Path) -> Verdict | None:
    """The verdict in a file, None if there is no file."""
    try:
        content = read_json(path, "verdict")
        state = check_choice("state", content["state"], (*_FINAL, "postponed", "running"))
        return Verdict(state, str(content["reason"]))
    except FileNotFoundError:
        return None
    except (ValueError, OSError, KeyError) as error:
        return Verdict("damaged", str(error))


def write(path: Path, verdict: Verdict) -> None:
    """Write a verdict to the disk, where it outlives a crash of the machine."""
    write_bytes(path, json.dumps(verdict._asdict(), indent=1).encode())
    to_disk(path)
    to_disk(path.parent)


@contextlib.contextmanager
def waiting() -> Iterator[None]:
    """In the body, calls that need a verdict wait for it, as with `ELMO_FAST_GPU_TRIAL=wait`."""
    token = _waits.set(True)
    try:
        yield
    finally:
        _waits.reset(token)


# ---- in the user's process -------------------------------------------------------------------------------------------


class Trials:
    """The verdicts of a process.

    `command` is the child's, to which the family, the device's index and the verdict's name are added, `limit` its
    seconds, `folder` that of the verdicts, by default `gpu-trials` in the cache.
    """

    def __init__(self, command: Sequence[str] = (sys.executable, "-m", "elmo_fast.ops.trial_child"),
                 limit: float = _LIMIT, folder: Path | None = None):
        self._command, self._limit, self._folder = list(command), limit, folder
        self._lock = threading.Lock()
        # By device and family: None after a pass, when the family may have run in this process, or why it may not run.
        self._reasons: dict[tuple[int, str], str | None] = {}
        self._supervisors: dict[Path, subprocess.Popen | str] = {}  # or the reason why one did not start
        self._log_once = functools.cache(logger.log)

    def why_not(self, device: "torch.device", family: str) -> str | None:
        """None if the family may run on `device`, else the reason, which is logged once. Starts a trial if needed."""
        mode = check_choice(VARIABLE, os.environ.get(VARIABLE, "auto"), MODES)
        if device.type != "cuda" or mode == "off":
            return None
        if mode == "never":
            return f"{VARIABLE}=never is set"
        key = device.index, family
        if key not in self._reasons:
            verdict = self._verdict(device, family, mode == "wait" or _waits.get())
            if verdict.state != "passed":
                self._log_once(logging.INFO if verdict.state == "running" else logging.WARNING,
                               "PyTorch's operations replace the GPU kernels %s: %s", family, verdict.reason)
            if verdict.state == "running":
                return verdict.reason
            self._reasons[key] = None if verdict.state == "passed" else verdict.reason
        return self._reasons[key]

    def _verdict(self, device: "torch.device", family: str, waits: bool) -> Verdict:
        try:
            path = self.path(device, family)
            verdict = read(path)
            if verdict is None or verdict.state not in _FINAL:
                verdict = self._tried(path, device, family, waits)
        except (OSError, ConfigurationError) as error:
            return Verdict("postponed", f"the verdict of a trial needs a directory that can be written ({error})")
        if verdict.state == "failed":
            return Verdict("failed", f"its trial on this GPU failed: {verdict.reason} (remove {path} to try again)")
        return verdict

    def path(self, device: "torch.device", family: str) -> Path:
        """The file of a family's verdict on `device`."""
        folder = self._folder or cache_directory() / "gpu-trials"
        return Path(os.path.abspath(folder), file_name(device.index, family))

    def _tried(self, path: Path, device: "torch.device", family: str, waits: bool) -> Verdict:
        """The verdict after the start of a trial, and after its end if `waits`."""
        with self._lock:
            if path not in self._supervisors:
                self._supervisors[path] = self._start(path, [*self._command, family, str(device.index), path.name])
        supervisor = self._supervisors[path]
        if isinstance(supervisor, str):
            return Verdict("postponed", supervisor)
        if waits:
            with contextlib.suppress(subprocess.TimeoutExpired):
                supervisor.wait(2 * self._limit)  # also for trials of other families and processes
        status, verdict = supervisor.poll(), read(path)
        if status is None:
            return Verdict("running", f"its trial on this GPU has not ended (elmo-fast doctor --gpu, or {VARIABLE}="
                           "wait, waits for it)")
        if verdict and verdict.state in (*_FINAL, "postponed"):
            return verdict
        return Verdict("postponed", f"its trial left no verdict (exit status {status})")

    def _start(self, path: Path, command: list[str]) -> "subprocess.Popen | str":
        path.parent.mkdir(parents=True, exist_ok=True)
        if not os.access(path.parent, os.W_OK):
            raise PermissionError(f"{path.parent} cannot be written")
        job = json.dumps({"path": str(path), "command": command, "limit": self._limit})
        # Outside of the caller's directory, whose modules would come before those of the packages.
        where = os.pathsep.join(map(os.path.abspath, sys.path))
        try:
            return subprocess.Popen([sys.executable, "-m", "elmo_fast.ops.trial", job], stdin=subprocess.DEVNULL,
                                    stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=path.parent,
                                    env=os.environ | {"PYTHONPATH": where}, start_new_session=True)
        except OSError as error:
            return f"its trial cannot be started ({error})"

    def describe(self, device: "torch.device", family: str) -> str:
        """The verdict in words. Starts nothing."""
        try:
            path = self.path(device, family)
            verdict = read(path) or Verdict("not tried yet", "elmo-fast doctor --gpu tries it")
        except ConfigurationError as error:
            return str(error)
        more = f"; remove {path} to try again" if verdict.state in ("failed", "damaged") else ""
        return verdict.state + (f": {verdict.reason}" if verdict.reason else "") + more

    @contextlib.contextmanager
    def watching(self, device: "torch.device") -> Iterator[None]:
        """After a fault of a kernel in the body, the families that ran in this process on `device` count as failed."""
        try:
            yield
        except RuntimeError as error:
            message = str(error)
            used = [key for key, reason in list(self._reasons.items()) if key[0] == device.index and reason is None]
            if used and "CUDA" in message and any(fault in message for fault in _FAULTS):
                for _, family in used:
                    self._refute(device, family, "in a process that used it: " + message.partition("\n")[0])
                names = ", ".join(family for _, family in used)
                more = ("Start the program again: this process cannot use the GPU any more. The kernels that it has "
                        f"used, {names}, count as failed from now on (elmo-fast doctor)")
                error.args = (f"{message}\n{more}",)
            raise

    def _refute(self, device: "torch.device", family: str, reason: str) -> None:
        self._reasons[device.index, family] = reason
        with contextlib.suppress(OSError, ConfigurationError):
            write(self.path(device, family), Verdict("failed", reason))


trials = Trials()


# ---- keys ------------------------------------------------------------------------------------------------------------


def file_name(index: int, family: str) -> str:
    """The name of a verdict's file: the family, and a digest of what its verdict depends on."""
    digest = hashlib.sha256(json.dumps([*_facts(index), family]).encode()).hexdigest()[:16]
    return f"{family.replace(' ', '-')}-{digest}.json"


@functools.cache
def _facts(index: int) -> tuple[str, ...]:
    """The GPU, the driver, the versions and the kernels."""
    import torch

    module, kernels = native_build()[0], importlib.util.find_spec("elmo_fast.kernels")
    folders = [Path(__file__).parent, *map(Path, kernels.submodule_search_locations if kernels else ())]
    files = [*sorted(file for folder in folders for file in folder.rglob("*.py")),
             *([Path(module.__file__)] if module else [])]
    driver = Path("/proc/driver/nvidia/version")
    return (torch.cuda.get_device_name(index), str(torch.cuda.get_device_capability(index)),
            driver.read_text() if driver.exists() else "", str(getattr(torch._C, "_cuda_getDriverVersion", str)()),
            torch.__version__, version("triton"), *(hashlib.sha256(file.read_bytes()).hexdigest() for file in files))


# ---- in the supervisor -----------------------------------------------------------------------------------------------


def supervise(path: Path, command: Sequence[str], limit: float) -> None:
    """Run the trial of the verdict at `path`, unless it has ended; waits for other trials."""
    with locked(path.parent, wait=True):
        before = read(path)
        if before and before.state in _FINAL:
            return
        if before and before.state != "postponed":
            write(path, Verdict("failed", f"the process or the machine went down ({before.state} {before.reason})"))
            return
        write(path, Verdict("running", time.strftime("since %Y-%m-%d %H:%M")))
        write(path, _outcome(path.name, command, limit))


def _outcome(name: str, command: Sequence[str], limit: float) -> Verdict:
    """The verdict of a child: it passes by exit status 0 and the last line `passed NAME` on stdout."""
    environment = os.environ | {VARIABLE: "off", "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors:
        try:
            child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=errors, env=environment)
        except OSError as error:
            return Verdict("postponed", f"its trial cannot be started ({error})")
        try:
            status = child.wait(limit)
        except subprocess.TimeoutExpired:
            child.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):  # a process that waits for a driver may not end
                child.wait(10)
            return Verdict("failed", f"no end after {limit:g} s")
        said, error = _last_line(out), _last_line(errors)
    if status == POSTPONED:
        return Verdict("postponed", f"its trial could not begin: {error}")
    if status:
        return Verdict("failed", f"exit status {status}" + (f": {error}" if error else ""))
    return Verdict("passed") if said == f"passed {name}" else Verdict("failed", f"no result, but {said!r}")


def _last_line(file) -> str:
    file.seek(max(0, file.seek(0, os.SEEK_END) - 4096))
    lines = file.read().decode(errors="replace").split("\n")
    return next((line.strip()[:300] for line in reversed(lines) if line.strip()), "")


if __name__ == "__main__":
    job = json.loads(sys.argv[1])
    supervise(Path(job["path"]), job["command"], job["limit"])
