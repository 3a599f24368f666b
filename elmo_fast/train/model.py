"""The language model that is trained: token vectors, LSTM layers with dropout, and the loss of both directions."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
import torch
from torch import nn

from elmo_fast.model.encoder import CharacterEncoder, WordEmbedder
from elmo_fast.model.lstm import LstmStack
from elmo_fast.model.options import ConfigurationError
from elmo_fast.model.softmax_head import SOFTMAX
from elmo_fast.model.weights import DIRECTIONS, lstm_name, random_weights
from elmo_fast.ops.precision import full_precision, numerics
from elmo_fast.ops.reference import State
from elmo_fast.ops.schedule import Schedule
from elmo_fast.train.config import TrainConfig
from elmo_fast.train.data import Batch
from elmo_fast.train.loss import full_cross_entropy, sampled_cross_entropy

Dropout = Callable[[torch.Tensor], torch.Tensor]


class UsedRows(NamedTuple):
    """Rows of a table that a batch used: `values` [R, ...] take the gradient of rows `rows` int64 [R] of `table`."""

    table: nn.Parameter
    rows: torch.Tensor
    values: torch.Tensor


class LanguageModel(nn.Module):
    """A language model in one or two directions. Both share the softmax, W [V, P] and b [V].

    A model of one direction runs its rows in two halves, as the two directions of the LSTM op with the same weights:
    the op uses a core per direction.
    """

    def __init__(self, config: TrainConfig, weights: Mapping[str, np.ndarray], backend: str = "auto",
                 precision: str = "highest"):
        """`weights` by dataset name, with those of `SOFTMAX`."""
        super().__init__()
        self.config, self.backend, self.precision = config, backend, precision
        source = WordEmbedder if config.model.char_cnn is None else CharacterEncoder
        lstm = {name: value for name, value in weights.items() if name.startswith("RNN_")}
        tokens = {name: value for name, value in weights.items() if name not in SOFTMAX and name not in lstm}
        self.token_source = source(config.model, tokens, True)
        if config.bidirectional:
            self.lstm = LstmStack(config.model, lstm, True, "zero")
        else:
            self.lstm = LstmStack(config.model, _with_backward(config, lstm), True, "zero")
            self._share_forward_parameters()
        w, b = (torch.tensor(weights[name]) for name in SOFTMAX)
        self.softmax_w = self.token_source.embedding if config.training.share_embedding_softmax else nn.Parameter(w)
        self.softmax_b = nn.Parameter(b)

    def _share_forward_parameters(self) -> None:
        for name, parameter in list(self.lstm.named_parameters()):
            dataset, direction, layer = name.rsplit("_", 2)
            if direction == "0":
                self.lstm.register_parameter(f"{dataset}_1_{layer}", parameter)

    @property
    def directions(self) -> int:
        return 2 if self.config.bidirectional else 1

    def tables(self) -> list[nn.Parameter]:
        """Parameters of which a sampled step uses only some rows."""
        return [self.softmax_w, self.softmax_b] if self.config.training.sample_softmax else []

    def weights(self) -> dict[str, np.ndarray]:
        """float32 arrays by dataset name, as `__init__` takes them; copies."""
        return {name: value.detach().float().cpu().numpy().copy() for name, value in self.by_name().items()}

    def by_name(self) -> dict[str, nn.Parameter]:
        """Parameters by dataset name, as in `weights()`; a shared table has two names."""
        named = {}
        for part in (self.token_source, self.lstm):
            for own, name in part.datasets.items():
                if self.config.bidirectional or not name.startswith("RNN_1"):
                    named[name] = getattr(part, own)
        return {**named, **dict(zip(SOFTMAX, (self.softmax_w, self.softmax_b)))}

    @torch.no_grad()
    def load_weights(self, weights: Mapping[str, np.ndarray]) -> None:
        """Set the parameters to `weights`, named as by `weights()`. `ConfigurationError` for other names or shapes."""
        named = self.by_name()
        for name in sorted(named.keys() | weights.keys()):
            expected, found = (tuple(arrays[name].shape) if name in arrays else None for arrays in (named, weights))
            if expected != found:
                raise ConfigurationError(f"weights: {name}: expected shape {expected}, got {found}")
            named[name].copy_(torch.from_numpy(weights[name]))

    def zero_state(self, rows: int) -> State:
        """State of `rows` rows: (h [L, slots, 2 P], c [L, slots, 2 D])."""
        return self.lstm.zero_state(rows if self.config.bidirectional else (rows + 1) // 2, self.softmax_b)

    def outputs(self, tokens: torch.Tensor, rows: torch.Tensor, steps: int, state: State,
                drop: Dropout | None = None) -> tuple[list[torch.Tensor], State]:
        """Top-layer outputs of the op's two directions [S, P], and the state after the last step.

        `tokens` are ids of unique tokens, `rows` int [D, S] their numbers at S = steps * rows positions, step after
        step. `drop` is applied to every layer's input.
        """
        vectors = self.token_source(tokens, self.backend)  # [U, P]
        schedule, rows = self._schedule(rows, steps)
        if drop is None:
            layers, state = self.lstm.run(vectors, rows.int(), schedule, state, None, self.backend, self.precision)
        else:
            x = torch.cat([vectors[rows[0]], vectors[rows[1]]], dim=1)  # [S, 2 P]
            layers, state = self.lstm.run(x, None, schedule, state, None, self.backend, self.precision, drop=drop)
        return list(layers[-1].chunk(2, dim=1)), state

    def losses(self, batch: Batch, state: State, drop: Dropout | None) -> tuple[torch.Tensor, State, list[UsedRows]]:
        """Mean loss of every direction [D], the state after the batch (detached), and the table rows it used."""
        steps, device = self.config.training.unroll_steps, self.softmax_b.device
        with numerics(self.precision, device):
            tops, state = self.outputs(batch.tokens, batch.rows, steps, state, drop)
        tops = self.by_direction([full_precision(top) for top in tops], steps, batch.rows.shape[1])
        used = [] if batch.samples is None else self._used(batch.samples.words)
        with numerics(self.softmax_precision, device):
            losses = torch.stack([self._loss(top if drop is None else drop(top), batch, number, used)
                                  for number, top in enumerate(tops)])
        return losses, tuple(full_precision(part.detach()) for part in state), used

    @property
    def softmax_precision(self) -> str:
        """Precision of scores and of gradients of fp32 operands: 16-bit scores would be too coarse."""
        return "highest" if self.precision == "highest" else "high"

    def by_direction(self, tops: list[torch.Tensor], steps: int, positions: int) -> list[torch.Tensor]:
        """Outputs of the op's two directions [S', P] as outputs of the model's directions [S, P]."""
        if self.config.bidirectional:
            return tops
        both = torch.cat([top.view(steps, -1, top.shape[1]) for top in tops], dim=1)
        return [both[:, : positions // steps].reshape(positions, -1)]

    def _loss(self, top: torch.Tensor, batch: Batch, direction: int, used: list[UsedRows]) -> torch.Tensor:
        if batch.samples is None:
            return full_cross_entropy(top, self.softmax_w, self.softmax_b, batch.targets[direction]).mean()
        samples = batch.samples
        return sampled_cross_entropy(top, *(rows.values for rows in used), samples.targets[direction],
                                     samples.drawn[direction], samples.log_targets[direction],
                                     samples.log_drawn[direction], samples.hits[direction])

    def _used(self, words: torch.Tensor) -> list[UsedRows]:
        return [UsedRows(table, words, table.detach()[words].requires_grad_()) for table in self.tables()]

    def _schedule(self, rows: torch.Tensor, steps: int) -> tuple[Schedule, torch.Tensor]:
        """The schedule in which every slot runs for all steps, and the rows of the op's two directions [2, S]."""
        if not self.config.bidirectional:
            rows = _in_halves(rows[0], steps)
        slots = rows.shape[1] // steps
        numbers = np.arange(rows.shape[1], dtype=np.int32)
        batch_sizes = np.full(steps, slots, dtype=np.int32)
        return Schedule(np.arange(slots), batch_sizes, np.stack([numbers, numbers]),
                        np.zeros(len(numbers), dtype=bool)), rows


def initial_weights(config: TrainConfig, seed: int) -> dict[str, np.ndarray]:
    """Random weights, softmax included, distributed as bilm-tf's: the softmax normal by 1 / sqrt(P), bias 0."""
    size, dim = config.model.n_tokens_vocab, config.model.lstm.projection_dim
    generator = np.random.default_rng([seed, 1])
    softmax = generator.normal(0, 1 / np.sqrt(dim), (size, dim)), np.zeros(size)
    weights = random_weights(config.model, seed)
    if not config.bidirectional:
        weights = {name: value for name, value in weights.items() if not name.startswith("RNN_1")}
    return {**weights, **{name: value.astype(np.float32) for name, value in zip(SOFTMAX, softmax)}}


def _with_backward(config: TrainConfig, lstm: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """LSTM weights of the forward direction, also under the names of the backward direction."""
    both = dict(lstm)
    for layer in range(config.model.lstm.n_layers):
        for dataset in ("W_0", "B", "W_P_0")[: 2 + config.model.lstm.is_projected]:
            both[lstm_name(DIRECTIONS[1], layer, dataset)] = lstm[lstm_name(DIRECTIONS[0], layer, dataset)]
    return both


def _in_halves(rows: torch.Tensor, steps: int) -> torch.Tensor:
    """Positions [S] of one direction as two directions of half the slots; an odd slot's partner is a copy of slot 0."""
    by_step = rows.view(steps, -1)
    if by_step.shape[1] % 2:
        by_step = torch.cat([by_step, by_step[:, :1]], dim=1)
    return torch.stack([half.reshape(-1) for half in by_step.chunk(2, dim=1)])
