"""Runs the training loop: steps, checkpoints, evaluation, the log, early stops and signals."""

import contextlib
import logging
import math
import signal
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_map_only
from tqdm import tqdm

from elmo_fast.errors import ConfigurationError
from elmo_fast.files import stops
from elmo_fast.ops.numerics import gradient_numerics
from elmo_fast.text.corpus import Order, Shard
from elmo_fast.text.vocabulary import Vocabulary
from elmo_fast.train import checkpoint
from elmo_fast.train.config import RunConfig
from elmo_fast.train.data import Batch, BatchStream
from elmo_fast.train.evaluate import perplexity
from elmo_fast.train.model import LanguageModel
from elmo_fast.train.optimizer import Replicas, Updater
from elmo_fast.train.run_files import BEST, TrainLog, plot_losses

_MAX_STEPS = 1 << 62

logger = logging.getLogger(__name__)


class Trainer:
    """Trains a model on shards. All random numbers depend only on the seed, the stream and the step.

    A step of all processes uses a batch from every one of `streams`, and predicts `positions_per_step` tokens per
    direction. `workers` processes prepare the batches; with 0, this process does so on demand.
    """

    def __init__(self, model: LanguageModel, shards: Sequence[Shard], vocabulary: Vocabulary, replicas: Replicas,
                 workers: int = 0):
        config = self.config = model.config.training
        self.model, self.shards, self.replicas, self._workers = model, shards, replicas, workers
        self.updater = Updater(model, config, replicas)
        self.step_number = 0
        self.streams = replicas.world * config.accumulate
        self.positions_per_step = config.batch_size * config.unroll_steps * self.streams
        self.steps_per_epoch = sum(shard.predictions for shard in shards) // self.positions_per_step  # complete steps
        self.total_steps = config.max_steps or max(1, int(min(config.n_epochs * self.steps_per_epoch, _MAX_STEPS)))
        negatives = config.n_negative_samples_batch if config.sample_softmax else None
        self._numbering = model.numbering(vocabulary, negatives)
        first = replicas.rank * config.accumulate
        self._numbers = range(first, first + config.accumulate)  # the streams of this process
        self._states = [model.zero_state(config.batch_size) for _ in self._numbers]
        self._positions: list[torch.Tensor | None] = [None for _ in self._numbers]
        self._batches: list[Iterator[Batch]] | None = None
        self._random = torch.Generator(replicas.device)
        self.losses: list[torch.Tensor] = []  # of the steps since the last report

    def step(self) -> tuple[torch.Tensor, float]:
        """Train on a batch of every stream of this process; returns the gradient's norm and the learning rate."""
        if self._batches is None:
            self._batches = [self._load(number, position) for number, position in zip(self._numbers, self._positions)]
        losses, used = [], []
        for k, batches in enumerate(self._batches):
            batch = next(batches)
            self._positions[k] = batch.position
            loss, rows = self._backward(k, _to_device(batch, self.replicas.device))
            losses.append(loss)
            used += rows
        rate = self.config.rate(self.step_number, self.total_steps)
        norm = self.updater.step(used, rate)
        self.step_number += 1
        self.losses.append(torch.stack(losses).mean())  # mean over the batches of this process
        return norm, rate

    def close(self) -> None:
        """End the processes that prepare batches."""
        loaders, self._batches = self._batches or [], None
        for loader in loaders:  # garbage collection would delete their queues first, then wait 5 s for every process
            getattr(loader, "_shutdown_workers", lambda: None)()

    def _load(self, number: int, position: torch.Tensor | None) -> Iterator[Batch]:
        stream = BatchStream(self.shards, self._numbering, self._orders(number), self.config.batch_size,
                             self.config.unroll_steps, self.step_number, position)
        return iter(torch.utils.data.DataLoader(stream, batch_size=None, num_workers=self._workers,
                                                pin_memory=self.replicas.device.type == "cuda",
                                                prefetch_factor=4 if self._workers else None,
                                                worker_init_fn=_ignore_termination))

    def _orders(self, number: int) -> list[Order]:
        """Return the order of a stream's sentences, per direction."""
        return [Order(self.config.seed, reverse, number, self.streams)
                for reverse in (False, True)[: self.model.directions]]

    def _backward(self, k: int, batch: Batch):
        numbers = [11, self.config.seed, self._numbers[k], self.step_number]
        self._random.manual_seed(int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0]) >> 1)
        state = self._states[k]
        if self.config.reset_states:
            draws = torch.rand(state[0].shape[1], generator=self._random, device=state[0].device)
            unchanged = (draws >= self.config.reset_states)[None, :, None]
            state = tuple(torch.where(unchanged, part, torch.zeros_like(part)) for part in state)
        losses, self._states[k], used = self.model.losses(batch, state, self._drop if self.config.dropout else None)
        loss = losses.mean()
        with gradient_numerics(self.model.precision, self.replicas.device):
            (loss * (self.config.unroll_steps / self.streams)).backward()
        return loss.detach(), used

    def _drop(self, x: torch.Tensor) -> torch.Tensor:
        keep = 1 - self.config.dropout
        return x * torch.empty_like(x).bernoulli_(keep, generator=self._random).div_(keep)

    def weights(self) -> dict[str, torch.Tensor]:
        """Return copies of the weights by dataset name, on the CPU."""
        return {name: torch.from_numpy(value) for name, value in self.model.weights().items()}

    def state(self) -> dict[str, Any] | None:
        """Return a checkpoint's content, on rank 0: weights, optimizer, every stream's LSTM state and position, losses.

        Random numbers need no state: they follow from seed, stream and step.
        """
        states = [{"h": h.cpu(), "c": c.cpu(), "position": position}
                  for (h, c), position in zip(self._states, self._positions)]
        losses = torch.stack(self.losses).cpu() if self.losses else torch.zeros(0)
        by_rank = self.replicas.gather((states, losses))
        if by_rank is None:
            return None
        return {
            "step": self.step_number,
            "weights": self.weights(),
            "optimizer": self.updater.optimizer.state_dict(),
            "streams": [stream for streams, _ in by_rank for stream in streams],
            "losses": [losses for _, losses in by_rank],
            "shards": [list(shard) for shard in self.shards],
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from `state`. `ConfigurationError` if the model, the batches or the text have other sizes.

        Without streams the run has read no text yet: LSTM states are zero, and the text starts from the
        beginning.
        """
        streams = state["streams"]
        if streams is not None and len(streams) != self.streams:
            raise ConfigurationError(f"checkpoint: expected {self.streams} streams (processes times accumulate), "
                                     f"got {len(streams)}")
        self.model.load_weights({name: value.numpy() for name, value in state["weights"].items()})
        if state["step"] or state["optimizer"]["state"]:  # AdamW has no state before its first step
            self.updater.restore(state["optimizer"])
        for k, number in enumerate(self._numbers if streams is not None else ()):
            h, c, position = (streams[number][key] for key in ("h", "c", "position"))
            shapes, expected = (tuple(tuple(part.shape) for part in parts) for parts in ((h, c), self._states[k]))
            if shapes != expected:
                raise ConfigurationError(f"checkpoint: expected states of shapes {expected}, got {shapes}")
            shape = (self.model.directions, 1 + self.config.batch_size, 4)
            if position is not None and tuple(position.shape) != shape:
                raise ConfigurationError(f"checkpoint: expected positions of shape {shape}, got "
                                         f"{tuple(position.shape)}")
            if position is not None:
                self._check_position(position, self._orders(number))
            self._states[k] = _to_device((h, c), self.replicas.device)
            self._positions[k] = position
        if streams is not None:
            by_rank, replicas = state["losses"], self.replicas
            losses = by_rank[replicas.rank] if len(by_rank) == replicas.world else torch.stack(by_rank).mean(0)
            self.losses = list(losses.to(replicas.device))
        self.step_number, self._batches = state["step"], None

    def _check_position(self, position: torch.Tensor, orders: Sequence[Order]) -> None:
        """Raise `ConfigurationError` if a location in `position` (as from `Rows.position`) is not in the text."""
        for order, locations in zip(orders, position.tolist()):
            epochs = {location[0] for location in locations}
            by_epoch = {epoch: order.lengths(epoch, self.shards) for epoch in epochs if epoch >= 0}
            for number, (epoch, group, sentence, inputs) in enumerate(locations):
                lengths = by_epoch.get(epoch, [])
                if not (0 <= group < len(lengths) and 0 <= sentence < lengths[group] + (number == 0) and inputs >= -1):
                    raise ConfigurationError(f"checkpoint: expected positions in the text, got epoch {epoch}, group "
                                             f"{group} of files, sentence {sentence} and {inputs} inputs")


def _ignore_termination(worker: int) -> None:
    """Make a process that prepares batches ignore SIGTERM: the process that writes a checkpoint handles it."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


def _to_device(value, device: torch.device):
    """Move the tensors in nested tuples to a device."""
    return tree_map_only(torch.Tensor, lambda tensor: tensor.to(device, non_blocking=True), value)


class Run:
    """Trains until the last step of the configuration, an early stop, or a signal."""

    def __init__(self, folder: Path, trainer: Trainer, vocabulary: Vocabulary, heldout: list[Shard], config: RunConfig,
                 evaluations: list[dict[str, Any]]):
        self._folder, self._trainer, self._vocabulary, self._heldout = folder, trainer, vocabulary, heldout
        self._config, self._evaluations, self._steps = config, evaluations, trainer.total_steps
        self._is_first = trainer.replicas.is_first
        self._log = TrainLog(folder, trainer.step_number, config.tensorboard) if self._is_first else None
        self._files = checkpoint.described_files(folder) if self._is_first else {}  # before they can be damaged
        self._evaluate_every = config.evaluate_every or max(1, math.ceil(trainer.steps_per_epoch / 10))
        self._saved = trainer.step_number or None
        self._bar = tqdm(total=self._steps, initial=trainer.step_number, unit="step",
                         disable=config.quiet or not self._is_first)

    def train(self) -> None:
        """Run to the end. Raises `KeyboardInterrupt` on SIGTERM and Ctrl-C, after a checkpoint."""
        trainer = self._trainer
        with (self._bar, stops.stoppable(terminate=True), contextlib.closing(trainer),
              contextlib.closing(self._log) if self._log else contextlib.nullcontext()):
            if self._is_first and self._stops_early() and trainer.step_number < self._steps:
                logger.warning("%s: %d evaluations without a new best perplexity have ended the run; a larger "
                               "--patience goes on", self._folder, self._config.patience)
            self._restart_clock()
            while trainer.step_number < self._steps and not self._stops_early():
                self._norm, self._rate = trainer.step()
                self._timed += 1
                self._bar.update()
                self._after_step(trainer.step_number, self._is_stopped())
            self.save()
            if self._is_first:
                self._log.write("end", trainer.step_number, why="early stop" if self._stops_early() else "done")
                if no_plot := plot_losses(self._folder):
                    self._log.write("note", trainer.step_number, text=no_plot)

    def _after_step(self, number: int, is_stopped: bool) -> None:
        if number % self._config.log_every == 0 or number == self._steps:
            self._report()
        if self._heldout and (number % self._evaluate_every == 0 or number == self._steps):
            self._evaluate()
            self._restart_clock()
        if number % self._config.checkpoint_every == 0:
            self._report()
            self.save()
        if is_stopped:
            self.save()
            raise KeyboardInterrupt(f"interrupted after step {number} of {self._steps}; --resume continues from there")

    def _restart_clock(self) -> None:
        """Exclude the time up to now from the speed."""
        self._since, self._timed = time.perf_counter(), 0

    def _report(self) -> None:
        """Log the mean loss of the steps since the last report and their speed."""
        trainer, number = self._trainer, self._trainer.step_number
        if not trainer.losses:
            return
        mean, norm = self._mean_loss()
        speed = self._timed * trainer.positions_per_step / max(time.perf_counter() - self._since, 1e-9)
        perplexity_of_samples = math.exp(min(mean, 700))
        if self._log is not None:
            self._log.write("train", number, loss=mean, perplexity=perplexity_of_samples, gradient_norm=norm,
                            learning_rate=self._rate, epoch=number / max(1, trainer.steps_per_epoch),
                            tokens_per_second=round(speed, 1))
            self._bar.set_postfix_str(f"perplexity {perplexity_of_samples:.1f}, {speed:,.0f} tokens/s")
        trainer.losses = []
        self._restart_clock()

    def _mean_loss(self) -> tuple[float, float]:
        """Return the mean loss of the steps since the last report, and the last gradient norm; waits for the device.

        `RuntimeError` if they are not finite.
        """
        loss = torch.stack(self._trainer.losses).mean()
        self._trainer.replicas.sum_([loss])
        mean, norm = float(loss) / self._trainer.replicas.world, float(self._norm)
        if not math.isfinite(mean) or not math.isfinite(norm):
            raise RuntimeError(f"training: the loss or its gradient is not finite around step "
                               f"{self._trainer.step_number} (loss {mean}, gradient norm {norm}); the last checkpoint "
                               "is older: lower the learning rate, and resume or start again")
        return mean, norm

    def _is_stopped(self) -> bool:
        """Return whether any process has received a signal."""
        if self._trainer.replicas.world == 1:
            return stops.is_requested()
        flag = torch.tensor([float(stops.is_requested())], device=self._trainer.replicas.device)
        self._trainer.replicas.sum_([flag])
        return bool(flag.item())

    def _evaluate(self) -> None:
        """Compute the held-out perplexity on rank 0; if it is the best so far, write the weights to `best.pt`."""
        if self._is_first:
            trainer = self._trainer
            perplexities = perplexity(trainer.model, self._heldout, self._vocabulary, self._config.evaluate_batch_size,
                                      defer_stops=True)
            best = min((evaluation["perplexity"] for evaluation in self._evaluations), default=math.inf)
            values = {"perplexity": perplexities.total, "by_direction": list(perplexities.by_direction)}
            self._evaluations.append({"step": trainer.step_number, **values})
            self._log.write("heldout", trainer.step_number, **values)
            if perplexities.total < best:
                checkpoint.write(self._folder / BEST, {
                    "step": trainer.step_number, "weights": trainer.weights(), "perplexity": perplexities.total,
                    "files": self._files})
            if not self._config.quiet:
                tqdm.write(f"step {trainer.step_number}: held-out {perplexities}")
        self._evaluations = self._trainer.replicas.share(self._evaluations)

    def _stops_early(self) -> bool:
        """Return whether none of the last `patience` held-out perplexities is a new best."""
        values, patience = [evaluation["perplexity"] for evaluation in self._evaluations], self._config.patience
        return bool(patience and values and len(values) - 1 - values.index(min(values)) >= patience)

    def save(self) -> None:
        """Write a checkpoint, unless the last one is of this step."""
        if self._saved == self._trainer.step_number:
            return
        if self._trainer.losses:
            self._mean_loss()
        state = self._trainer.state()
        if state is not None:
            checkpoint.save(self._folder, {**state, "heldout": [list(shard) for shard in self._heldout],
                                           "evaluations": self._evaluations, "files": self._files}, self._config.keep)
        self._saved = self._trainer.step_number
