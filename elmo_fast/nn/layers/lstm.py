"""`ElmoLstm`: the stack of two-direction LSTM layers with AllenNLP's parameters."""

import os
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from torch import nn

from elmo_fast.engine import model as engine
from elmo_fast.engine.backend import check_backend, effective_precision
from elmo_fast.engine.native import PackedWeights, on_this_machine
from elmo_fast.engine.precision import check_precision
from elmo_fast.engine.schedule import Schedule, make_schedule
from elmo_fast.files.downloads import fetch
from elmo_fast.nn.at_rest import AtRest, Now
from elmo_fast.nn.layers.batch_layout import all_in_text_order, layers_to_write
from elmo_fast.nn.layers.carried import CarriedStates, Stateful
from elmo_fast.nn.layers.cell import LstmCellWithProjection, check_lstm
from elmo_fast.nn.layers.layout import cell_weights
from elmo_fast.nn.layers.packed import Packed
from elmo_fast.nn.outside_graphs import outside_graphs
from elmo_fast.ops.backend import needs_gradient, resolve
from elmo_fast.ops.device import refuse_capture, to_device
from elmo_fast.ops.numerics import full_precision, numerics
from elmo_fast.ops.projected_lstm import projected_lstm
from elmo_fast.ops.projected_lstm.reference import LstmWeights, State, half
from elmo_fast.weights.datasets import DIRECTIONS, LSTM_DATASETS, lstm_name, read_datasets
from elmo_fast.weights.options import LstmOptions, Options

Layer = tuple[LstmWeights, LstmWeights]


class ElmoLstm(Packed, Stateful):
    """Bidirectional LSTM layers with projection, clipping and skip connections. From AllenNLP's `ElmoLstm`.

    The parts `forward_layer_k` and `backward_layer_k` are cells with AllenNLP's parameters. New weights are random and
    trainable; those of `load_weights` are trainable if `requires_grad`. States are carried from call to call unless
    `stateful` is set to False. In training, `recurrent_dropout_probability` drops the same values of h at every step of
    a sentence; such a run uses plain torch. `precision` and `backend` are those of `BiLm`.
    """

    def __init__(self, input_size: int, hidden_size: int, cell_size: int, num_layers: int, requires_grad: bool = False,
                 recurrent_dropout_probability: float = 0.0, memory_cell_clip_value: float | None = None,
                 state_projection_clip_value: float | None = None, *, precision: str = "highest",
                 backend: str = "auto"):
        check_lstm(recurrent_dropout_probability, memory_cell_clip_value, state_projection_clip_value,
                   input_size=input_size, hidden_size=hidden_size, cell_size=cell_size, num_layers=num_layers)
        lstm = LstmOptions(cell_size, hidden_size, num_layers, True, memory_cell_clip_value,
                           state_projection_clip_value)
        cells = [LstmCellWithProjection(hidden_size if layer else input_size, hidden_size, cell_size, go_forward,
                                        recurrent_dropout_probability, memory_cell_clip_value,
                                        state_projection_clip_value)
                 for layer in range(num_layers) for go_forward in (True, False)]
        super().__init__()
        self._set(lstm, cells, requires_grad, "carry", precision, backend)
        self.recurrent_dropout_probability = recurrent_dropout_probability

    @classmethod
    @torch.inference_mode(False)
    def of_weights(cls, options: LstmOptions, weights: Mapping[str, np.ndarray], requires_grad: bool = False,
                   state: str = "carry", precision: str = "highest", backend: str = "auto") -> "ElmoLstm":
        """A stack with weights by dataset name, which are copied."""
        stack, cells = cls.__new__(cls), []
        nn.Module.__init__(stack)
        for layer in range(options.n_layers):
            for direction in DIRECTIONS:
                values = [weights.get(lstm_name(direction, layer, name)) for name in LSTM_DATASETS]
                cells.append(LstmCellWithProjection.of_weights(
                    [None if value is None else torch.tensor(value) for value in values], options, not direction,
                    requires_grad))
        stack._set(options, cells, requires_grad, state, precision, backend)
        stack.recurrent_dropout_probability = 0.0
        return stack

    def _set(self, options: LstmOptions, cells: Sequence[LstmCellWithProjection], requires_grad: bool, state: str,
             precision: str, backend: str) -> None:
        """Set the attributes; `cells` are ordered by layer, the forward direction first."""
        for number, cell in enumerate(cells):
            self.add_module(f"{('forward', 'backward')[number % 2]}_layer_{number // 2}", cell)
        self.options, self.requires_grad = options, requires_grad
        self.input_size, self.hidden_size = cells[0].input_size, options.projection_dim
        self.cell_size, self.num_layers = options.dim, options.n_layers
        self.precision, self.backend = check_precision(precision), check_backend(backend)
        self.state, self.carried, self._at_rest = state, CarriedStates(), AtRest()
        self.state_sizes = options.n_layers, 2 * options.projection_dim, 2 * options.dim

    @property
    def forward_layers(self) -> list[nn.Module]:
        """The forward direction of every layer."""
        return [getattr(self, f"forward_layer_{layer}") for layer in range(self.num_layers)]

    @property
    def backward_layers(self) -> list[nn.Module]:
        """The backward direction of every layer."""
        return [getattr(self, f"backward_layer_{layer}") for layer in range(self.num_layers)]

    def load_weights(self, weight_file: str | os.PathLike) -> None:
        """Read the weights of the LSTM layers from a model's HDF5 file, a path or URL."""
        shapes = {name: tuple(value.shape) for name, value in self.weights().items()}
        values = read_datasets(fetch(weight_file), shapes)
        for layer, cells in enumerate(zip(self.forward_layers, self.backward_layers)):
            for direction, cell in enumerate(cells):
                of_cell = [torch.from_numpy(values[name]) if name in shapes else None for name in (
                    lstm_name(direction, layer, dataset) for dataset in LSTM_DATASETS)]
                for parameter, value in zip(cell.parameters_in_order(), cell_weights(*of_cell)):
                    if parameter is not None:
                        with torch.no_grad():
                            parameter.copy_(value)
                        parameter.requires_grad_(self.requires_grad)
                cell._forget_bias = of_cell[1].chunk(4)[2].clone()

    # ---- weights -----------------------------------------------------------------------------------------------------

    def now(self) -> Now:
        """As in `Packed`; the cells also have to be without dropout, and with the same clips."""
        now, clips = super().now(), (self.options.cell_clip, self.options.proj_clip)
        now.is_plain = now.is_plain and not (self.training and self.recurrent_dropout_probability) and all(
            (cell.memory_cell_clip_value, cell.state_projection_clip_value) == clips
            for cell in (*self.forward_layers, *self.backward_layers))
        return now

    def layer_weights(self) -> list[Layer]:
        """(W, B, W_P or None) of both directions of every layer, in bilm-tf's layout.

        Computed once for parameters at rest, and in every call while gradients are recorded.
        """
        def converted() -> list[Layer]:
            return [(forward.weights(), backward.weights())
                    for forward, backward in zip(self.forward_layers, self.backward_layers)]

        now = self.now()
        return converted() if needs_gradient(now.tensors) else now.get("layers", converted)

    def weights(self) -> dict[str, torch.Tensor]:
        """Weights by dataset name, layer by layer in each direction, detached."""
        with torch.no_grad():
            of_cell = [(lstm_name(direction, layer, name), value) for direction in DIRECTIONS
                       for layer, cell in enumerate((self.forward_layers, self.backward_layers)[direction])
                       for name, value in zip(LSTM_DATASETS, cell.weights())]
        return {name: value for name, value in of_cell if value is not None}

    def _packed(self, precision: str, now: Now) -> PackedWeights:
        def pack() -> PackedWeights:
            weights = {name: value.float().numpy() for name, value in self.weights().items()}
            return PackedWeights(Options(self.options, None), weights, precision)

        return now.get(on_this_machine(precision), pack)

    # ---- runs --------------------------------------------------------------------------------------------------------

    def can_write(self, backend: str, now: Now | None = None) -> bool:
        """Whether `write` runs with this `backend`: in the C++ engine, on the CPU and without gradients."""
        like = self.like
        if like.device.type != "cpu" or like.dtype == torch.float64 or needs_gradient((now or self.now()).tensors):
            return False
        if self.input_size != self.hidden_size:  # of a stack by itself
            return False
        cell = self.forward_layer_0
        lacking = "projection to as many values as there are cells" if (
            cell.state_projection is not None and cell.hidden_size == cell.cell_size) else None
        return resolve("projected_lstm", backend, full_precision(like), unsupported=lacking) == "native"

    def write(self, vectors: torch.Tensor, rows: np.ndarray, schedule: Schedule, state: engine.RunState,
              addresses: np.ndarray, precision: str = "highest", now: Now | None = None) -> State:
        """As `run` in evaluation, with outputs written at `addresses` uint64 [L, 2, S] (see `engine.Model.run`).

        Only where `can_write`. Returns the final state.
        """
        packed = self._packed(effective_precision(precision), now or self.now())
        begin = engine.RunState(*(part and tuple(value.detach().float().contiguous().numpy() for value in part)
                                  for part in state))
        last = packed.run(vectors.detach().float().numpy(), rows, schedule, begin, addresses).last
        return tuple(map(torch.from_numpy, last))

    def run(self, vectors: torch.Tensor, rows: torch.Tensor, schedule: Schedule, state: engine.RunState,
            backend: str = "auto", precision: str = "highest") -> tuple[list[torch.Tensor], State]:
        """`run_layers` with the current weights; carried states do not change."""
        return run_layers(self.layer_weights(), self.options, vectors, rows, schedule, state, backend=backend,
                          precision=precision)

    def run_in_text_order(self, vectors: torch.Tensor, index: torch.Tensor, schedule: Schedule, state: engine.RunState,
                          backend: str = "auto", precision: str = "highest", mask: torch.Tensor | None = None,
                          now: Now | None = None) -> tuple[Sequence[torch.Tensor], State]:
        """The token layer and all layers of sentences laid end to end, [N, 2 P] each, and the final state.

        `index` int [N], best on the host, is the row of `vectors` [R, P] at each position. With `mask` bool [M], on
        the host, the positions are where it is True of [M, 2 P], and the rest is zero. Without gradients the C++ engine
        writes the layers where it can run; otherwise the ops run.
        """
        order, now = schedule.tokens, now or self.now()
        rows = index[to_device(order, index.device).long()]  # [2, S]
        places, size = (None, len(index)) if mask is None else (mask.nonzero().squeeze(1), len(mask))
        if self.can_write(backend, now) and not needs_gradient([vectors]):
            tokens = vectors.index_select(0, index)
            layers, addresses = layers_to_write(tokens, order, self.num_layers + 1, places, size)
            return layers, self.write(vectors, rows.numpy(), schedule, state, addresses, precision, now)
        with numerics(precision, vectors.device):
            layers, last = self.run(vectors, rows, schedule, state, backend, precision)
        return all_in_text_order(vectors, index, layers, order, places, size), last

    @outside_graphs
    def forward(self, inputs: torch.Tensor, mask: torch.Tensor, initial_state: State | None = None,
                carried: bool | None = None) -> torch.Tensor:
        """Outputs of every layer: vectors [B, T, I], mask [B, T] -> [layers, B, T, 2 P], zero where the mask is zero.

        The initial states are those of `begin`; `carried` is by default True if the stack is `stateful` and no
        `initial_state` is given. The stored state of a row whose mask is all zero does not change. AllenNLP's call.
        """
        refuse_capture(inputs.device)
        carried = self.stateful and initial_state is None if carried is None else carried
        present = self._present(inputs, mask)
        with self.exclusive(carried), numerics(self.precision, inputs.device):
            if not (now := self.now()).is_plain:
                return self._run_cells(inputs, present, initial_state, carried)
            schedule = make_schedule(present.sum(1).cpu().numpy())
            vectors = full_precision(inputs)[present]
            state = self.begin(schedule.slots.size, vectors, carried, initial_state)
            (_, *layers), final = self.run_in_text_order(vectors, torch.arange(len(vectors)), schedule, state,
                                                         self.backend, self.precision, present.flatten().cpu(), now)
            if self.stores(carried, initial_state):
                self.store_state(final)
        # Hooks of `register_backward_hook` get the gradients of the last operation.
        return torch.stack(layers).to(inputs.dtype).view(len(layers), *mask.shape, 2 * self.hidden_size)

    def _present(self, inputs: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Where the mask is not zero, bool [B, T]; `ValueError` for inputs or a mask of wrong type or shape."""
        if inputs.dim() != 3 or inputs.shape[2] != self.input_size or not inputs.is_floating_point():
            raise ValueError(f"inputs: expected vectors of shape [batch, tokens, {self.input_size}], "
                             f"got {inputs.dtype} of shape {tuple(inputs.shape)}")
        if mask.shape != inputs.shape[:2]:
            raise ValueError(f"mask: expected shape {tuple(inputs.shape[:2])}, got {tuple(mask.shape)}")
        present = mask > 0
        if (present[:, 1:] & ~present[:, :-1]).any():
            raise ValueError("mask: expected every sentence's tokens before its padding, got a 0 in front of a 1")
        return present

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
            skips = layer > 0 and self.options.use_skip_connections
            x = [out + below if skips else out for (out, _), below in zip(runs, x)]
            outputs.append(torch.cat(x, dim=2))
            finals.append([torch.cat(pair, dim=2)[0] for pair in zip(*(final for _, final in runs))])
        if self.stores(carried, initial_state):
            self.store_state(tuple(value.index_copy(1, order, torch.stack(new))
                                   for value, new in zip(initial, zip(*finals))))
        padded[:, order, : batch_lengths[0]] = torch.stack(outputs)
        return padded.view_as(padded)


def run_layers(layers: Sequence[Layer], options: LstmOptions, vectors: torch.Tensor, rows: torch.Tensor | None,
               schedule: Schedule, state: engine.RunState, *, backend: str = "auto", precision: str = "highest",
               drop: Callable[[torch.Tensor], torch.Tensor] | None = None) -> tuple[list[torch.Tensor], State]:
    """Outputs of every layer at every packed row [S, 2 P], and the final state, by the ops, with gradients.

    `vectors` [R, P] are token vectors, `rows` int [2, S] the row that each direction reads at each packed row. Without
    `rows`, `vectors` are the inputs of every packed row, [S, 2 P]. The final state is (h [L, slots, 2 P], c [L, slots,
    2 D]). `drop` is a dropout applied to each layer's input; a skip connection adds the input after dropout.
    """
    outputs, finals, x, bounded = [], [], vectors, False
    for number, weights in enumerate(layers):
        x = x if drop is None else drop(x)
        out, final = projected_lstm(
            x, None if number else rows, schedule, (state.last[0][number], state.last[1][number]), weights,
            backend=backend, bounded=bounded, precision=precision, cell_clip=options.cell_clip,
            proj_clip=options.proj_clip,
            initial_state=state.initial and (state.initial[0][number], state.initial[1][number]))
        skips = number > 0 and options.use_skip_connections
        x, bounded = out + x if skips else out, not skips and drop is None
        outputs.append(x)
        finals.append(final)
    return outputs, tuple(map(torch.stack, zip(*finals)))


ElmoLstm._forwards = frozenset({ElmoLstm.forward, LstmCellWithProjection.forward, nn.Linear.forward})
