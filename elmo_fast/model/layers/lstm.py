"""The stack of two-direction LSTM layers, and the states it carries between calls."""

import contextlib
import functools
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch

from elmo_fast.arguments import STATES, check_choice
from elmo_fast.engine.schedule import Schedule, make_schedule
from elmo_fast.model.layers import state_dict
from elmo_fast.model.layers.batch_layout import in_text_order
from elmo_fast.model.layers.carried import CarriedStates
from elmo_fast.model.layers.state_dict import AllenNlpStateDict, Conversion
from elmo_fast.ops.backend import needs_gradient, resolve
from elmo_fast.ops.calling_thread import stacked, sum_of
from elmo_fast.ops.device import refuse_capture
from elmo_fast.ops.numerics import full_precision, numerics
from elmo_fast.ops.projected_lstm import projected_lstm, unsupported_weights
from elmo_fast.ops.projected_lstm.reference import LstmWeights, State
from elmo_fast.ops.projected_lstm.stack import flat_stack, write_outputs
from elmo_fast.ops.weight_snapshot import Tensors
from elmo_fast.outside_graphs import outside_graphs
from elmo_fast.weights.datasets import DIRECTIONS, LSTM_DATASETS, lstm_name
from elmo_fast.weights.options import Options


class RunState(NamedTuple):
    """The state of the slots: `last` (h [L, slots, 2 P], c [L, slots, 2 D]) is the state after their last step.

    `initial` (h [L, 2 P], c [L, 2 D]) is the state that every sentence starts from, None where states are carried.
    """

    last: State
    initial: State | None


class LstmStack(AllenNlpStateDict):
    """LSTM layers with projection, clipping and skip connections; the two directions are independent in all layers.

    Parameters have bilm-tf's layout: `W_0_{d}_{l}` [2 P, 4 D] with gates i, j, f, o, `B_{d}_{l}` [4 D] without
    the forget gate's +1, `W_P_0_{d}_{l}` [D, P]. `stateful`, `reset_states()` and `_states` are AllenNLP's.
    """

    precision, backend = "highest", "auto"  # for `forward`; a biLM sets its values
    B_0_0: torch.nn.Parameter

    def __init__(self, options: Options, weights: Mapping[str, np.ndarray], requires_grad: bool = False,
                 state: str = "carry"):
        names = {f"{dataset}_{direction}_{layer}": lstm_name(direction, layer, dataset) for direction in DIRECTIONS
                 for layer in range(options.lstm.n_layers) for dataset in LSTM_DATASETS}
        super().__init__({name: dataset for name, dataset in names.items() if dataset in weights}, weights,
                         requires_grad)
        self.options = options.lstm
        self.state = state
        self.carried = CarriedStates()

    @property
    def state(self) -> str:
        """`carry`, `zero` or `warm`: where a sentence starts (see `BiLm`)."""
        return self._state

    @state.setter
    def state(self, state: str) -> None:
        self._state = check_choice("state", state, STATES)

    @property
    def stateful(self) -> bool:
        """Whether states are carried from batch to batch. Setting it to True chooses `carry`, to False `zero`."""
        return self.state == "carry"

    @stateful.setter
    def stateful(self, stateful: bool) -> None:
        if bool(stateful) != self.stateful:
            self.state = "carry" if stateful else "zero"

    @property
    def _states(self) -> State | None:
        """Carried states, (h [L, rows, 2 P], c [L, rows, 2 D]) with the forward half first, or None."""
        return self.carried.value

    @_states.setter
    def _states(self, carried: State | None) -> None:
        if carried is not None:
            h, c = carried
            layers, h_dim, c_dim = self.state_sizes
            fits = h.dim() == c.dim() == 3 and h.shape[::2] == (layers, h_dim) and c.shape[::2] == (layers, c_dim)
            if not fits or h.shape[1] != c.shape[1]:
                raise ValueError(f"_states: expected (h [{layers}, rows, {h_dim}], c [{layers}, rows, {c_dim}]), "
                                 f"got {tuple(h.shape)} and {tuple(c.shape)}")
            carried = h, c
        with self.carried.lock:
            self.carried.value = carried

    @property
    def state_sizes(self) -> tuple[int, int, int]:
        """Layers, values of h and values of c, both directions together."""
        return self.options.n_layers, 2 * self.options.projection_dim, 2 * self.options.dim

    def zero_state(self, rows: int, like: torch.Tensor) -> State:
        """(h [L, rows, 2 P], c [L, rows, 2 D]) of zeros, with the type and device of `like`."""
        layers, h_dim, c_dim = self.state_sizes
        return like.new_zeros(layers, rows, h_dim), like.new_zeros(layers, rows, c_dim)

    def reset_states(self, mask: torch.Tensor | None = None) -> None:
        """Forget the carried states of all rows, or of the rows where `mask` [rows] is not zero."""
        with self.carried.lock:
            carried, replacement = self._states, None
            if mask is not None and carried is not None:
                if mask.shape != carried[0].shape[1:2]:
                    raise ValueError(f"mask: expected shape ({carried[0].shape[1]},), one for each carried row, "
                                     f"got {tuple(mask.shape)}")
                unchanged = (mask == 0).view(1, -1, 1)
                replacement = tuple(torch.where(unchanged.to(old.device), old, torch.zeros_like(old))
                                    for old in carried)
            self.carried.value = replacement

    def exclusive(self, carried: bool) -> contextlib.AbstractContextManager:
        """A context in which no other thread reads or stores the carried states, if states are `carried`."""
        return self.carried.lock if carried else contextlib.nullcontext()

    def run(self, vectors: torch.Tensor, rows: torch.Tensor | None, schedule: Schedule, initial: State,
            initial_state: State | None = None, backend: str = "auto", precision: str = "highest",
            drop: Callable[[torch.Tensor], torch.Tensor] | None = None) -> tuple[list[torch.Tensor], State]:
        """Outputs of every layer at every packed row [S, 2 P], and the final state; carried states do not change.

        `vectors` [R, P] are token vectors, `rows` int [2, S] the row that each direction reads at each packed row.
        Without `rows`, `vectors` are the inputs of every packed row, [S, 2 P]. `initial` and the result are
        (h [L, slots, 2 P], c [L, slots, 2 D]); `initial_state` (h [L, 2 P], c [L, 2 D]) is the state that every
        sentence starts from, None if a slot carries its state from sentence to sentence. `drop` is a dropout applied to
        each layer's input; a skip connection adds the input after dropout.
        """
        outputs: list[torch.Tensor] = []
        finals: list[State] = []
        x, bounded = vectors, False
        for layer in range(self.options.n_layers):
            x = x if drop is None else drop(x)
            out, final = projected_lstm(
                x, None if layer else rows, schedule, _of_layer(initial, layer), self.layer_weights(layer),
                backend=backend, bounded=bounded, initial_state=initial_state and _of_layer(initial_state, layer),
                precision=precision, **self._clips)
            skips = self._skips(layer)
            x, bounded = sum_of(out, x) if skips else out, not skips and drop is None
            outputs.append(x)
            finals.append(final)
        return outputs, _stacked(finals)

    def can_write(self, backend: str) -> bool:
        """Whether `write` runs with this `backend`: in the C++ engine, on the CPU and without gradients."""
        bias = self.B_0_0
        if bias.device.type != "cpu" or bias.dtype == torch.float64:
            return False
        if torch.is_grad_enabled() and needs_gradient(self._weights()):
            return False
        lacking = unsupported_weights(self.layer_weights(0))
        return resolve("projected_lstm", backend, full_precision(bias), unsupported=lacking) == "native"

    def _weights(self) -> list[torch.Tensor]:
        """All weights; those of a replica of DataParallel are no parameters."""
        return self.weights_named(self.datasets)

    def write(self, vectors: torch.Tensor, rows: np.ndarray, schedule: Schedule, initial: State,
              initial_state: State | None, addresses: np.ndarray, precision: str = "highest") -> State:
        """As `run`, with the bits of its outputs written at `addresses` uint64 [L, 2, S] (see `write_outputs`)."""
        layers = [self.layer_weights(layer) for layer in range(self.options.n_layers)]
        return write_outputs(vectors, rows, schedule, initial, layers, addresses,
                             skips=self.options.use_skip_connections,
                             clips=(self.options.cell_clip, self.options.proj_clip), initial_state=initial_state,
                             precision=precision)

    @property
    def _clips(self) -> dict[str, float | None]:
        return {"cell_clip": self.options.cell_clip, "proj_clip": self.options.proj_clip}

    def _skips(self, layer: int) -> bool:
        """Whether a layer adds its input to its output."""
        return layer > 0 and self.options.use_skip_connections

    @outside_graphs
    def forward(self, inputs: torch.Tensor, mask: torch.Tensor, initial_state: State | None = None,
                carried: bool | None = None) -> torch.Tensor:
        """Outputs of every layer: vectors [B, T, P], mask [B, T] -> [layers, B, T, 2 P], zero where the mask is zero.

        The initial states are those of `begin`; `carried` is by default True if the stack is `stateful` and no
        `initial_state` is given. The carried state of a row whose mask is all zero does not change. AllenNLP's call.
        """
        refuse_capture(self.B_0_0.device)
        present, carried = self._present(inputs, mask), self._is_carried(initial_state, carried)
        with numerics(self.precision, inputs.device):
            schedule = make_schedule(present.sum(1).cpu().numpy())
            order, vectors = torch.from_numpy(schedule.tokens), full_precision(inputs)  # [2, N]
            with self.exclusive(carried):
                state = self.begin(schedule.slots.size, vectors, carried, initial_state)
                layers, final = self.run(vectors[present], order, schedule, *state, self.backend, self.precision)
                if carried:
                    self.store_state(final)
        order = order.to(inputs.device).long()
        padded = inputs.new_zeros(len(layers), *mask.shape, 2 * self.options.projection_dim)
        padded[:, present] = torch.stack([in_text_order(layer, order) for layer in layers]).to(padded)
        return padded.view_as(padded)  # hooks of `register_backward_hook` get the gradients of the last operation

    def _is_carried(self, initial_state: State | None, carried: bool | None) -> bool:
        return self.stateful and initial_state is None if carried is None else carried

    def _present(self, inputs: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Where the mask is not zero, bool [B, T]; `ValueError` for inputs or a mask of wrong type or shape."""
        size = len(self.W_0_0_0) - self.options.projection_dim
        if inputs.dim() != 3 or inputs.shape[2] != size or not inputs.is_floating_point():
            raise ValueError(f"inputs: expected vectors of shape [batch, tokens, {size}], "
                             f"got {inputs.dtype} of shape {tuple(inputs.shape)}")
        if mask.shape != inputs.shape[:2]:
            raise ValueError(f"mask: expected shape {tuple(inputs.shape[:2])}, got {tuple(mask.shape)}")
        present = mask > 0
        if (present[:, 1:] & ~present[:, :-1]).any():
            raise ValueError("mask: expected every sentence's tokens before its padding, got a 0 in front of a 1")
        return present

    def begin(self, slots: int, like: torch.Tensor, carried: bool, initial_state: State | None = None) -> RunState:
        """The state that `slots` slots start in: carried, or `initial_state` (h [L, 2 P], c [L, 2 D]), or zeros."""
        if carried:
            return RunState(self._first_carried(slots, like), None)
        if initial_state is None:
            initial_state = tuple(zeros[:, 0] for zeros in self.zero_state(1, like))
        layers, *sizes = self.state_sizes
        return RunState(tuple(value[:, None].expand(layers, slots, size) for value, size in zip(initial_state, sizes)),
                        initial_state)

    def store_state(self, final: State) -> None:
        """Carry the final state of a batch, detached, to the next call. Rows beyond the batch are unchanged."""
        with self.carried.lock:
            self.carried.value = _above(tuple(value.detach() for value in final), self._states)

    def _first_carried(self, rows: int, like: torch.Tensor) -> State:
        """The carried state of the first `rows` rows, with the type and device of `like`; new rows are zeros."""
        zeros, carried = self.zero_state(rows, like), self._states
        if carried is None:
            return zeros
        return tuple(torch.cat([old[:, :rows].to(like), zero[:, old.shape[1] :]], dim=1)
                     for old, zero in zip(carried, zeros))

    def _replicate_for_data_parallel(self) -> "LstmStack":
        """A replica, which starts from the current carried states and stores states separately."""
        replica = super()._replicate_for_data_parallel()
        replica.carried = CarriedStates(self._states)
        return replica

    def layer_weights(self, layer: int) -> tuple[LstmWeights, LstmWeights]:
        """(W, B, W_P or None) of a layer, forward then backward."""
        return tuple(tuple(self.weights_named(names)) for names in _names(layer))

    def layers(self) -> list[Tensors]:
        """All weights, in a single list: they are compared together; layer by layer, the forward direction first."""
        return [flat_stack(map(self.layer_weights, range(self.options.n_layers)))]

    def conversions(self) -> Iterator[Conversion]:
        for layer in range(self.options.n_layers):
            for direction, name in enumerate(("forward", "backward")):
                yield from cell_conversions(self.datasets, self.options.projection_dim, f"_{direction}_{layer}",
                                            f"{name}_layer_{layer}.")


@functools.cache
def _names(layer: int) -> tuple[tuple[str, ...], ...]:
    """The names of a layer's parameters, by direction."""
    return tuple(tuple(f"{dataset}_{direction}_{layer}" for dataset in LSTM_DATASETS) for direction in DIRECTIONS)


def _of_layer(state: State, layer: int) -> State:
    return state[0][layer], state[1][layer]


def _stacked(states: Sequence[State]) -> State:
    """Stack the states of all layers."""
    return tuple(stacked(values) for values in zip(*states))


def _above(new: State, old: State | None) -> State:
    """The rows of `new`, followed by the rows of `old` beyond them."""
    if old is None:
        return new
    return tuple(torch.cat([first, further[:, first.shape[1] :].to(first)], dim=1)
                 for first, further in zip(new, old))


def cell_conversions(names: Container[str], projection_dim: int, suffix: str = "",
                     prefix: str = "") -> Iterator[Conversion]:
    """Conversions of one direction of a layer.

    `names` are the names of all parameters; those of the direction end in `suffix`, AllenNLP's names begin with
    `prefix`.
    """
    yield Conversion([f"W_0{suffix}"], [f"{prefix}input_linearity.weight", f"{prefix}state_linearity.weight"],
                     lambda weight: state_dict.gates_to_allennlp(weight, projection_dim),
                     state_dict.gates_from_allennlp)
    yield Conversion([f"B{suffix}"], [f"{prefix}state_linearity.bias"], state_dict.bias_to_allennlp,
                     state_dict.bias_from_allennlp)
    if f"W_P_0{suffix}" in names:
        yield Conversion([f"W_P_0{suffix}"], [f"{prefix}state_projection.weight"], state_dict.transposed,
                         state_dict.transposed)
