"""The model as it is trained: token vectors, LSTM layers under dropout, and the loss of each direction."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
import torch
from torch import nn

from elmo_fast.model.weights import random_weights
from elmo_fast.model.lstm import LstmStack
from elmo_fast.model.options import ConfigurationError
from elmo_fast.model.softmax_head import SOFTMAX
from elmo_fast.model.states import zero_state
from elmo_fast.model.encoder import CharacterEncoder, WordEmbedder
from elmo_fast.model.weights import DIRECTIONS, lstm_name
from elmo_fast.ops.precision import full_precision, numerics
from elmo_fast.ops.reference import State
from elmo_fast.ops.schedule import Schedule
from elmo_fast.train.batches import Batch
from elmo_fast.train.options import Plan
from elmo_fast.train.sampled_softmax import full_cross_entropy, sampled_cross_entropy

Drop = Callable[[torch.Tensor], torch.Tensor]


class TouchedRows(NamedTuple):
    """Rows of a table that a batch used: `values` [R, ...] take the gradient of rows `rows` int64 [R] of `table`."""

    table: nn.Parameter
    rows: torch.Tensor
    values: torch.Tensor


class LanguageModel(nn.Module):
    """A language model in one or two directions with its softmax, W [V, P] and b [V], shared by the directions.

    A model of one direction splits its rows in two halves and runs them as the two directions of the LSTM op, with the
    same weights: both cores work, and nothing else changes.
    """

    def __init__(self, plan: Plan, weights: Mapping[str, np.ndarray], backend: str = "auto", precision: str = "highest"):
        """`weights` by dataset name, with those of `SOFTMAX`."""
        super().__init__()
        self.plan, self.backend, self.precision = plan, backend, precision
        source = WordEmbedder if plan.model.char_cnn is None else CharacterEncoder
        parts = {name: value for name, value in weights.items() if name not in SOFTMAX}
        lstm = parts if plan.bidirectional else {**parts, **_forward_twice(plan, parts)}
        self.token_source = source(plan.model, {k: v for k, v in parts.items() if not k.startswith("RNN_")}, True)
        self.lstm = LstmStack(plan.model, lstm, True, "zero")
        if not plan.bidirectional:
            for name, parameter in list(self.lstm.named_parameters()):
                if _is_forward(name):
                    self.lstm.register_parameter(_backward_of(name), parameter)
        shared = plan.learning.share_embedding_softmax
        w, b = (torch.tensor(weights[name]) for name in SOFTMAX)
        self.softmax_w = self.token_source.embedding if shared else nn.Parameter(w)
        self.softmax_b = nn.Parameter(b)

    @property
    def directions(self) -> int:
        return 2 if self.plan.bidirectional else 1

    def tables(self) -> list[nn.Parameter]:
        """Parameters of which a sampled step touches some rows only."""
        return [self.softmax_w, self.softmax_b] if self.plan.learning.sample_softmax else []

    def weights(self) -> dict[str, np.ndarray]:
        """float32 arrays by dataset name, as `__init__` takes them; copies."""
        return {name: value.detach().float().cpu().numpy().copy() for name, value in self.by_name().items()}

    def by_name(self) -> dict[str, nn.Parameter]:
        """Parameters by dataset name, as `weights()` has them; a shared table stands under two."""
        named = {}
        for part in (self.token_source, self.lstm):
            for own, name in part.datasets.items():
                if self.plan.bidirectional or not name.startswith("RNN_1"):
                    named[name] = getattr(part, own)
        return {**named, **dict(zip(SOFTMAX, (self.softmax_w, self.softmax_b)))}

    @torch.no_grad()
    def load_weights(self, weights: Mapping[str, np.ndarray]) -> None:
        """Take over `weights`, named as those of `weights()`. `ConfigurationError` for other names or shapes."""
        named = self.by_name()
        for name in sorted(named.keys() | weights.keys()):
            expected, found = (None if name not in each else tuple(each[name].shape) for each in (named, weights))
            if expected != found:
                raise ConfigurationError(f"weights: {name}: expected shape {expected}, got {found}")
            named[name].copy_(torch.from_numpy(weights[name]))

    def begin(self, rows: int) -> State:
        """Zero states of `rows` rows: (h [L, slots, 2 P], c [L, slots, 2 D])."""
        layers, h_dim, c_dim = self.lstm.state_sizes
        return zero_state(layers, self._slots(rows), h_dim, c_dim, self.softmax_b)

    def outputs(self, tokens: torch.Tensor, rows: torch.Tensor, steps: int, state: State,
                drop: Drop | None = None) -> tuple[list[torch.Tensor], State]:
        """Top-layer outputs [S, P] of each direction, and the state after the last step.

        `tokens` are ids of unique tokens, `rows` int [D, S] the one at each of S = steps * rows positions, step
        after step. `drop` is applied to every layer's input.
        """
        vectors = self.token_source(tokens, self.backend)  # [U, P]
        schedule, rows = self._schedule(rows, steps)
        if drop is None:
            layers, state = self.lstm.run(vectors, rows.int(), schedule, state, None, self.backend, self.precision)
        else:
            x = torch.cat([vectors[rows[0]], vectors[rows[1]]], dim=1)  # [S, 2 P]
            layers, state = self.lstm.run(x, None, schedule, state, None, self.backend, self.precision, drop=drop)
        return list(layers[-1].chunk(2, dim=1)), state

    def losses(self, batch: Batch, state: State, drop: Drop | None) -> tuple[torch.Tensor, State, list[TouchedRows]]:
        """Mean loss of each direction [D], the state after the batch (detached), and the table rows it used."""
        steps, device = self.plan.learning.unroll_steps, self.softmax_b.device
        with numerics(self.precision, device):
            tops, state = self.outputs(batch.tokens, batch.rows, steps, state, drop)
        tops = self.by_direction([full_precision(top) for top in tops], steps, batch.rows.shape[1])
        touched = [] if batch.samples is None else self._touched(batch.samples.words)
        with numerics(self.softmax_precision, device):
            losses = torch.stack([self._loss(top if drop is None else drop(top), batch, number, touched)
                                  for number, top in enumerate(tops)])
        return losses, tuple(full_precision(each.detach()) for each in state), touched

    @property
    def softmax_precision(self) -> str:
        """What scores and gradients of fp32 operands compute in: 16-bit scores would be too coarse."""
        return "highest" if self.precision == "highest" else "high"

    def by_direction(self, tops: list[torch.Tensor], steps: int, positions: int) -> list[torch.Tensor]:
        """Outputs of the op's two directions [S', P] as outputs of the model's directions [S, P]."""
        if self.plan.bidirectional:
            return tops
        both = torch.cat([top.view(steps, -1, top.shape[1]) for top in tops], dim=1)
        return [both[:, : positions // steps].reshape(positions, -1)]

    def _loss(self, top: torch.Tensor, batch: Batch, direction: int, touched: list[TouchedRows]) -> torch.Tensor:
        if batch.samples is None:
            return full_cross_entropy(top, self.softmax_w, self.softmax_b, batch.targets[direction]).mean()
        samples = batch.samples
        return sampled_cross_entropy(top, *(each.values for each in touched), samples.targets[direction],
                                     samples.drawn[direction], samples.log_targets[direction],
                                     samples.log_drawn[direction], samples.hits[direction])

    def _touched(self, words: torch.Tensor) -> list[TouchedRows]:
        return [TouchedRows(table, words, table.detach()[words].requires_grad_()) for table in self.tables()]

    def _slots(self, rows: int) -> int:
        return rows if self.plan.bidirectional else (rows + 1) // 2

    def _schedule(self, rows: torch.Tensor, steps: int) -> tuple[Schedule, torch.Tensor]:
        """The schedule in which every slot lives for all steps, and the rows of the op's two directions [2, S]."""
        if not self.plan.bidirectional:
            rows = _in_halves(rows[0], steps)
        slots = rows.shape[1] // steps
        numbers = np.arange(rows.shape[1], dtype=np.int32)
        live = np.full(steps, slots, dtype=np.int32)
        return Schedule(np.arange(slots), live, np.stack([numbers, numbers]), np.zeros(len(numbers), dtype=bool)), rows


def fresh_weights(plan: Plan, seed: int) -> dict[str, np.ndarray]:
    """Initial weights of a plan, softmax included, spread as bilm-tf's: the softmax normal by 1 / sqrt(P), bias 0."""
    size, dim = plan.model.n_tokens_vocab, plan.model.lstm.projection_dim
    generator = np.random.default_rng([seed, 1])
    softmax = generator.normal(0, 1 / np.sqrt(dim), (size, dim)), np.zeros(size)
    weights = random_weights(plan.model, seed)
    if not plan.bidirectional:
        weights = {name: value for name, value in weights.items() if not name.startswith("RNN_1")}
    return {**weights, **{name: value.astype(np.float32) for name, value in zip(SOFTMAX, softmax)}}


def _forward_twice(plan: Plan, weights: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    both = {}
    for layer in range(plan.model.lstm.n_layers):
        for dataset in ("W_0", "B", "W_P_0")[: 2 + plan.model.lstm.is_projected]:
            both[lstm_name(DIRECTIONS[1], layer, dataset)] = weights[lstm_name(DIRECTIONS[0], layer, dataset)]
    return both


def _is_forward(name: str) -> bool:
    return name.rsplit("_", 2)[1] == "0"


def _backward_of(name: str) -> str:
    dataset, _, layer = name.rsplit("_", 2)
    return f"{dataset}_1_{layer}"


def _in_halves(rows: torch.Tensor, steps: int) -> torch.Tensor:
    """Positions [S] of one direction as two directions of half the slots; an odd slot's partner repeats slot 0."""
    by_step = rows.view(steps, -1)
    if by_step.shape[1] % 2:
        by_step = torch.cat([by_step, by_step[:, :1]], dim=1)
    return torch.stack([half.reshape(-1) for half in by_step.chunk(2, dim=1)])
