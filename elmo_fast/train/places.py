"""Finds the files of a run, and checkpoints of bilm-tf's training, without torch, whose import takes seconds."""

import os
import re
from pathlib import Path

from elmo_fast.arguments import check_path, local_path
from elmo_fast.errors import ConfigurationError

OPTIONS_FILE, VOCABULARY_FILE, RUN_FILE, BEST = "options.json", "vocab.txt", "run.json", "best.pt"
STATE_FILE = "checkpoint"  # in bilm-tf's directory, names the last checkpoint
_NAME = re.compile(r"step-(\d+)\.pt")
_EXTENSION = re.compile(r"\.(index|meta|data-\d{5}-of-\d{5})$")


def check_run(run: str | os.PathLike) -> None:
    """Raise `FileNotFoundError` unless a directory is that of a run, which can be resumed."""
    if not all(Path(local_path(run), name).is_file() for name in (OPTIONS_FILE, RUN_FILE)):
        raise FileNotFoundError(f"run {run}: expected a run to resume, found no {OPTIONS_FILE} and {RUN_FILE}")


def folder(run: str | os.PathLike) -> Path:
    """Return the directory that holds the checkpoints of a run."""
    return Path(local_path(run)) / "checkpoints"


def in_order(run: str | os.PathLike) -> list[Path]:
    """Return the checkpoints of a run, oldest first."""
    checkpoints = [file for file in folder(run).glob("*") if _NAME.fullmatch(file.name)]
    return sorted(checkpoints, key=lambda file: int(_NAME.fullmatch(file.name)[1]))


def choose(run: str | os.PathLike, checkpoint: str | os.PathLike | None = None) -> Path:
    """Return `checkpoint` if it is given, else the run's best checkpoint, else its last."""
    chosen = checkpoint or next(filter(Path.is_file, [Path(local_path(run)) / BEST, *in_order(run)[::-1]]), None)
    if chosen is None:
        raise FileNotFoundError(f"run {run}: expected a checkpoint, found none in {folder(run)}")
    return Path(local_path(chosen))


def find_tf_checkpoint(path: str | os.PathLike) -> Path:
    """Return the prefix of a checkpoint of bilm-tf, given its directory (the last in it), it, or any of its files."""
    if os.path.isdir(path := check_path("checkpoint", path)):
        return _last(Path(path))
    prefix = Path(_EXTENSION.sub("", path))
    if not _exists(prefix):
        raise FileNotFoundError(f"checkpoint: expected a directory of bilm-tf's, or a checkpoint's path such as "
                                f"{Path('DIRECTORY', 'model.ckpt-1250')}, found nothing at {path}")
    return prefix


def _last(folder: Path) -> Path:
    """The checkpoint named in the file `checkpoint` of a folder, which may have been moved since it was written."""
    beside = sorted({_EXTENSION.sub("", path.name) for path in folder.iterdir() if path.name.endswith(".index")})
    others = f"found the checkpoints {', '.join(beside)}: name one of them" if beside else "found no checkpoint"
    if not (folder / STATE_FILE).is_file():
        raise FileNotFoundError(f"checkpoint: expected a file named {STATE_FILE} in {folder}, {others}")
    text = (folder / STATE_FILE).read_text(encoding="utf-8", errors="replace")
    named = re.search(r'^\s*model_checkpoint_path\s*:\s*"(.+)"\s*$', text, re.MULTILINE)
    if not named:
        raise ConfigurationError(f"checkpoint {folder / STATE_FILE}: expected a line with model_checkpoint_path, "
                                 f"{others}")
    for prefix in (folder / Path(named[1]).name, folder / named[1]):
        if _exists(prefix):
            return prefix
    raise FileNotFoundError(f"checkpoint: expected {Path(named[1]).name}, which {folder / STATE_FILE} names, {others}")


def _exists(prefix: Path) -> bool:
    """Whether a checkpoint exists in either of TensorFlow's formats: an index with data beside it, or a single file."""
    return prefix.with_name(f"{prefix.name}.index").is_file() or prefix.is_file()
