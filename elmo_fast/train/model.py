"""The language model that is trained: token vectors, LSTM layers with dropout, and the loss of both directions."""

from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

import numpy as np
import torch
from torch import nn
from torch.autograd.function import once_differentiable

from elmo_fast.engine.schedule import Schedule
from elmo_fast.nn.layers.carried import RunState
from elmo_fast.nn.layers.lstm import run_layers
from elmo_fast.nn.layers.token_vectors import token_vectors
from elmo_fast.nn.softmax_head import SOFTMAX
from elmo_fast.ops.numerics import full_precision, gradient_numerics, numerics
from elmo_fast.ops.projected_lstm.reference import State
from elmo_fast.text.vocabulary import Vocabulary
from elmo_fast.train.config import TrainConfig
from elmo_fast.train.data import Batch, Numbering
from elmo_fast.weights.datasets import (
    DIRECTIONS,
    LSTM_DATASETS,
    check_shapes,
    expected_shapes,
    lstm_name,
    random_weights,
)

_MAX_SCORES = 1 << 22  # scores in memory at a time


class UsedRows(NamedTuple):
    """Rows of a table that a batch used: `values` [R, ...] take the gradient of rows `rows` int64 [R] of `table`."""

    table: nn.Parameter
    rows: torch.Tensor
    values: torch.Tensor


class LanguageModel(nn.Module):
    """A language model in one or two directions, which share the softmax, W [V, P] and b [V].

    Parameters are named as bilm-tf's datasets. A model of one direction runs its rows in two halves, as the two
    directions of the LSTM op with the same weights: the op uses a core per direction.
    """

    def __init__(self, config: TrainConfig, weights: Mapping[str, np.ndarray], precision: str = "highest"):
        """`weights` has arrays by dataset name, including those of `SOFTMAX`."""
        super().__init__()
        self.config, self.backend, self.precision = config, "auto", precision
        self.directions = 2 if config.bidirectional else 1
        parameters = {name: nn.Parameter(torch.tensor(values)) for name, values in weights.items()}
        if config.training.share_embedding_softmax:
            parameters[SOFTMAX[0]] = parameters["embedding"]
        of_lstm = [lstm_name(direction, layer, dataset) for direction in DIRECTIONS[: self.directions]
                   for layer in range(config.model.lstm.n_layers) for dataset in LSTM_DATASETS]
        self._of_network = [*(name for name in weights if name not in (*SOFTMAX, *of_lstm)),
                            *(name for name in of_lstm if name in weights)]
        for name in (*SOFTMAX, *self._of_network):  # in the order of the checkpoints' accumulators
            self.register_parameter(name, parameters[name])

    @property
    def softmax_w(self) -> nn.Parameter:
        """W of the softmax [V, P]."""
        return self._parameters[SOFTMAX[0]]

    @property
    def softmax_b(self) -> nn.Parameter:
        """b of the softmax [V]."""
        return self._parameters[SOFTMAX[1]]

    def numbering(self, vocabulary: Vocabulary, negatives: int | None = None) -> Numbering:
        """Return the numbering of this model's inputs and targets, with `negatives` sampled words."""
        char_cnn, seed = self.config.model.char_cnn, self.config.training.seed
        return Numbering(vocabulary, char_cnn and char_cnn.max_characters_per_token, negatives, seed)

    def weights(self) -> dict[str, np.ndarray]:
        """Return copies of the weights by dataset name, float32, as `__init__` takes them."""
        return {name: value.detach().float().cpu().numpy().copy() for name, value in self.by_name().items()}

    def by_name(self) -> dict[str, nn.Parameter]:
        """Return parameters by dataset name, as in `weights()`; a shared table has two names."""
        return {name: self._parameters[name] for name in (*self._of_network, *SOFTMAX)}

    @torch.no_grad()
    def load_weights(self, weights: Mapping[str, np.ndarray]) -> None:
        """Set the parameters to `weights`, named as by `weights()`. `ConfigurationError` for other names or shapes."""
        parameters = self.by_name()
        check_shapes("weights", {name: tuple(value.shape) for name, value in parameters.items()}, weights)
        for name, value in parameters.items():
            value.copy_(torch.from_numpy(weights[name]))

    def zero_state(self, rows: int) -> State:
        """Return a state of zeros for `rows` rows: (h [L, slots, 2 P], c [L, slots, 2 D])."""
        lstm, slots = self.config.model.lstm, rows if self.config.bidirectional else (rows + 1) // 2
        return tuple(self.softmax_b.new_zeros(lstm.n_layers, slots, 2 * size)
                     for size in (lstm.projection_dim, lstm.dim))

    def outputs(self, tokens: torch.Tensor, rows: torch.Tensor, steps: int, state: State,
                drop: Callable[[torch.Tensor], torch.Tensor] | None = None) -> tuple[list[torch.Tensor], State]:
        """Return the top layer's outputs of the op's two directions [S, P], and the state after the last step.

        `tokens` are ids of unique tokens, `rows` int [D, S] their numbers at S = steps * rows positions, step after
        step. `drop` is applied to every layer's input.
        """
        weights, lstm = self._parameters, self.config.model.lstm
        vectors = token_vectors(tokens, {name: weights[name] for name in self._of_network}, self.config.model,
                                self.backend)  # [U, P]
        schedule, rows = self._schedule(rows, steps)
        if drop is not None:
            vectors, rows = torch.cat([vectors[rows[0]], vectors[rows[1]]], dim=1), None  # [S, 2 P]
        of_layers = [tuple(tuple(weights.get(lstm_name(direction % self.directions, layer, dataset))
                                 for dataset in LSTM_DATASETS) for direction in DIRECTIONS)
                     for layer in range(lstm.n_layers)]
        layers, state = run_layers(of_layers, lstm, vectors, None if rows is None else rows.int(), schedule,
                                   RunState(state, None), backend=self.backend, precision=self.precision, drop=drop)
        return list(layers[-1].chunk(2, dim=1)), state

    def losses(self, batch: Batch, state: State, drop: Callable | None) -> tuple[torch.Tensor, State, list[UsedRows]]:
        """Return every direction's mean loss [D], the state after the batch (detached), and the table rows it used."""
        steps, device = self.config.training.unroll_steps, self.softmax_b.device
        with numerics(self.precision, device):
            tops, state = self.outputs(batch.tokens, batch.rows, steps, state, drop)
        tops = self.by_direction([full_precision(top) for top in tops], steps, batch.rows.shape[1])
        used = [] if batch.samples is None else [
            UsedRows(table, batch.samples.words, table.detach()[batch.samples.words].requires_grad_())
            for table in (self.softmax_w, self.softmax_b)]
        with gradient_numerics(self.precision, device):  # 16-bit scores would be too coarse
            losses = torch.stack([self._loss(top if drop is None else drop(top), batch, number, used)
                                  for number, top in enumerate(tops)])
        return losses, tuple(full_precision(part.detach()) for part in state), used

    def by_direction(self, tops: list[torch.Tensor], steps: int, positions: int) -> list[torch.Tensor]:
        """Convert outputs of the op's two directions [S', P] to outputs of the model's directions [S, P]."""
        if self.config.bidirectional:
            return tops
        outputs = torch.cat([top.view(steps, -1, top.shape[1]) for top in tops], dim=1)
        return [outputs[:, : positions // steps].reshape(positions, -1)]

    def _loss(self, top: torch.Tensor, batch: Batch, direction: int, used: list[UsedRows]) -> torch.Tensor:
        if batch.samples is None:
            scores = torch.addmm(self.softmax_b, top, self.softmax_w.t())
            return nn.functional.cross_entropy(scores, batch.targets[direction], reduction="none").mean()
        samples = (field[direction] for field in batch.samples[1:])  # without the words, which both directions share
        return sampled_cross_entropy(top, *(rows.values for rows in used), *samples)

    def _schedule(self, rows: torch.Tensor, steps: int) -> tuple[Schedule, torch.Tensor]:
        """Return the schedule in which every slot runs for all steps, and the rows of the op's directions [2, S]."""
        if not self.config.bidirectional:
            by_step = rows[0].view(steps, -1)
            if by_step.shape[1] % 2:  # the partner of an odd slot is a copy of slot 0
                by_step = torch.cat([by_step, by_step[:, :1]], dim=1)
            rows = torch.stack([half.reshape(-1) for half in by_step.chunk(2, dim=1)])
        count = rows.shape[1]
        batch_sizes = np.full(steps, count // steps, dtype=np.int32)
        return Schedule(np.arange(count // steps), batch_sizes, np.tile(np.arange(count, dtype=np.int32), (2, 1)),
                        np.zeros(count, dtype=bool)), rows


def parameter_shapes(config: TrainConfig, held: Collection[str] = ()) -> dict[str, tuple[int, ...]]:
    """Return the shape of every dataset of a model, softmax included; `held` as in `expected_shapes`."""
    shapes = {name: shape for name, shape in expected_shapes(config.model, held).items()
              if config.bidirectional or not name.startswith("RNN_1")}
    words = config.model.n_tokens_vocab
    return {**shapes, **dict(zip(SOFTMAX, ((words, config.model.lstm.projection_dim), (words,))))}


def initial_weights(config: TrainConfig, seed: int) -> dict[str, np.ndarray]:
    """Draw random weights, softmax included, as bilm-tf does: softmax normal with deviation 1 / sqrt(P), bias 0."""
    shapes = parameter_shapes(config)
    words, size = shapes[SOFTMAX[0]]
    w = np.random.default_rng([seed, 1]).normal(0, 1 / np.sqrt(size), (words, size)).astype(np.float32)
    weights = {**random_weights(config.model, seed), **dict(zip(SOFTMAX, (w, np.zeros(words, dtype=np.float32))))}
    return {name: weights[name] for name in shapes}


class _SampledCrossEntropy(torch.autograd.Function):
    """Mean over positions of the cross entropy of the target among itself and the drawn words.

    `states` [S, P], `table` [R, P] and `bias` [R] the rows that take part, `targets` int64 [S] and `drawn` int64 [K]
    their numbers, `log_targets` [S] and `log_drawn` [K] the logs of their expected counts, which are subtracted from
    the scores, `hits` int64 [2, H] the (position, drawn word) pairs that are the target itself and are left out.
    As TensorFlow's `sampled_softmax_loss`; no gradient flows into the expected counts. One [S, K] array holds scores,
    then probabilities, then their gradients.
    """

    @staticmethod
    def forward(ctx, states, table, bias, targets, drawn, log_targets, log_drawn, hits):
        words = table[drawn]  # [K, P]
        scores = torch.addmm((bias[drawn] - log_drawn.to(bias)), states, words.t())
        scores[hits[0], hits[1]] = -torch.inf
        target_scores = (states * table[targets]).sum(1) + bias[targets] - log_targets.to(bias)  # [S]
        highest = torch.maximum(scores.amax(1), target_scores)
        scores.sub_(highest[:, None]).exp_()
        target_exp = (target_scores - highest).exp()
        total = scores.sum(1) + target_exp
        ctx.save_for_backward(states, table, targets, drawn, scores, total, target_exp)
        return (total.log() + highest - target_scores).mean()

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient):
        states, table, targets, drawn, scores, total, target_exp = ctx.saved_tensors
        scale = gradient / len(states)
        d_scores = scores * (scale / total)[:, None]  # [S, K]
        d_target = (target_exp / total - 1) * scale  # [S]
        d_states = torch.addcmul(d_scores @ table[drawn], d_target[:, None], table[targets])
        d_table = torch.zeros_like(table).index_add_(0, targets, d_target[:, None] * states)
        d_table.index_add_(0, drawn, d_scores.t() @ states)
        d_bias = d_target.new_zeros(len(table)).index_add_(0, targets, d_target).index_add_(0, drawn, d_scores.sum(0))
        return d_states, d_table, d_bias, None, None, None, None, None


sampled_cross_entropy = _SampledCrossEntropy.apply


@torch.no_grad()
def chunked_full_cross_entropy(states: torch.Tensor, table: torch.Tensor, bias: torch.Tensor,
                               targets: torch.Tensor) -> torch.Tensor:
    """Return the targets' cross entropy over all words, without gradients: states [S, P], table [V, P] -> [S].

    At most `_MAX_SCORES` scores are in memory at a time.
    """
    rows = max(1, _MAX_SCORES // len(table))
    buffer = states.new_empty(min(rows, len(states)), len(table))
    losses = []
    for chunk, chunk_targets in zip(states.split(rows), targets.split(rows)):
        scores = torch.addmm(bias, chunk, table.t(), out=buffer[: len(chunk)])
        target_scores = scores.gather(1, chunk_targets[:, None]).squeeze(1)
        highest = scores.amax(1)
        losses.append(scores.sub_(highest[:, None]).exp_().sum(1).log() + (highest - target_scores))
    return torch.cat(losses)
