"""A run from its first step to its last: set up or taken up again, followed, checkpointed, stopped."""

import contextlib
import dataclasses
import gzip
import logging
import math
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from elmo_fast.model.atomic_file import atomic_path
from elmo_fast.text.vocabulary import Vocabulary
from elmo_fast.train import checkpoints
from elmo_fast.train.perplexity import perplexity
from elmo_fast.train.record import Record, draw
from elmo_fast.train.shards import Shard
from elmo_fast.train.trainer import Step, Trainer

logger = logging.getLogger(__name__)


class Interrupted(KeyboardInterrupt):
    """A run that was told to stop, after its checkpoint was written."""


@dataclass(frozen=True)
class Running:
    """What a run does beside learning; none of it changes a number that is learned, `patience` apart."""

    evaluate_every: int | None = None
    evaluate_batch_size: int = 256
    checkpoint_every: int = 500
    keep: int = 2
    log_every: int = 10
    patience: int | None = None
    tensorboard: bool = False
    quiet: bool = False


class Run:
    """Trains until the plan's last step, an early stop, or a signal."""

    def __init__(self, folder: Path, trainer: Trainer, vocabulary: Vocabulary, heldout: list[Shard], running: Running,
                 evaluations: list[dict[str, Any]]):
        self._folder, self._trainer, self._vocabulary, self._heldout = folder, trainer, vocabulary, heldout
        self._running, self._evaluations = running, evaluations
        self._is_first = trainer.replicas.is_first
        self._record = Record(folder, trainer.step_number, running.tensorboard) if self._is_first else None
        self._steps = trainer.total_steps
        self._evaluate_every = running.evaluate_every or max(1, math.ceil(trainer.steps_an_epoch / 10))
        self._saved = trainer.step_number if trainer.step_number else None

    def train(self) -> None:
        """Run to the end. Raises `Interrupted` on SIGTERM and Ctrl-C, after a checkpoint."""
        trainer = self._trainer
        bar = tqdm(total=self._steps, initial=trainer.step_number, unit="step",
                   disable=self._running.quiet or not self._is_first)
        why = "early stop" if self._is_over() else "done"
        with bar, _asked_to_stop() as asked, contextlib.closing(self._record or _Nothing()):
            meter = _Meter(trainer)
            while trainer.step_number < self._steps and why == "done":
                meter.add(trainer.step())
                bar.update()
                number = trainer.step_number
                if number % self._running.log_every == 0 or number == self._steps:
                    meter.report(self._record, bar)
                if self._heldout and (number % self._evaluate_every == 0 or number == self._steps):
                    self._evaluate()
                    meter.initial_state()
                if number % self._running.checkpoint_every == 0:
                    meter.report(self._record, bar)
                    self._save()
                if self._stops(asked):
                    meter.report(self._record, bar)
                    self._save()
                    raise Interrupted(f"interrupted after step {number} of {self._steps}; --resume goes on from there")
                why = "early stop" if self._is_over() else "done"
            self._save()
            self._end(why)

    def _stops(self, asked: threading.Event) -> bool:
        if self._trainer.replicas.world == 1:
            return asked.is_set()
        flag = torch.tensor([float(asked.is_set())], device=self._trainer.replicas.device)
        self._trainer.replicas.sum_([flag])
        return bool(flag.item())

    def _evaluate(self) -> None:
        """Held-out perplexity on rank 0; the best so far keeps its weights."""
        if self._is_first:
            trainer = self._trainer
            found = perplexity(trainer.model, self._heldout, self._vocabulary, self._running.evaluate_batch_size)
            best = min((each["perplexity"] for each in self._evaluations), default=math.inf)
            values = {"perplexity": found.total, "by_direction": list(found.by_direction)}
            self._evaluations.append({"step": trainer.step_number, **values})
            self._record.write("heldout", trainer.step_number, **values)
            if found.total < best:
                weights = {name: torch.from_numpy(value) for name, value in trainer.model.weights().items()}
                checkpoints.write(self._folder / checkpoints.BEST, {"step": trainer.step_number, "weights": weights,
                                                                    "perplexity": found.total})
            tqdm.write(f"step {trainer.step_number}: held-out {found.in_words()}") if not self._running.quiet else None
        self._evaluations = self._trainer.replicas.share(self._evaluations)

    def _is_over(self) -> bool:
        """Whether the last `patience` held-out perplexities brought no new best."""
        values = [each["perplexity"] for each in self._evaluations]
        patience = self._running.patience
        return bool(patience and values and len(values) - 1 - values.index(min(values)) >= patience)

    def _save(self) -> None:
        if self._saved == self._trainer.step_number:
            return
        state = self._trainer.state()
        if state is not None:
            state["evaluations"] = self._evaluations
            checkpoints.save(self._folder, self._trainer.step_number, state, self._running.keep)
        self._saved = self._trainer.step_number

    def _end(self, why: str) -> None:
        if self._is_first:
            self._record.write("end", self._trainer.step_number, why=why)
            reason = draw(self._folder)
            if reason:
                self._record.write("note", self._trainer.step_number, text=reason)


class _Nothing:
    def close(self) -> None:
        pass


class _Meter:
    """Mean loss and speed since the last report. Reads the device only when it reports."""

    def __init__(self, trainer: Trainer):
        self._trainer = trainer
        self._steps: list[Step] = []
        self.initial_state()

    def initial_state(self) -> None:
        """Leave the time up to now out of the speed."""
        self._since, self._timed = time.perf_counter(), 0

    def add(self, step: Step) -> None:
        self._steps.append(step)
        self._timed += 1

    def report(self, record: Record | None, bar: tqdm) -> None:
        """Write a line of the log. `RuntimeError` when the loss is no number any more."""
        if not self._steps:
            return
        trainer = self._trainer
        loss = torch.stack([step.loss for step in self._steps]).mean()
        trainer.replicas.sum_([loss])
        mean, norm = float(loss) / trainer.replicas.world, float(self._steps[-1].norm)
        if not math.isfinite(mean) or not math.isfinite(norm):
            raise RuntimeError(f"training: the loss or its gradient is no finite number around step {trainer.step_number} "
                               f"(loss {mean}, gradient norm {norm}); the last checkpoint is from before: lower the "
                               "learning rate, and resume or start again")
        seconds = max(time.perf_counter() - self._since, 1e-9)
        speed = self._timed * trainer.positions_a_step / seconds
        number = trainer.step_number
        if record is not None:
            record.write("train", number, loss=mean, perplexity=math.exp(min(mean, 700)), gradient_norm=norm,
                         learning_rate=self._steps[-1].rate, epoch=number / max(1, trainer.steps_an_epoch),
                         tokens_per_second=round(speed, 1))
            bar.set_postfix_str(f"perplexity {math.exp(min(mean, 700)):.1f}, {speed:,.0f} tokens/s")
        self._steps = []
        self.initial_state()


@contextlib.contextmanager
def _asked_to_stop() -> Iterator[threading.Event]:
    """An event that SIGTERM and the first Ctrl-C set; a second Ctrl-C stops at once."""
    asked = threading.Event()

    def ask(number, frame):
        if asked.is_set() and number == signal.SIGINT:
            raise KeyboardInterrupt("interrupted at once; the last checkpoint is whole")
        asked.set()

    if threading.current_thread() is not threading.main_thread():
        yield asked
        return
    before = {number: signal.signal(number, ask) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def copy_vocabulary(source: str, folder: Path) -> Path:
    """The run's own copy of the vocabulary, so that a run is whole without the file it began with."""
    target = folder / "vocab.txt"
    if not (target.exists() and target.samefile(source)):
        with atomic_path(target) as part, (gzip.open if source.endswith(".gz") else open)(source, "rb") as words:
            with open(part, "wb") as copy:
                shutil.copyfileobj(words, copy)
    return target


def running_of(values: dict[str, Any]) -> Running:
    """`Running` of the arguments that were given; takes them out of `values`."""
    names = [field.name for field in dataclasses.fields(Running)]
    return Running(**{name: values.pop(name) for name in names if name in values})
