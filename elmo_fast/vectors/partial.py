"""The partial result of a long run: segments of finished texts, the LSTM states after them, and the run's settings.

It is the directory `OUTPUT.part`, written under the lock of `OUTPUT`. A segment is a complete file of the layout.
Segments and states are synced to the disk before `progress.json`, which lists them with sizes and checksums, is
replaced atomically. Files that it does not list are leftovers of a killed run.
"""

import json
import logging
import os
import shutil
import zlib
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from elmo_fast.errors import ConfigurationError
from elmo_fast.files.atomic import replace, to_disk
from elmo_fast.files.json import parse_json
from elmo_fast.files.manifest import StoredFile, is_file_name
from elmo_fast.ops.projected_lstm.reference import State

logger = logging.getLogger(__name__)

_PROGRESS, _STATES = "progress.json", ".states"


@dataclass(frozen=True)
class Commit:
    """The files of a segment and its states. `texts` and `digest` count and hash all texts up to its end."""

    texts: int
    digest: str
    files: tuple[StoredFile, ...]


class PartialResult:
    """The partial result of an output. `settings` are JSON values; a run continues only with equal settings.

    `head` has the count and the digest of the first texts, by which a different input is detected. `workspace` is a
    temporary directory beside the output, so that the partial result is created and removed by a rename.
    """

    def __init__(self, output: Path, settings: Mapping[str, Any], workspace: Path):
        self.folder, self._workspace = output.with_name(f"{output.name}.part"), workspace
        self.settings = json.loads(json.dumps(settings))
        self.commits: list[Commit] = []
        self.head: tuple[int, str] | None = None

    @property
    def texts(self) -> int:
        return self.commits[-1].texts if self.commits else 0

    def links(self) -> list[Path]:
        """Hard links to the segments, in order, for a caller that moves or renames them."""
        folder = self._workspace / "links"
        folder.mkdir()
        for commit in self.commits:
            for stored in commit.files:
                _link(self.folder / stored.name, folder / stored.name)
        return [folder / _stem(number) for number in range(len(self.commits))]

    def find(self) -> "PartialResult | None":
        """Read the existing partial result; None if there is nothing or an empty directory.

        `ConfigurationError` for anything else at its path.
        """
        if not os.path.lexists(self.folder) or (self.folder.is_dir() and not any(self.folder.iterdir())):
            return None
        if not (self.folder / _PROGRESS).is_file():
            raise ConfigurationError(f"output: expected nothing or a partial result at {self.folder}, found something "
                                     "else; move it away")
        existing = PartialResult(self.folder.with_suffix(""), {}, self._workspace)
        existing._read()
        return existing

    def differences(self, settings: Mapping[str, Any]) -> str:
        """Describe, for a message, the settings of this result that differ from `settings`."""
        given = json.loads(json.dumps(settings))
        return ", ".join(f"{name} {self.settings.get(name)!r:.60} and not {given.get(name)!r:.60}"
                         for name in {**self.settings, **given} if self.settings.get(name) != given.get(name))

    def drop_damaged(self) -> None:
        """Drop the first commit with a missing or damaged file, and all later commits."""
        for number, commit in enumerate(self.commits):
            for stored in commit.files:
                if (damage := stored.damage(self.folder)) is not None:
                    logger.warning("%s: %s %s; continuing after %d texts, not %d", self.folder, stored.name, damage,
                                   self.commits[number - 1].texts if number else 0, self.texts)
                    del self.commits[number:]
                    return

    def states(self) -> State | None:
        """Read the LSTM states after the last commit, or return None if they are not stored."""
        path = self.folder / f"{_stem(len(self.commits) - 1)}{_STATES}"
        if not path.exists():
            return None
        with open(path, "rb") as file:
            return tuple(torch.from_numpy(np.lib.format.read_array(file)) for _ in range(2))

    def commit(self, place: Callable[[Path], None], texts: int, digest: str, states: State | None) -> None:
        """Add a complete segment, which `place` moves to a given path. A killed run continues after the last one."""
        stem = _stem(len(self.commits))
        if not self.commits:
            self.remove()  # left by another run
            new = self._workspace / "new"
            new.mkdir()
            self._write_progress(new, [])
            new.rename(self.folder)
        for leftover in self.folder.glob(f"{stem}*"):
            leftover.unlink()
        place(self.folder / stem)
        if states is not None:
            with open(self.folder / f"{stem}{_STATES}", "wb") as file:
                for values in states:
                    np.lib.format.write_array(file, values.numpy())
        files = tuple(map(_stored, sorted(self.folder.glob(f"{stem}*"))))
        to_disk(self.folder)
        commits = [*self.commits, Commit(texts, digest, files)]
        self._write_progress(self.folder, commits)
        self.commits = commits

    def remove(self) -> None:
        if self.folder.is_dir():
            self.folder.rename(self._workspace / "removed")
            shutil.rmtree(self._workspace / "removed")

    def _write_progress(self, folder: Path, commits: list[Commit]) -> None:
        content = json.dumps({"settings": self.settings, "head": self.head,
                              "commits": list(map(asdict, commits))}).encode()
        path = folder / f"{_PROGRESS}.new"
        path.write_bytes(b"%b\n%b" % (content, _seal(content)))
        to_disk(path)
        replace(path, folder / _PROGRESS)
        to_disk(folder)

    def _read(self) -> None:
        path = self.folder / _PROGRESS
        content, _, checksum = path.read_bytes().partition(b"\n")
        if checksum != _seal(content):
            raise ConfigurationError(f"partial result: expected the bytes that were written to {path}, found damage; "
                                     f"remove {self.folder} to start again")
        values = parse_json(content, f"partial result {path}")
        try:
            self.settings, self.head = values["settings"], values["head"] and tuple(values["head"])
            self.commits = [Commit(int(commit["texts"]), str(commit["digest"]),
                                   tuple(_checked(**stored) for stored in commit["files"]))
                            for commit in values["commits"]]
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigurationError(f"partial result {path}: expected settings, head and commits, found others "
                                     f"({error!r:.80}); remove {self.folder} to start again") from error


def _seal(content: bytes) -> bytes:
    return b"%08x\n" % zlib.crc32(content)


def _stem(number: int) -> str:
    return f"{number:06}"


def _stored(path: Path) -> StoredFile:
    to_disk(path)
    return StoredFile.of(path)


def _checked(name: str, size: int, checksum: int) -> StoredFile:
    """Check an entry of a commit: the name must be that of a file directly in the directory."""
    if not is_file_name(name) or not name.startswith(tuple("0123456789")):
        raise ValueError(f"a file in the directory, not {name!r:.60}")
    return StoredFile(name, int(size), int(checksum))


def _link(path: Path, link: Path) -> None:
    try:
        os.link(path, link)
    except OSError:  # a file system without hard links
        shutil.copyfile(path, link)
