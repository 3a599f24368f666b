"""The files of a run, its log, and bilm-tf's checkpoints. Imports no torch, which takes seconds."""

import io
import json
import os
import re
from pathlib import Path
from typing import Any

from elmo_fast.arguments import check_path, local_path
from elmo_fast.environment import extra, install_line
from elmo_fast.errors import ConfigurationError
from elmo_fast.files.atomic import write_bytes
from elmo_fast.files.json import parse_json
from elmo_fast.files.lock import own_file
from elmo_fast.weights.families import SUFFIXES

OPTIONS_FILE, VOCABULARY_FILE, RUN_FILE, BEST = "options.json", "vocab.txt", "run.json", "best.pt"
LOG_FILE, PLOT_FILE = "log.jsonl", "loss.png"
_MOST = 1 << 63  # of integers in a log, which are plotted
STATE_FILE = "checkpoint"  # in bilm-tf's directory, names the last checkpoint
_NAME = re.compile(r"step-(\d+)\.pt")
_EXTENSION = re.compile(r"\.(index|meta|data-\d{5}-of-\d{5})$")


def check_run(run: str | os.PathLike) -> None:
    """Raise `FileNotFoundError` unless a directory holds a run, which can be resumed."""
    if not all(Path(local_path(run), name).is_file() for name in (OPTIONS_FILE, RUN_FILE)):
        raise FileNotFoundError(f"run {run}: expected a run to resume, found no {OPTIONS_FILE} and {RUN_FILE}")


def check_own(run: Path) -> None:
    """Raise `ConfigurationError` for anything but files of a run in the places of those that training writes."""
    for name in (OPTIONS_FILE, RUN_FILE, BEST, LOG_FILE, PLOT_FILE):
        own_file(run / name, f"run {run}", "a file of a training run")


def check_is_new(run: Path, vocab_file: str | None) -> None:
    """Raise `ConfigurationError` if a directory has checkpoints, a model, or files that a new run would replace.

    A start makes the directory of checkpoints first: where this has nothing else in it, the other files are of a start
    that was killed. The vocabulary of the new run may lie in its directory.
    """
    begun, names = folder(run), {path.name for path in run.glob("*")}
    steps = [_NAME.fullmatch(path.name) for path in begun.glob("*")]
    if all(steps) and steps and (RUN_FILE in names or any(int(step[1]) for step in steps)):
        raise ConfigurationError(f"run {run}: expected a new directory, found checkpoints; continue with --resume, or "
                                 "name another directory")
    for path in in_order(run):
        own_file(path, f"run {run}", "a checkpoint", lambda start, _: start.startswith(b"PK"))
    replaced = {name for name in names if name.endswith(SUFFIXES)}
    if not (begun.is_dir() and all(steps)):
        replaced |= names & {OPTIONS_FILE, VOCABULARY_FILE, RUN_FILE, BEST, LOG_FILE, PLOT_FILE, begun.name}
    if vocab_file and os.path.realpath(vocab_file) == os.path.realpath(run / VOCABULARY_FILE):
        replaced.discard(VOCABULARY_FILE)
    if replaced:
        raise ConfigurationError(f"run {run}: expected a new directory, found {min(replaced):.80}, which belongs to no "
                                 "run that has begun here; name another directory")


def folder(run: str | os.PathLike) -> Path:
    """Return the directory that holds the checkpoints of a run."""
    return Path(local_path(run)) / "checkpoints"


def in_order(run: str | os.PathLike) -> list[Path]:
    """Return the checkpoints of a run, oldest first."""
    checkpoints = [file for file in folder(run).glob("*") if _NAME.fullmatch(file.name)]
    return sorted(checkpoints, key=lambda file: int(_NAME.fullmatch(file.name)[1]))


def choose(run: str | os.PathLike, checkpoint: str | os.PathLike | None = None) -> Path:
    """Return `checkpoint` if it is given, else the run's best checkpoint, else its last."""
    path = checkpoint or next(filter(Path.is_file, [Path(local_path(run)) / BEST, *in_order(run)[::-1]]), None)
    if path is None:
        raise FileNotFoundError(f"run {run}: expected a checkpoint, found none in {folder(run)}")
    return Path(local_path(path))


def find_tf_checkpoint(path: str | os.PathLike) -> Path:
    """Return the prefix of bilm-tf's checkpoint at a path: a directory (its last checkpoint), a prefix, or a file."""
    if os.path.isdir(path := check_path("checkpoint", path)):
        return _last(Path(path))
    prefix = Path(_EXTENSION.sub("", path))
    if not _exists(prefix):
        raise FileNotFoundError(f"checkpoint: expected a directory of bilm-tf's, or a checkpoint's path such as "
                                f"{Path('DIRECTORY', 'model.ckpt-1250')}, found nothing at {path}")
    return prefix


def _last(folder: Path) -> Path:
    """The checkpoint named in the file `checkpoint` of a folder, which may have been moved since it was written."""
    state = folder / STATE_FILE
    text = state.read_text(encoding="utf-8", errors="replace") if state.is_file() else ""
    if match := re.search(r'^\s*model_checkpoint_path\s*:\s*"(.+)"\s*$', text, re.MULTILINE):
        for prefix in (folder / Path(match[1]).name, folder / match[1]):
            if _exists(prefix):
                return prefix
    names = sorted({_EXTENSION.sub("", path.name) for path in folder.iterdir() if path.name.endswith(".index")})
    listing = f"the checkpoints {', '.join(names)}: name one of them" if names else "no checkpoint"
    raise FileNotFoundError(f"checkpoint: expected a file named {STATE_FILE} in {folder}, which names the last "
                            f"checkpoint there, found {listing}")


def _exists(prefix: Path) -> bool:
    """Whether a checkpoint exists in either of TensorFlow's formats: an index with data beside it, or a single file."""
    return prefix.with_name(f"{prefix.name}.index").is_file() or prefix.is_file()


class TrainLog:
    """Appends a JSON object per line to `log.jsonl`; every object has a `step` and a `kind`.

    A run resumed after `step` drops the lines of later steps, since it writes them again.
    """

    def __init__(self, run: str | os.PathLike, step: int, tensorboard: bool = False):
        self._path = Path(local_path(run)) / LOG_FILE
        lines = [line for line in read_log(run) if line["step"] <= step and line["kind"] != "end"]
        write_bytes(self._path, "".join(json.dumps(line) + "\n" for line in lines).encode())
        self._file = open(self._path, "a", encoding="utf-8")  # noqa: SIM115
        self._events = None
        if tensorboard:
            with extra("tensorboard"):
                from torch.utils.tensorboard import SummaryWriter
            self._events = SummaryWriter(str(run), purge_step=step + 1)

    def write(self, kind: str, step: int, **values: Any) -> None:
        """Add a line, and its numbers as TensorBoard scalars."""
        try:
            self._file.write(json.dumps({"kind": kind, "step": step, **values}) + "\n")
            self._file.flush()
        except OSError as error:
            raise OSError(error.errno, error.strerror, os.fspath(self._path)) from error
        if self._events is not None:
            for name, value in values.items():
                if isinstance(value, (int, float)):
                    self._events.add_scalar(f"{kind}/{name}", value, step)

    def close(self) -> None:
        self._file.close()
        if self._events is not None:
            self._events.close()


def read_log(run: str | os.PathLike) -> list[dict[str, Any]]:
    """Read the lines of a run's log, except a truncated last line; `ConfigurationError` for any other damage."""
    path = Path(local_path(run)) / LOG_FILE
    if not path.is_file():
        return []
    lines = []
    for number, text in enumerate(path.read_bytes().split(b"\n")[:-1], start=1):
        if text:
            where = f"log {path}, line {number}"
            line = parse_json(text, where)
            if not _is_line(line):
                raise ConfigurationError(f"{where}: expected an object with a step, a kind and, of losses, a perplexity"
                                         f", found {line!r:.80}; move the file away to resume without it")
            lines.append(line)
    return lines


def _is_line(value: Any) -> bool:
    return (isinstance(value, dict) and type(value.get("step")) is int and 0 <= value["step"] < _MOST
            and isinstance(value.get("kind"), str)
            and (value["kind"] not in ("train", "heldout") or type(loss := value.get("perplexity")) is float
                 or (type(loss) is int and abs(loss) < _MOST)))


def plot_losses(run: str | os.PathLike) -> str | None:
    """Write `loss.png` from the log; returns None, or why there is no plot."""
    try:
        from matplotlib import figure as figures
        from matplotlib.ticker import LogFormatter
    except ImportError as error:
        return f"no plot of the losses: {error}; {install_line('plots')}"
    figure = figures.Figure(figsize=(8, 5))
    axes = figure.subplots()
    for kind, name, marker in (("train", "training, sampled words", None), ("heldout", "held out, all words", "o")):
        points = [(line["step"], line["perplexity"]) for line in read_log(run) if line["kind"] == kind]
        axes.plot([step for step, _ in points], [value for _, value in points], label=name, marker=marker)
    axes.set(xlabel="step", ylabel="perplexity", yscale="log")
    axes.yaxis.set_major_formatter(LogFormatter())
    axes.yaxis.set_minor_formatter(LogFormatter())
    axes.legend()
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=120)
    write_bytes(Path(local_path(run)) / PLOT_FILE, content.getvalue())
    return None
