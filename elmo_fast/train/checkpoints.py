"""Checkpoints of a run: written whole or not at all, the last few kept."""

import os
import re
from pathlib import Path
from typing import Any

import torch

from elmo_fast.model.options import ConfigurationError
from elmo_fast.model.atomic_file import Disk, atomic_path

FORMAT = 1
_NAME = re.compile(r"step-(\d+)\.pt")
BEST = "best.pt"


def folder(run: str | os.PathLike) -> Path:
    """Where a run keeps its checkpoints."""
    return Path(run) / "checkpoints"


def in_order(run: str | os.PathLike) -> list[Path]:
    """Checkpoints of a run, oldest first."""
    here = folder(run)
    found = [path for path in here.iterdir() if _NAME.fullmatch(path.name)] if here.is_dir() else []
    return sorted(found, key=lambda path: int(_NAME.fullmatch(path.name)[1]))


def save(run: str | os.PathLike, step: int, content: dict[str, Any], keep: int) -> Path:
    """Write the checkpoint of a step, then remove all but the last `keep`."""
    path = folder(run) / f"step-{step:08d}.pt"
    write(path, content)
    for old in in_order(run)[:-keep]:
        old.unlink(missing_ok=True)
    return path


def write(path: Path, content: dict[str, Any]) -> None:
    """Write a file that takes its name only when all of it is on the disk. `OSError` names the file on a full disk."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with atomic_path(path) as part, Disk(part, path) as disk:
            torch.save({"format": FORMAT, **content}, disk)
            disk.check()
            os.fsync(disk.fileno())
    except OSError as error:
        raise OSError(error.errno, f"{error.strerror} (the checkpoints before it are kept)", str(path)) from error


def read(path: str | os.PathLike) -> dict[str, Any]:
    """The content of a checkpoint. `ConfigurationError` for another file or one that is cut short."""
    if not os.path.isfile(path):
        raise FileNotFoundError(f"checkpoint: expected a file, found none at {path}")
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise ConfigurationError(f"checkpoint {path}: expected a checkpoint of elmo-fast train, got something else or "
                                 f"a file cut short ({type(error).__name__})") from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise ConfigurationError(f"checkpoint {path}: expected format {FORMAT} of elmo-fast train, got another file")
    return content


def choose(run: str | os.PathLike, checkpoint: str | os.PathLike | None = None) -> Path:
    """The checkpoint named, else the run's best, else its last."""
    if checkpoint is not None:
        return Path(checkpoint)
    best = Path(run) / BEST
    found = [best] if best.is_file() else in_order(run)[-1:]
    if not found:
        raise FileNotFoundError(f"run {run}: expected a checkpoint, found none in {folder(run)}")
    return found[0]
