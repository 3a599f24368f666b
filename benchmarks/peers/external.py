"""A peer in a process of its own, with a Python of its own, that answers a line of JSON with a line of JSON."""

import contextlib
import json
import subprocess
import tempfile
from pathlib import Path


class External:
    """Runs `SCRIPT ARGUMENTS`; a context manager that ends the process. `folder` is removed with it."""

    def __init__(self, name: str, python: str, script: Path, *arguments: str):
        self._name = name
        self._temporary = tempfile.TemporaryDirectory()
        self.folder = Path(self._temporary.name)
        self._log = (self.folder / "log").open("w", encoding="utf-8")
        try:
            self._process = subprocess.Popen([python, script, *arguments], text=True, stdin=subprocess.PIPE,
                                             stdout=subprocess.PIPE, stderr=self._log)
        except OSError as error:
            self._end()
            raise RuntimeError(f"{name}: expected a Python that runs it, got {python} ({error})") from error

    def ask(self, question) -> None:
        """Send a line."""
        with contextlib.suppress(BrokenPipeError):  # `answer` says why
            print(json.dumps(question), file=self._process.stdin, flush=True)

    def answer(self, *wanted: str):
        """The value of the first line to come that has one of these keys; `RuntimeError` when the process ended."""
        while line := self._process.stdout.readline():
            found = json.loads(line)
            if name := next((name for name in wanted if name in found), None):
                return found[name]
        self._log.flush()
        tail = (self.folder / "log").read_text(encoding="utf-8")[-2000:]
        raise RuntimeError(f"{self._name}: expected an answer, but its process ended:\n{tail}")

    def finish(self) -> None:
        """Let it end by itself."""
        self._process.stdin.close()
        self._process.wait(timeout=600)

    def close(self) -> None:
        """End it."""
        self._process.kill()
        self._process.wait()
        self._end()

    def _end(self) -> None:
        self._log.close()
        self._temporary.cleanup()

    def __enter__(self):
        return self

    def __exit__(self, *_) -> None:
        self.close()
