"""`LstmCellWithProjection`: one direction of an LSTM layer, with AllenNLP's parameters, in plain torch."""

from collections.abc import Sequence

import torch
from torch import nn

from elmo_fast.arguments import check_count, shown
from elmo_fast.errors import ConfigurationError
from elmo_fast.nn.layers import layout
from elmo_fast.nn.outside_graphs import OutsideGraphs, outside_graphs
from elmo_fast.ops.numerics import full_precision, numerics
from elmo_fast.ops.projected_lstm.reference import LstmWeights, State, clip
from elmo_fast.weights.options import LstmOptions


class LstmCellWithProjection(OutsideGraphs):
    """An LSTM over padded vectors, with projection and clipping. From AllenNLP's `LstmCellWithProjection`.

    `input_linearity`, `state_linearity` (with the bias) and `state_projection` are `nn.Linear`s, the last None for
    cells whose h is not projected. Gates are i, f, j, o, and the bias of f includes the +1. In training,
    `recurrent_dropout_probability` drops the same values of h at every step of a sentence.
    """

    def __init__(self, input_size: int, hidden_size: int, cell_size: int, go_forward: bool = True,
                 recurrent_dropout_probability: float = 0.0, memory_cell_clip_value: float | None = None,
                 state_projection_clip_value: float | None = None):
        check_lstm(recurrent_dropout_probability, memory_cell_clip_value, state_projection_clip_value,
                   input_size=input_size, hidden_size=hidden_size, cell_size=cell_size)
        super().__init__()
        self.input_size, self.hidden_size, self.cell_size = input_size, hidden_size, cell_size
        self.go_forward, self.recurrent_dropout_probability = go_forward, recurrent_dropout_probability
        self.memory_cell_clip_value = memory_cell_clip_value
        self.state_projection_clip_value = state_projection_clip_value
        self.input_linearity = nn.Linear(input_size, 4 * cell_size, bias=False)
        self.state_linearity = nn.Linear(hidden_size, 4 * cell_size)
        self.state_projection = nn.Linear(cell_size, hidden_size, bias=False)
        self._forget_bias: torch.Tensor | None = None
        self.reset_parameters()

    @classmethod
    def of_weights(cls, weights: LstmWeights, options: LstmOptions, go_forward: bool,
                   requires_grad: bool) -> "LstmCellWithProjection":
        """The cell of bilm-tf's W [I + P, 4 D], B [4 D] and W_P [D, P] or None, which are copied."""
        cell = cls.__new__(cls)
        nn.Module.__init__(cell)
        inputs, state, bias, projection = layout.cell_weights(*weights)
        cell.input_size, cell.hidden_size, cell.cell_size = inputs.shape[1], state.shape[1], len(bias) // 4
        cell.go_forward, cell.recurrent_dropout_probability = go_forward, 0.0
        cell.memory_cell_clip_value, cell.state_projection_clip_value = options.cell_clip, options.proj_clip
        cell.input_linearity = linear_of(inputs, None, requires_grad)
        cell.state_linearity = linear_of(state, bias, requires_grad)
        cell.state_projection = None if projection is None else linear_of(projection, None, requires_grad)
        cell._forget_bias = weights[1].chunk(4)[2].clone()
        return cell

    def reset_parameters(self) -> None:
        """Draw new weights: an orthogonal block per gate, uniform projections; the forget gate's bias is 1."""
        with torch.no_grad():
            for linear in (self.input_linearity, self.state_linearity):
                for block in linear.weight.chunk(4):
                    nn.init.orthogonal_(block)
            self.state_linearity.bias.zero_().chunk(4)[1].fill_(1)

    def parameters_in_order(self) -> list[torch.Tensor | None]:
        """The tensors that `layout.lstm_weights` takes."""
        return [self.input_linearity.weight, self.state_linearity.weight, self.state_linearity.bias,
                None if self.state_projection is None else self.state_projection.weight]

    def weights(self) -> LstmWeights:
        """(W, B, W_P or None) in bilm-tf's layout, differentiable if gradients are recorded.

        Otherwise a forget bias that was not edited has the bits that were read: adding 1 had rounded it.
        """
        inputs, state, bias, projection = self.parameters_in_order()
        bias = full_precision(bias)  # in 16 bits the difference would be rounded
        w, b, w_p = layout.lstm_weights(inputs, state, bias, projection)
        is_read = self._forget_bias is not None and self.state_linearity.bias.dtype == torch.float32
        if is_read and not torch.is_grad_enabled():
            read, (i, j, f, o) = self._forget_bias.to(b.device), b.chunk(4)
            b = torch.cat([i, j, torch.where(bias.chunk(4)[1] == read + 1, read, f), o])
        return w, b, w_p

    @outside_graphs
    def forward(self, inputs: torch.Tensor, batch_lengths: Sequence[int],
                initial_state: State | None = None) -> tuple[torch.Tensor, State]:
        """Outputs [B, T, P], zero past a sentence's end, and the final state, for inputs [B, T, I].

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
            outputs, final = self._run(inputs, present, tuple(value.squeeze(0) for value in initial_state))
        return outputs, tuple(value[None] for value in final)

    def _run(self, x: torch.Tensor, present: torch.Tensor, state: State) -> tuple[torch.Tensor, State]:
        """x [B, T, I], mask `present` bool [B, T] -> outputs [B, T, P], final h [B, P] and c [B, D]."""
        h, c = state
        kept, dropout = None, self.recurrent_dropout_probability
        if self.training and dropout:
            kept = (torch.rand(h.shape) > dropout).to(h) / (1 - dropout)  # AllenNLP's draws
        outputs = [torch.zeros_like(h)] * x.shape[1]
        projected = self.input_linearity(x)  # [B, T, 4 D]
        for step in sorted(range(x.shape[1]), reverse=not self.go_forward):
            i, f, j, o = (projected[:, step] + self.state_linearity(h)).chunk(4, dim=1)
            new_c = clip(torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(j), self.memory_cell_clip_value)
            new_h = torch.sigmoid(o) * torch.tanh(new_c)
            if self.state_projection is not None:
                new_h = clip(self.state_projection(new_h), self.state_projection_clip_value)
            new_h = new_h if kept is None else new_h * kept
            is_token = present[:, step, None]
            outputs[step] = torch.where(is_token, new_h, outputs[step])
            h, c = torch.where(is_token, new_h, h), torch.where(is_token, new_c, c)
        return torch.stack(outputs, dim=1), (h, c)


def linear_of(weight: torch.Tensor, bias: torch.Tensor | None, requires_grad: bool) -> nn.Linear:
    """An `nn.Linear` with these values [n, m] and [n]."""
    linear = nn.Linear(weight.shape[1], len(weight), bias is not None, device="meta")  # draws no values
    linear.weight = nn.Parameter(weight, requires_grad)
    if bias is not None:
        linear.bias = nn.Parameter(bias, requires_grad)
    return linear


def check_lstm(dropout: float, cell_clip: float | None, proj_clip: float | None, **sizes: int) -> None:
    """Raise `ConfigurationError` for arguments of AllenNLP's LSTMs that are out of range."""
    for name, size in sizes.items():
        check_count(name, size, ConfigurationError)
    for name, limit in (("memory_cell_clip_value", cell_clip), ("state_projection_clip_value", proj_clip)):
        _check(limit is None or limit > 0, name, "a number above 0, or None for no clipping", limit)
    _check(0 <= dropout < 1, "recurrent_dropout_probability", "a number from 0 to below 1", dropout)


def _check(fits: bool, name: str, expected: str, value) -> None:
    if not fits or isinstance(value, bool):
        raise ConfigurationError(f"{name}: expected {expected}, got {shown(value)}")
