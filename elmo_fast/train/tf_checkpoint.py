"""TensorFlow checkpoints: where they lie, and the variables in them, read by a process that has TensorFlow."""

import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from elmo_fast.model.options import ConfigurationError

PYTHON_VARIABLE = "ELMO_FAST_TENSORFLOW_PYTHON"
STATE_FILE = "checkpoint"  # beside the checkpoints, names the last one
_READER = Path(__file__).with_name("tf_reader.py")
_PART = re.compile(r"\.(index|meta|data-\d{5}-of-\d{5})$")


@dataclass(frozen=True)
class Variables:
    """The variables of one checkpoint, whose path is `prefix` without the endings of its files; `get` reads one."""

    prefix: Path
    shapes: Mapping[str, tuple[int, ...]]
    get: Callable[[str], np.ndarray]

    def read(self, name: str) -> np.ndarray:
        """Values of a variable, float32. `ConfigurationError` for numbers of another kind, or a damaged file."""
        values = self.get(name)
        if values.dtype.kind != "f":
            raise ConfigurationError(f"checkpoint {self.prefix}: variable {name}: expected floating-point numbers, found "
                                     f"{values.dtype}")
        return values.astype(np.float32, copy=False)

    def step(self) -> int:
        """Steps of training: the variable `global_step`, else the number in the checkpoint's name, else 0."""
        if "global_step" in self.shapes:
            steps = self.get("global_step")
            if steps.shape or not 0 <= steps < np.inf:
                raise ConfigurationError(f"checkpoint {self.prefix}: variable global_step: expected a number of steps, "
                                         f"found {steps!r:.80}")
            return int(steps)
        number = re.search(r"-(\d+)$", self.prefix.name)
        return int(number[1]) if number else 0


def find_checkpoint(path: str | os.PathLike) -> Path:
    """Prefix of the checkpoint that `path` names: a directory, whose last one it is, a prefix, or one of its files.

    Raises `FileNotFoundError` where there is none.
    """
    if os.path.isdir(path):
        return _last(Path(path))
    prefix = Path(_PART.sub("", os.fspath(path)))
    if not _is_there(prefix):
        raise FileNotFoundError(f"checkpoint: expected a directory of bilm-tf's, or a checkpoint's path such as "
                                f"{Path('DIRECTORY', 'model.ckpt-1250')}, found nothing at {path}")
    return prefix


def _last(folder: Path) -> Path:
    """The checkpoint that the file `checkpoint` of a folder names; a folder may have been moved since it was written."""
    beside = sorted({_PART.sub("", path.name) for path in folder.iterdir() if path.name.endswith(".index")})
    found = f"found the checkpoints {', '.join(beside)}: name one of them" if beside else "found no checkpoint"
    if not (folder / STATE_FILE).is_file():
        raise FileNotFoundError(f"checkpoint: expected a file named {STATE_FILE} in {folder}, {found}")
    text = (folder / STATE_FILE).read_text(encoding="utf-8", errors="replace")
    named = re.search(r'^\s*model_checkpoint_path\s*:\s*"(.+)"\s*$', text, re.MULTILINE)
    if not named:
        raise ConfigurationError(f"checkpoint {folder / STATE_FILE}: expected a line with model_checkpoint_path, "
                                 f"{found}")
    for prefix in (folder / Path(named[1]).name, folder / named[1]):
        if _is_there(prefix):
            return prefix
    raise FileNotFoundError(f"checkpoint: expected {Path(named[1]).name}, which {folder / STATE_FILE} names, {found}")


def _is_there(prefix: Path) -> bool:
    """Whether there is a checkpoint in either of TensorFlow's formats: an index with data beside it, or one file."""
    return prefix.with_name(f"{prefix.name}.index").is_file() or prefix.is_file()


@contextlib.contextmanager
def open_checkpoint(prefix: Path) -> Iterator[Variables]:
    """The variables of a checkpoint, while the context lasts.

    They are read by a process of the Python that `ELMO_FAST_TENSORFLOW_PYTHON` names, else of this one. `ImportError` names
    the extra where it has no TensorFlow; `ConfigurationError` for a damaged file.
    """
    python = os.environ.get(PYTHON_VARIABLE) or sys.executable
    environment = {"TF_CPP_MIN_LOG_LEVEL": "2", **os.environ}
    with tempfile.TemporaryFile() as complaints:
        try:
            process = subprocess.Popen([python, str(_READER), str(prefix)], stdin=subprocess.PIPE,
                                       stdout=subprocess.PIPE, stderr=complaints, env=environment)
        except OSError as error:
            raise ConfigurationError(f"{PYTHON_VARIABLE}: expected a Python, got {python!r} ({error})") from error
        with process:
            try:
                yield _Conversation(prefix, python, process, complaints).variables()
            finally:
                process.kill()


class _Conversation:
    """Questions to the program of `tf_reader.py`, and its answers."""

    def __init__(self, prefix: Path, python: str, process: subprocess.Popen, complaints: IO[bytes]):
        self._prefix, self._python, self._process, self._complaints = prefix, python, process, complaints

    def variables(self) -> Variables:
        """What its first answer names."""
        shapes = {name: tuple(shape) for name, shape in self._answer()["shapes"].items()}
        return Variables(self._prefix, shapes, self._get)

    def _get(self, name: str) -> np.ndarray:
        with contextlib.suppress(BrokenPipeError):  # the answer that does not come says why
            self._process.stdin.write(json.dumps(name).encode() + b"\n")
            self._process.stdin.flush()
        answer = self._answer()
        values = np.empty(answer["shape"], dtype=answer["dtype"])
        room = memoryview(values.reshape(-1)).cast("B")
        while room:
            count = self._process.stdout.readinto(room)
            if not count:
                raise self._died()
            room = room[count:]
        return values

    def _answer(self) -> dict[str, Any]:
        line = self._process.stdout.readline()
        if not line.endswith(b"\n"):
            raise self._died()
        answer = json.loads(line)
        if "missing" in answer:
            raise ImportError(f"import-tf: reading a checkpoint needs a package that is not there in {self._python} "
                              f"({answer['missing']}): install elmo-fast[tensorflow], or name a Python that has TensorFlow "
                              f"in {PYTHON_VARIABLE}")
        if "error" in answer:
            raise ConfigurationError(f"checkpoint {self._prefix}: expected a checkpoint that TensorFlow wrote, got "
                                     f"something else or one cut short or damaged ({answer['error']:.200})")
        return answer

    def _died(self) -> RuntimeError:
        status = self._process.wait()
        self._complaints.seek(0)
        last = self._complaints.read().decode(errors="replace").strip().rpartition("\n")[2]
        return RuntimeError(f"import-tf: the process that reads {self._prefix} ended with status {status} ({last:.200})")
