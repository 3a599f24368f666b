"""`allennlp.modules.lstm_cell_with_projection`: one direction of an LSTM layer, in plain torch."""

import math
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import nn

from elmo_fast.arguments import check_count, shown
from elmo_fast.compat.allennlp.common.checks import raises_either
from elmo_fast.errors import ConfigurationError
from elmo_fast.model.layers.lstm import LstmStack, cell_conversions
from elmo_fast.model.layers.state_dict import AllenNlpStateDict, Conversion
from elmo_fast.ops.numerics import numerics
from elmo_fast.ops.projected_lstm import reference
from elmo_fast.ops.projected_lstm.reference import State
from elmo_fast.outside_graphs import outside_graphs
from elmo_fast.weights.datasets import LSTM_DATASETS


class LstmCellWithProjection(AllenNlpStateDict):
    """An LSTM over padded vectors, with projection and clipping. From AllenNLP's `LstmCellWithProjection`.

    Parameters have bilm-tf's layout: `W_0` [input_size + P, 4 D], `B` [4 D], `W_P_0` [D, P]; `state_dict()` has
    AllenNLP's. In training, `recurrent_dropout_probability` drops the same values of h at every step of a sentence.
    """

    def __init__(self, input_size: int, hidden_size: int, cell_size: int, go_forward: bool = True,
                 recurrent_dropout_probability: float = 0.0, memory_cell_clip_value: float | None = None,
                 state_projection_clip_value: float | None = None):
        check_lstm(recurrent_dropout_probability, memory_cell_clip_value, state_projection_clip_value,
                   input_size=input_size, hidden_size=hidden_size, cell_size=cell_size)
        weights = random_cell(input_size, hidden_size, cell_size)
        super().__init__({name: name for name in weights}, weights, True)
        self.input_size, self.hidden_size, self.cell_size, self.go_forward = (input_size, hidden_size, cell_size,
                                                                              go_forward)
        self.recurrent_dropout_probability = recurrent_dropout_probability
        self.memory_cell_clip_value = memory_cell_clip_value
        self.state_projection_clip_value = state_projection_clip_value

    @classmethod
    def of_stack(cls, stack: LstmStack, layer: int, direction: int) -> "LstmCellWithProjection":
        """Make the cell of a direction of a layer of an `ElmoLstm`; it shares the parameters of the stack."""
        cell, options = cls.__new__(cls), stack.options
        nn.Module.__init__(cell)
        for name in LSTM_DATASETS:
            cell.register_parameter(name, getattr(stack, f"{name}_{direction}_{layer}", None))
        cell.datasets = {name: name for name, value in cell._parameters.items() if value is not None}
        cell.hidden_size, cell.cell_size, cell.go_forward = options.projection_dim, options.dim, direction == 0
        cell.input_size = len(cell.W_0) - cell.hidden_size
        cell.recurrent_dropout_probability = stack.recurrent_dropout_probability
        cell.memory_cell_clip_value, cell.state_projection_clip_value = options.cell_clip, options.proj_clip
        return cell.train(stack.training)

    def copy_from(self, cell: "LstmCellWithProjection") -> None:
        """Copy the attributes of another cell, but keep the hooks."""
        for name, value in vars(cell).items():
            if "hook" not in name:
                self.__dict__[name] = value

    @outside_graphs
    def forward(self, inputs: torch.Tensor, batch_lengths: Sequence[int],
                initial_state: State | None = None) -> tuple[torch.Tensor, State]:
        """Return outputs [B, T, P], zero past a sentence's end, and the final state, for inputs [B, T, I].

        `batch_lengths` are the numbers of tokens, in any order. States are h [1, B, P] and c [1, B, D].
        """
        if inputs.dim() != 3 or inputs.shape[2] != self.input_size or len(batch_lengths) != len(inputs):
            raise ValueError(f"inputs: expected {len(batch_lengths)} sentences of vectors of {self.input_size} values, "
                             f"got shape {tuple(inputs.shape)}")
        lengths = torch.as_tensor(batch_lengths, device=inputs.device)
        present = torch.arange(inputs.shape[1], device=inputs.device) < lengths[:, None]
        if initial_state is None:
            initial_state = tuple(inputs.new_zeros(1, len(inputs), size) for size in (self.hidden_size, self.cell_size))
        with numerics("highest", inputs.device):
            outputs, final = self.run(inputs, present, tuple(value.squeeze(0) for value in initial_state))
        return outputs, tuple(value[None] for value in final)

    def run(self, x: torch.Tensor, present: torch.Tensor, state: State) -> tuple[torch.Tensor, State]:
        """x [B, T, I], mask `present` bool [B, T] -> outputs [B, T, P], final h [B, P] and c [B, D]."""
        h, c = state
        dropout_mask = nn.functional.dropout(torch.ones_like(h), self.recurrent_dropout_probability, self.training)
        outputs = [torch.zeros_like(h)] * x.shape[1]
        for step in sorted(range(x.shape[1]), reverse=not self.go_forward):
            new_h, new_c = reference.lstm_cell(x[:, step], h, c, self.W_0, self.B, self.W_P_0,
                                               self.memory_cell_clip_value, self.state_projection_clip_value)
            is_token = present[:, step, None]
            outputs[step] = torch.where(is_token, dropout_mask * new_h, outputs[step])
            h, c = torch.where(is_token, dropout_mask * new_h, h), torch.where(is_token, new_c, c)
        return torch.stack(outputs, dim=1), (h, c)

    def conversions(self) -> Iterator[Conversion]:
        return cell_conversions(self.datasets, self.hidden_size)


@raises_either
def check_lstm(dropout: float, cell_clip: float | None, proj_clip: float | None, **sizes: int) -> None:
    """Raise `ConfigurationError` for arguments of AllenNLP's LSTMs that are out of range."""
    for name, size in sizes.items():
        check_count(name, size, ConfigurationError)
    for name, clip in (("memory_cell_clip_value", cell_clip), ("state_projection_clip_value", proj_clip)):
        _check(clip is None or clip > 0, name, "a number above 0, or None for no clipping", clip)
    _check(0 <= dropout < 1, "recurrent_dropout_probability", "a number from 0 to below 1", dropout)


def _check(fits: bool, name: str, expected: str, value) -> None:
    if not fits or isinstance(value, bool):
        raise ConfigurationError(f"{name}: expected {expected}, got {shown(value)}")


def random_cell(input_size: int, projection_dim: int, dim: int) -> dict[str, np.ndarray]:
    """Draw random weights by name: an orthogonal block per gate, uniform projections, zero biases."""
    limit = 1 / math.sqrt(dim)
    rows = [torch.cat([nn.init.orthogonal_(torch.empty(width, dim)) for _ in range(4)], dim=1)
            for width in (input_size, projection_dim)]
    values = {"W_0": torch.cat(rows), "B": torch.zeros(4 * dim),
              "W_P_0": torch.empty(dim, projection_dim).uniform_(-limit, limit)}
    return {name: value.numpy() for name, value in values.items()}
