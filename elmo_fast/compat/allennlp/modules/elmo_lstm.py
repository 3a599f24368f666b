"""`allennlp.modules.elmo_lstm`: the stack of LSTM layers by itself, over padded vectors and a mask."""

import itertools
import math
import os
from collections.abc import Mapping

import numpy as np
import torch
from torch import nn

from elmo_fast.choices import check_count
from elmo_fast.model.batch_layout import in_text_order
from elmo_fast.model.lstm import LstmStack
from elmo_fast.model.options import ConfigurationError, LstmOptions, Options
from elmo_fast.model.sources import fetch
from elmo_fast.model.weights import DIRECTIONS, lstm_name, read_datasets
from elmo_fast.ops import reference
from elmo_fast.ops.backend import check_backend
from elmo_fast.ops.precision import check_precision, numerics
from elmo_fast.ops.reference import LstmWeights, State
from elmo_fast.ops.schedule import make_schedule


class ElmoLstm(LstmStack):
    """Two-direction LSTM layers with projection, clipping and skip connections. From AllenNLP's `ElmoLstm`.

    New weights are random and trainable; `load_weights` reads a file's, which train if `requires_grad`. States are
    carried from call to call unless `stateful` is set to False. `recurrent_dropout_probability` drops the same
    values of h at every step of a sentence, in training, which runs in plain torch. `precision` and `backend` are
    those of `BiLm`.
    """

    def __init__(self, input_size: int, hidden_size: int, cell_size: int, num_layers: int, requires_grad: bool = False,
                 recurrent_dropout_probability: float = 0.0, memory_cell_clip_value: float | None = None,
                 state_projection_clip_value: float | None = None, *, precision: str = "highest",
                 backend: str = "auto"):
        for name, size in (("input_size", input_size), ("hidden_size", hidden_size), ("cell_size", cell_size),
                           ("num_layers", num_layers)):
            check_count(name, size, ConfigurationError)
        for name, clip in (("memory_cell_clip_value", memory_cell_clip_value),
                           ("state_projection_clip_value", state_projection_clip_value)):
            _check(clip is None or clip > 0, name, "a number above 0, or None for no clipping", clip)
        _check(0 <= recurrent_dropout_probability < 1, "recurrent_dropout_probability", "a number from 0 to below 1",
               recurrent_dropout_probability)
        lstm = LstmOptions(cell_size, hidden_size, num_layers, True, memory_cell_clip_value,
                           state_projection_clip_value)
        self._build(Options(lstm, None), _random_weights(lstm, input_size), True, "carry", precision, backend)
        self.input_size, self.requires_grad = input_size, requires_grad
        self.recurrent_dropout_probability = recurrent_dropout_probability

    def _build(self, options: Options, weights: Mapping[str, np.ndarray], requires_grad: bool, state: str,
               precision: str, backend: str) -> None:
        super().__init__(options, weights, requires_grad, state)
        self.input_size = self.hidden_size = self.options.projection_dim
        self.cell_size, self.num_layers = self.options.dim, self.options.n_layers
        self.requires_grad, self.recurrent_dropout_probability = requires_grad, 0.0
        self.precision, self.backend = check_precision(precision), check_backend(backend)

    def load_weights(self, weight_file: str | os.PathLike) -> None:
        """Read the weights of the LSTM layers from a model's HDF5 file, a path or URL."""
        parameters = {name: getattr(self, own) for own, name in self.datasets.items()}
        values = read_datasets(fetch(weight_file), {name: tuple(value.shape) for name, value in parameters.items()})
        for name, parameter in parameters.items():
            with torch.no_grad():
                parameter.copy_(torch.from_numpy(values[name]))
            parameter.requires_grad_(self.requires_grad)

    def forward(self, inputs: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Outputs of every layer: vectors [B, T, input_size], mask [B, T] -> [layers, B, T, 2 hidden_size].

        Zero where the mask is zero. The carried state of a row whose mask is all zero does not change.
        """
        if inputs.dim() != 3 or inputs.shape[2] != self.input_size or not inputs.is_floating_point():
            raise ValueError(f"inputs: expected vectors of shape [batch, tokens, {self.input_size}], "
                             f"got {inputs.dtype} of shape {tuple(inputs.shape)}")
        if mask.shape != inputs.shape[:2]:
            raise ValueError(f"mask: expected shape {tuple(inputs.shape[:2])}, got {tuple(mask.shape)}")
        present = mask > 0
        if (present[:, 1:] & ~present[:, :-1]).any():
            raise ValueError("mask: expected every sentence's tokens before its padding, got a 0 in front of a 1")
        with numerics(self.precision, inputs.device):
            if self.training and self.recurrent_dropout_probability:
                return self._run_dropping(inputs, present)
            schedule = make_schedule(present.sum(1).cpu().numpy())
            order = torch.from_numpy(schedule.tokens).to(inputs.device).long()  # [2, N]
            state = self.begin(schedule.slots.size, None, inputs)
            layers, final = self.run(inputs[present], order, schedule, *state, self.backend, self.precision)
            self.store_state(final)
        padded = inputs.new_zeros(len(layers), mask.numel(), 2 * self.hidden_size)
        positions = present.flatten().nonzero().squeeze(1)
        values = torch.stack([in_text_order(layer, order) for layer in layers]).to(padded)
        return padded.index_copy(1, positions, values).view(len(layers), *mask.shape, -1)

    def _run_dropping(self, inputs: torch.Tensor, present: torch.Tensor) -> torch.Tensor:
        """As `forward`, with recurrent dropout: every direction of every layer has its own mask."""
        initial, _ = self.begin(len(inputs), None, inputs)
        outputs, finals = [], []
        x = [inputs, inputs]
        for layer in range(self.num_layers):
            runs = [self._run_one(x[d], present, [reference.half(values[layer], d) for values in initial], weights,
                                  reverse=d == 1) for d, weights in enumerate(self.layer_weights(layer))]
            x = [out + before if layer else out for (out, _), before in zip(runs, x)]
            outputs.append(torch.cat(x, dim=2))
            finals.append([torch.cat(pair, dim=1) for pair in zip(*(final for _, final in runs))])
        self.store_state(tuple(torch.stack(values) for values in zip(*finals)))
        return torch.stack(outputs) * present[..., None]

    def _run_one(self, x: torch.Tensor, present: torch.Tensor, state, weights: LstmWeights,
                 reverse: bool) -> tuple[torch.Tensor, State]:
        """One direction of one layer: x [B, T, I] -> outputs [B, T, P], final h [B, P] and c [B, D]."""
        h, c = state
        dropout_mask = nn.functional.dropout(torch.ones_like(h), self.recurrent_dropout_probability)
        outputs = [torch.zeros_like(h)] * x.shape[1]
        for step in sorted(range(x.shape[1]), reverse=reverse):
            new_h, new_c = reference.lstm_cell(x[:, step], h, c, *weights, self.options.cell_clip,
                                               self.options.proj_clip)
            here = present[:, step, None]
            outputs[step] = torch.where(here, dropout_mask * new_h, outputs[step])
            h, c = torch.where(here, dropout_mask * new_h, h), torch.where(here, new_c, c)
        return torch.stack(outputs, dim=1), (h, c)


def _check(fits: bool, name: str, expected: str, value) -> None:
    if not fits or isinstance(value, bool):
        raise ConfigurationError(f"{name}: expected {expected}, got {value!r}")


def _random_weights(lstm: LstmOptions, input_size: int) -> dict[str, np.ndarray]:
    """Weights by dataset name: orthogonal blocks for each gate, uniform projections, zero biases."""
    weights, limit = {}, 1 / math.sqrt(lstm.dim)
    for direction, layer in itertools.product(DIRECTIONS, range(lstm.n_layers)):
        widths = (lstm.projection_dim if layer else input_size), lstm.projection_dim
        rows = [torch.cat([nn.init.orthogonal_(torch.empty(width, lstm.dim)) for _ in range(4)], dim=1)
                for width in widths]
        values = {"W_0": torch.cat(rows), "B": torch.zeros(4 * lstm.dim),
                  "W_P_0": torch.empty(lstm.dim, lstm.projection_dim).uniform_(-limit, limit)}
        weights |= {lstm_name(direction, layer, dataset): value.numpy() for dataset, value in values.items()}
    return weights
