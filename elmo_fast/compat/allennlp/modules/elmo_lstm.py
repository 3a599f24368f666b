"""`allennlp.modules.elmo_lstm`: the stack of LSTM layers, over padded vectors and a mask."""

import itertools
import os
from collections.abc import Mapping

import numpy as np
import torch

from elmo_fast.compat.allennlp.modules.lstm_cell_with_projection import (
    LstmCellWithProjection,
    check_lstm,
    random_cell,
)
from elmo_fast.engine.backend import check_backend
from elmo_fast.engine.precision import check_precision
from elmo_fast.files.downloads import fetch
from elmo_fast.model.hooked import is_hooked
from elmo_fast.model.layers.lstm import LstmStack
from elmo_fast.ops.projected_lstm.reference import State, half
from elmo_fast.outside_graphs import outside_graphs
from elmo_fast.weights.datasets import DIRECTIONS, lstm_name, read_datasets
from elmo_fast.weights.options import LstmOptions, Options


class ElmoLstm(LstmStack):
    """Bidirectional LSTM layers with projection, clipping and skip connections. From AllenNLP's `ElmoLstm`.

    New weights are random and trainable; those of `load_weights` are trainable if `requires_grad`. States are carried
    from call to call unless `stateful` is set to False. In training, `recurrent_dropout_probability` drops the same
    values of h at every step of a sentence; such a run uses plain torch. `precision` and `backend` are those of `BiLm`.
    """

    def __init__(self, input_size: int, hidden_size: int, cell_size: int, num_layers: int, requires_grad: bool = False,
                 recurrent_dropout_probability: float = 0.0, memory_cell_clip_value: float | None = None,
                 state_projection_clip_value: float | None = None, *, precision: str = "highest",
                 backend: str = "auto"):
        check_lstm(recurrent_dropout_probability, memory_cell_clip_value, state_projection_clip_value,
                   input_size=input_size, hidden_size=hidden_size, cell_size=cell_size, num_layers=num_layers)
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

    @property
    def forward_layers(self) -> list[LstmCellWithProjection]:
        """The forward direction of every layer, with the stack's parameters. `forward` calls it if it has hooks."""
        return self._cells(0)

    @property
    def backward_layers(self) -> list[LstmCellWithProjection]:
        """The backward direction of every layer."""
        return self._cells(1)

    def _cells(self, direction: int) -> list[LstmCellWithProjection]:
        cells = self.__dict__.setdefault("_kept_cells", {})  # not submodules: the parameters belong to the stack
        for layer in range(self.num_layers):
            cell = LstmCellWithProjection.of_stack(self, layer, direction)
            cells.setdefault((layer, direction), cell).copy_from(cell)
        return [cells[layer, direction] for layer in range(self.num_layers)]

    @property
    def unregistered_parts(self) -> list[LstmCellWithProjection]:
        """The cells that `forward_layers` and `backward_layers` have made."""
        return list(self.__dict__.get("_kept_cells", {}).values())

    def load_weights(self, weight_file: str | os.PathLike) -> None:
        """Read the weights of the LSTM layers from a model's HDF5 file, a path or URL."""
        parameters = {name: getattr(self, attribute) for attribute, name in self.datasets.items()}
        values = read_datasets(fetch(weight_file), {name: tuple(value.shape) for name, value in parameters.items()})
        for name, parameter in parameters.items():
            with torch.no_grad():
                parameter.copy_(torch.from_numpy(values[name]))
            parameter.requires_grad_(self.requires_grad)

    @outside_graphs
    def forward(self, inputs: torch.Tensor, mask: torch.Tensor, initial_state: State | None = None,
                carried: bool | None = None) -> torch.Tensor:
        """Return the outputs of every layer: inputs [B, T, input_size], mask [B, T] -> [layers, B, T, 2 hidden_size].

        Outputs are zero where the mask is zero. The carried state of a row without tokens does not change.
        """
        cells, carried = self.unregistered_parts, self._is_carried(initial_state, carried)
        if (self.training and self.recurrent_dropout_probability) or (cells and is_hooked(*cells)):
            with self.exclusive(carried):
                return self._run_cells(inputs, self._present(inputs, mask), initial_state, carried)
        return super().forward(inputs, mask, initial_state, carried)

    def _run_cells(self, inputs: torch.Tensor, present: torch.Tensor, initial_state: State | None,
                   carried: bool) -> torch.Tensor:
        """Like `forward`, but calls `forward_layers` and `backward_layers` as AllenNLP does, longest sentence first.

        In training every direction of every layer draws its own dropout mask.
        """
        lengths, order = present.sum(1).sort(descending=True, stable=True)
        order = order[lengths > 0]
        batch_lengths = lengths[lengths > 0].cpu()
        padded = inputs.new_zeros(self.num_layers, *present.shape, 2 * self.hidden_size)
        if not len(batch_lengths):
            return padded
        is_first = initial_state is None and not (carried and self._states is not None)
        initial, _ = self.begin(len(inputs), inputs, carried, initial_state)
        outputs, finals = [], []
        x = [inputs[order, : batch_lengths[0]]] * 2
        for layer, cells in enumerate(zip(self.forward_layers, self.backward_layers)):
            starts = [None if is_first else tuple(half(values[layer], d)[None, order] for values in initial)
                      for d in DIRECTIONS]
            runs = [cell(x[d], batch_lengths, starts[d]) for d, cell in enumerate(cells)]
            x = [out + skip if layer else out for (out, _), skip in zip(runs, x)]
            outputs.append(torch.cat(x, dim=2))
            finals.append([torch.cat(pair, dim=2)[0] for pair in zip(*(final for _, final in runs))])
        if carried:
            self.store_state(tuple(value.index_copy(1, order, torch.stack(new))
                                   for value, new in zip(initial, zip(*finals))))
        padded[:, order, : batch_lengths[0]] = torch.stack(outputs)
        return padded.view_as(padded)


def _random_weights(lstm: LstmOptions, input_size: int) -> dict[str, np.ndarray]:
    """Draw random weights by dataset name."""
    weights = {}
    for direction, layer in itertools.product(DIRECTIONS, range(lstm.n_layers)):
        values = random_cell(lstm.projection_dim if layer else input_size, lstm.projection_dim, lstm.dim)
        weights |= {lstm_name(direction, layer, dataset): value for dataset, value in values.items()}
    return weights
