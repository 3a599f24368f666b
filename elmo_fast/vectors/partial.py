"""The partial result of a long run: finished parts of its output, and how far they go.

It is the directory `OUTPUT.part`, written under the lock of `OUTPUT`. Its `parts` are files of the layout. Its
`progress.npz` has the run's settings, the number of finished parts and of their texts, a digest of these texts, and the
LSTM states after them. A part is on the disk before `progress.npz` is replaced; a killed run may leave other files.
"""

import json
import logging
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from elmo_fast.errors import ConfigurationError, parsing
from elmo_fast.files.atomic import DeferredErrorFile, replace, to_disk
from elmo_fast.files.lock import own_file, remove
from elmo_fast.vectors.layouts.parts import part_name
from elmo_fast.vectors.layouts.table import SUFFIXES, by_first_bytes
from elmo_fast.vectors.spec import Target

logger = logging.getLogger(__name__)

_PROGRESS, _NEW, _PARTS = "progress.npz", "progress.npz.new", "parts"
State = tuple[np.ndarray, np.ndarray]  # h [L, rows, 2 P], c [L, rows, 2 D]
JOINED = "joined"  # beside the parts, while they are joined
_LEFT = re.compile(rf"{_NEW}|{_PARTS}/({JOINED}|\d{{5}}({'|'.join(map(re.escape, SUFFIXES))}))(\.json)?")


class Done(NamedTuple):
    """The number of finished parts and of texts in them, the digest of these texts, and the LSTM states after them."""

    parts: int
    texts: int
    digest: str
    states: State | None


class PartialResult:
    """The partial result of a target; `settings` are JSON values."""

    def __init__(self, target: Target, settings: Mapping[str, Any]):
        final = Path(os.path.realpath(target.path))
        self.target, self.folder = target, final.with_name(f"{final.name}.part")
        self.parts = self.folder / _PARTS
        self.settings = json.loads(json.dumps(settings))
        self.done = Done(0, 0, "", None)

    def part(self, number: int) -> Path:
        """The path of a part."""
        return self.parts / part_name(self.target.layout, number)

    def new_part(self) -> Path:
        """The path of the part after the finished ones, where a killed run may have left files."""
        self.parts.mkdir(parents=True, exist_ok=True)
        path = self.part(self.done.parts)
        for file in self.parts.glob(f"{path.name}*"):
            file.unlink()
        return path

    def find(self) -> dict[str, Any] | None:
        """The settings of an earlier run, whose finished parts are then `done`; None where none is finished.

        `ConfigurationError` for anything else in the place of a partial result.
        """
        if not os.path.lexists(self.folder):
            return None
        is_folder = not self.folder.is_symlink() and self.folder.is_dir()
        is_begun = is_folder and own_file(self.folder / _PROGRESS, "output", "the progress of a partial result")
        if self.parts.is_symlink() or not (is_begun or (is_folder and self._is_unfinished())):
            raise ConfigurationError(f"output: expected nothing or a partial result at {self.folder}, found something "
                                     "else; move it away")
        if not is_begun:
            self.remove()  # of a run that was killed before its first part was finished, or while it removed them
            return None
        settings = self._read()
        missing = [path for path in map(self.part, range(self.done.parts)) if not path.is_file()]
        if missing and settings.get("layout") == self.settings.get("layout"):
            logger.warning("%s: %s is missing; starting again, not after %d texts", self.folder, missing[0].name,
                           self.done.texts)
            self.remove()
            return None
        return settings

    def _is_unfinished(self) -> bool:
        """Whether nothing is there but what a killed run leaves without `progress.npz`: parts, or a join of parts."""
        files = [path for path in self.folder.rglob("*") if path != self.parts or not path.is_dir()]
        return all(map(self._is_left, files))

    def _is_left(self, path: Path) -> bool:
        return bool(_LEFT.fullmatch(path.relative_to(self.folder).as_posix())) and own_file(
            path, "output", "a part of a partial result",  # which may not have been written yet, or has names
            lambda start, _: not start.strip(b"\0") or start[:1] == b"[" or by_first_bytes(start) is not None)

    def commit(self, texts: int, digest: str, states: State | None) -> None:
        """Count the new part, which is complete: a killed run continues after it."""
        for path in self.parts.glob(f"{self.part(self.done.parts).name}*"):
            to_disk(path)
        to_disk(self.parts)
        done = Done(self.done.parts + 1, texts, digest, states)
        self._write(done)
        if not self.done.parts:
            to_disk(self.folder.parent)
        self.done = done

    def remove(self) -> None:
        """Remove the partial result; a kill in between leaves none."""
        (self.folder / _PROGRESS).unlink(missing_ok=True)
        remove(self.folder)
        self.done = Done(0, 0, "", None)

    def _write(self, done: Done) -> None:
        about = {"settings": self.settings, "parts": done.parts, "texts": done.texts, "digest": done.digest}
        states = {} if done.states is None else dict(zip("hc", done.states, strict=True))
        new = self.folder / _NEW
        new.unlink(missing_ok=True)
        with DeferredErrorFile(new, self.target.path) as disk:
            np.savez(disk, about=np.frombuffer(json.dumps(about).encode(), np.uint8), **states)
        to_disk(new)
        replace(new, self.folder / _PROGRESS)
        to_disk(self.folder)

    def _read(self) -> dict[str, Any]:
        path = self.folder / _PROGRESS
        expected = f"the bytes that were written, found damage; remove {self.folder} to start again"
        with parsing(f"partial result {path}", expected), np.load(path) as archive:
            about = json.loads(archive["about"].tobytes())
            states = tuple(archive[name] for name in "hc") if "h" in archive else None
            self.done = Done(int(about["parts"]), int(about["texts"]), str(about["digest"]), states)
            return dict(about["settings"])
