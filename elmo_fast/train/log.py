"""Writes and reads the log of a run, and plots its losses."""

import json
import os
from pathlib import Path
from typing import Any

from elmo_fast.arguments import local_path
from elmo_fast.environment import extra, install_line
from elmo_fast.errors import ConfigurationError
from elmo_fast.files.atomic import atomic_path
from elmo_fast.files.json import parse_json

LOG_FILE, PLOT_FILE = "log.jsonl", "loss.png"


class TrainLog:
    """Appends a JSON object per line to `log.jsonl`; every object has a `step` and a `kind`.

    A run resumed after `step` drops the lines of later steps, since it writes them again.
    """

    def __init__(self, run: str | os.PathLike, step: int, tensorboard: bool = False):
        self._path = Path(local_path(run)) / LOG_FILE
        lines = [line for line in read_log(run) if line["step"] <= step and line["kind"] != "end"]
        with atomic_path(self._path) as partial:
            partial.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
        self._file = open(self._path, "a", encoding="utf-8")  # noqa: SIM115
        self._events = None
        if tensorboard:
            with extra("tensorboard"):
                from torch.utils.tensorboard import SummaryWriter
            self._events = SummaryWriter(str(run), purge_step=step + 1)

    def write(self, kind: str, step: int, **values: Any) -> None:
        """Add a line, and its numbers as TensorBoard scalars."""
        self._file.write(json.dumps({"kind": kind, "step": step, **values}) + "\n")
        self._file.flush()
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
    return (isinstance(value, dict) and type(value.get("step")) is int and value["step"] >= 0
            and isinstance(value.get("kind"), str)
            and (value["kind"] not in ("train", "heldout") or type(value.get("perplexity")) in (int, float)))


def plot_losses(run: str | os.PathLike) -> str | None:
    """Write `loss.png` from the log; returns None, or why there is no plot."""
    try:
        from matplotlib import figure as figures
    except ImportError as error:
        return f"no plot of the losses: {error}; {install_line('plots')}"
    figure = figures.Figure(figsize=(8, 5))
    axes = figure.subplots()
    for kind, name, marker in (("train", "training, sampled words", None), ("heldout", "held out, all words", "o")):
        points = [(line["step"], line["perplexity"]) for line in read_log(run) if line["kind"] == kind]
        axes.plot([step for step, _ in points], [value for _, value in points], label=name, marker=marker)
    axes.set(xlabel="step", ylabel="perplexity", yscale="log")
    axes.legend()
    with atomic_path(Path(local_path(run)) / PLOT_FILE) as partial:
        figure.savefig(partial, format="png", dpi=120)
    return None
