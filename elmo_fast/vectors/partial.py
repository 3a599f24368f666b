"""The partial result of a long run: finished parts of its output, and how far they go.

It is the directory `OUTPUT.part`, written under the lock of `OUTPUT`. Its `parts` are files of the layout. Its
`progress.npz` has the run's settings, the number of finished parts and of their texts, a digest of these texts, and the
LSTM states after them. A part is on the disk before `progress.npz` is replaced; a killed run may leave other files.
"""

import json
import logging
import os
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from elmo_fast.errors import ConfigurationError
from elmo_fast.files.atomic import DeferredErrorFile, replace, to_disk
from elmo_fast.files.json import parse_json
from elmo_fast.ops.projected_lstm.reference import State
from elmo_fast.vectors.layouts.parts import part_name
from elmo_fast.vectors.spec import Target

logger = logging.getLogger(__name__)

_PROGRESS, _PARTS = "progress.npz", "parts"
_DAMAGE = (OSError, KeyError, TypeError, ValueError, EOFError, zipfile.BadZipFile)


class Done(NamedTuple):
    """The number of finished parts and of texts in them, the digest of these texts, and the LSTM states after them."""

    parts: int
    texts: int
    digest: str
    states: State | None


class PartialResult:
    """The partial result of a target; `settings` are JSON values, and `head` is a digest of the first texts.

    Until its first part is finished, it is in `workspace`, a temporary path beside the target, and an earlier partial
    result stays.
    """

    def __init__(self, target: Target, settings: Mapping[str, Any], head: str, workspace: Path):
        self.target, self._workspace = target, workspace
        final = Path(os.path.realpath(target.path))
        self.path = final.with_name(f"{final.name}.part")
        self.folder = workspace
        self.settings, self.head = json.loads(json.dumps(settings)), head
        self.done = Done(0, 0, "", None)

    @property
    def parts(self) -> Path:
        """The directory of the parts."""
        return self.folder / _PARTS

    def part(self, number: int) -> Path:
        """The path of a part."""
        return self.parts / part_name(self.target.layout, number)

    def new_part(self) -> Path:
        """The path of the part after the finished ones, where a killed run may have left files."""
        for folder in (self.folder, self.parts):
            folder.mkdir(exist_ok=True)
        path = self.part(self.done.parts)
        for left in self.parts.glob(f"{path.name}*"):
            left.unlink()
        return path

    def find(self) -> "PartialResult | None":
        """The partial result of an earlier run of the target, or None. `ConfigurationError` for anything else there."""
        if not os.path.lexists(self.path) or (self.path.is_dir() and not any(self.path.iterdir())):
            return None
        if not (self.path / _PROGRESS).is_file():
            raise ConfigurationError(f"output: expected nothing or a partial result at {self.path}, found something "
                                     "else; move it away")
        earlier = PartialResult(self.target, {}, "", self._workspace)
        earlier.folder = self.path
        earlier._read()
        missing = [path for path in map(earlier.part, range(earlier.done.parts)) if not path.is_file()]
        if missing and earlier.settings.get("layout") == self.settings.get("layout"):
            logger.warning("%s: %s is missing; starting again, not after %d texts", self.path, missing[0].name,
                           earlier.done.texts)
            return None
        return earlier

    def differences(self, settings: Mapping[str, Any]) -> str:
        """Describe, for a message, the settings of this result that differ from `settings`."""
        return ", ".join(f"{name} {self.settings.get(name)!r:.60} and not {settings.get(name)!r:.60}"
                         for name in {**self.settings, **settings} if self.settings.get(name) != settings.get(name))

    def resume(self, earlier: "PartialResult") -> None:
        """Continue an earlier partial result."""
        self.folder, self.done, self.head = earlier.folder, earlier.done, earlier.head

    def commit(self, texts: int, digest: str, states: State | None) -> None:
        """Count the new part, which is complete: a killed run continues after it."""
        for path in self.parts.glob(f"{self.part(self.done.parts).name}*"):
            to_disk(path)
        to_disk(self.parts)
        done = Done(self.done.parts + 1, texts, digest, states)
        self._write(done)
        if self.folder != self.path:
            if os.path.lexists(self.path):
                self.path.rename(self.folder / "replaced")
            self.folder.rename(self.path)
            self.folder = self.path
            to_disk(self.path.parent)
        self.done = done

    def remove(self) -> None:
        """Remove the partial result, or an earlier one, by a rename to the workspace, which its owner removes."""
        if self.folder == self.path:
            self.folder.rename(self._workspace)
        elif os.path.lexists(self.path):
            self.path.rename(self._workspace / "replaced")

    def _write(self, done: Done) -> None:
        about = {"settings": self.settings, "head": self.head, "parts": done.parts, "texts": done.texts,
                 "digest": done.digest}
        states = {} if done.states is None else dict(zip("hc", (value.numpy() for value in done.states), strict=True))
        new = self.folder / f"{_PROGRESS}.new"
        new.unlink(missing_ok=True)
        with DeferredErrorFile(new, self.target.path) as disk:
            np.savez(disk, about=np.frombuffer(json.dumps(about).encode(), np.uint8), **states)
        to_disk(new)
        replace(new, self.folder / _PROGRESS)
        to_disk(self.folder)

    def _read(self) -> None:
        path = self.folder / _PROGRESS
        try:
            with np.load(path) as archive:
                about = parse_json(archive["about"].tobytes(), f"partial result {path}")
                states = tuple(torch.from_numpy(archive[name]) for name in "hc") if "h" in archive else None
            self.settings, self.head = dict(about["settings"]), str(about["head"])
            self.done = Done(int(about["parts"]), int(about["texts"]), str(about["digest"]), states)
        except _DAMAGE as error:
            raise ConfigurationError(f"partial result: expected the bytes that were written to {path}, found damage "
                                     f"({error!s:.80}); remove {self.folder} to start again") from error
