"""The training step and its state: what a checkpoint holds, and how it is taken up again."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from elmo_fast.model.options import ConfigurationError
from elmo_fast.ops.precision import numerics
from elmo_fast.ops.reference import State
from elmo_fast.text.vocabulary import Vocabulary
from elmo_fast.train.batches import Batch, BatchStream, Numbering, load
from elmo_fast.train.language_model import LanguageModel
from elmo_fast.train.replicas import Replicas
from elmo_fast.train.shards import Shard
from elmo_fast.train.stream import Order
from elmo_fast.train.updates import Updater


@dataclass(frozen=True)
class Step:
    """What a step reports: the mean loss of the batches of this process and the gradient's norm, both on the device."""

    loss: torch.Tensor
    norm: torch.Tensor
    rate: float


class Trainer:
    """Trains a model on shards. Everything random depends on the seed, the stream and the step's number alone."""

    def __init__(self, model: LanguageModel, shards: Sequence[Shard], vocabulary: Vocabulary, replicas: Replicas,
                 workers: int = 0):
        self.model, self.shards, self.replicas, self._workers = model, list(shards), replicas, workers
        self.learning = model.plan.learning
        self.updater = Updater(model, self.learning, replicas)
        self.step_number = 0
        char_cnn = model.plan.model.char_cnn
        negatives = self.learning.n_negative_samples_batch if self.learning.sample_softmax else None
        self._numbering = Numbering(vocabulary, char_cnn and char_cnn.max_characters_per_token, negatives,
                                    self.learning.seed)
        own = range(self.learning.accumulate)
        self._numbers = [replicas.rank * self.learning.accumulate + each for each in own]
        self._states = [model.begin(self.learning.batch_size) for _ in own]
        self._positions: list[np.ndarray | None] = [None for _ in own]
        self._batches = None
        self._random = torch.Generator(replicas.device)

    @property
    def streams(self) -> int:
        """Streams of all processes together; each makes one batch of every step."""
        return self.replicas.world * self.learning.accumulate

    @property
    def positions_a_step(self) -> int:
        """Tokens that one step of all processes predicts, in each direction."""
        return self.learning.batch_size * self.learning.unroll_steps * self.streams

    @property
    def steps_an_epoch(self) -> int:
        """Whole steps in one pass over the text; every sentence's end is predicted too."""
        return sum(shard.tokens + shard.sentences for shard in self.shards) // self.positions_a_step

    @property
    def total_steps(self) -> int:
        """Steps of the whole run."""
        return self.learning.max_steps or max(1, int(self.learning.n_epochs * self.steps_an_epoch))

    def step(self) -> Step:
        """Train on one batch of each of this process's streams."""
        if self._batches is None:
            self._batches = [self._load(number, position) for number, position in zip(self._numbers, self._positions)]
        losses, touched = [], []
        for k, batches in enumerate(self._batches):
            batch = next(batches)
            self._positions[k] = batch.position.numpy()
            loss, rows = self._backward(k, to_device(batch, self.replicas.device))
            losses.append(loss)
            touched += rows
        rate = self.learning.rate(self.step_number, self.total_steps)
        norm = self.updater.step(touched, rate)
        self.step_number += 1
        return Step(torch.stack(losses).mean(), norm, rate)

    def _backward(self, k: int, batch: Batch):
        self._random.manual_seed(_mixed(self.learning.seed, self._numbers[k], self.step_number))
        state = self._some_reset(self._states[k])
        losses, self._states[k], touched = self.model.losses(batch, state, self._drop())
        loss = losses.mean()
        with numerics(self.model.softmax_precision, self.replicas.device):
            (loss * (self.learning.unroll_steps / self.streams)).backward()
        return loss.detach(), touched

    def _some_reset(self, state: State) -> State:
        """`state` with zeros in the rows that were drawn for it: h [L, rows, 2 P] and c [L, rows, 2 D]."""
        if not self.learning.reset_states:
            return state
        drawn = torch.rand(state[0].shape[1], generator=self._random, device=state[0].device)
        kept = (drawn >= self.learning.reset_states)[None, :, None]
        return tuple(torch.where(kept, each, torch.zeros_like(each)) for each in state)

    def _drop(self):
        if not self.learning.dropout:
            return None
        keep = 1 - self.learning.dropout
        return lambda x: x * torch.empty_like(x).bernoulli_(keep, generator=self._random).div_(keep)

    def _load(self, number: int, position: np.ndarray | None):
        orders = [Order(self.learning.seed, reverse, number, self.streams)
                  for reverse in (False, True)[: self.model.directions]]
        stream = BatchStream(self.shards, self._numbering, orders, self.learning.batch_size,
                             self.learning.unroll_steps, self.step_number, position)
        return load(stream, self._workers, self.replicas.device.type == "cuda")

    def state(self) -> dict[str, Any] | None:
        """Content of a checkpoint, on rank 0: weights, optimizer, and of every stream its LSTM state and position.

        Random numbers need no state of their own: they follow from seed, stream and step.
        """
        own = [(*(each.cpu() for each in state), None if position is None else torch.from_numpy(position))
               for state, position in zip(self._states, self._positions)]
        everyone = self.replicas.gather(own)
        if everyone is None:
            return None
        return {
            "step": self.step_number,
            "weights": {name: torch.from_numpy(value) for name, value in self.model.weights().items()},
            "optimizer": self.updater.optimizer.state_dict(),
            "streams": [{"h": h, "c": c, "position": position} for rank in everyone for h, c, position in rank],
            "shards": [[shard.path, shard.size, shard.sentences, shard.tokens] for shard in self.shards],
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go on where `state` was taken. `ConfigurationError` when it is of a model or of batches of other sizes.

        One without streams has read no text yet: LSTM states are zeros then, and the text begins at its start.
        """
        streams = state["streams"]
        if streams is not None and len(streams) != self.streams:
            raise ConfigurationError(f"checkpoint: expected {self.streams} streams (processes times accumulate), "
                                     f"got {len(streams)}")
        self.model.load_weights({name: value.numpy() for name, value in state["weights"].items()})
        self.updater.restore(state["optimizer"])
        if streams is not None:
            self._restore_streams([streams[number] for number in self._numbers])
        self.step_number, self._batches = state["step"], None

    def _restore_streams(self, streams: list[dict[str, Any]]) -> None:
        for k, stream in enumerate(streams):
            found = tuple(stream["h"].shape), tuple(stream["c"].shape)
            expected = tuple(tuple(each.shape) for each in self._states[k])
            if found != expected:
                raise ConfigurationError(f"checkpoint: expected states of shapes {expected}, got {found}")
        device = self.replicas.device
        self._states = [(stream["h"].to(device), stream["c"].to(device)) for stream in streams]
        self._positions = [None if stream["position"] is None else stream["position"].numpy() for stream in streams]


def _mixed(*numbers: int) -> int:
    return int(np.random.SeedSequence([11, *numbers]).generate_state(1, np.uint64)[0] >> 1)


def to_device(value, device: torch.device):
    """Tensors in nested tuples, on a device."""
    if isinstance(value, torch.Tensor):
        return value.to(device, non_blocking=True)
    if isinstance(value, tuple):
        moved = [to_device(each, device) for each in value]
        return type(value)(*moved) if hasattr(value, "_fields") else tuple(moved)
    return value
