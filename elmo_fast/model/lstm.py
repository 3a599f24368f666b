"""The stack of two-direction LSTM layers, and the states it carries between calls."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
import torch
from torch import nn

from elmo_fast.model import state_dict, states
from elmo_fast.model.options import Options
from elmo_fast.model.states import RunState
from elmo_fast.model.weights import DIRECTIONS, lstm_name
from elmo_fast.ops.cpu.projected_lstm import drop_lstm
from elmo_fast.ops.cuda.lstm import padded_lstm
from elmo_fast.ops.precision import full_precision
from elmo_fast.ops.projected_lstm import projected_lstm
from elmo_fast.ops.reference import LstmWeights, State
from elmo_fast.ops.schedule import Schedule

_DATASETS = ("W_0", "B", "W_P_0")
_ALLENNLP_DIRECTIONS = ("forward", "backward")


class InputProjections(NamedTuple):
    """`table` [V, 8 D]: `input_projections` of the first layer, and `rows` int64 [R]: the row of each token vector."""

    table: torch.Tensor
    rows: torch.Tensor


class LstmStack(state_dict.AllenNlpStateDict):
    """LSTM layers with projection, clipping and skip connections, each direction on its own all the way up.

    Parameters have bilm-tf's layout: `W_0_{d}_{l}` [2 P, 4 D] with gates i, j, f, o, `B_{d}_{l}` [4 D] without
    the forget gate's +1, `W_P_0_{d}_{l}` [D, P]. `stateful`, `reset_states()` and `_states` are AllenNLP's.
    """

    @torch.inference_mode(False)  # torch counts no edits of tensors made in that mode: packed weights would go stale
    def __init__(self, options: Options, weights: Mapping[str, np.ndarray], requires_grad: bool = False,
                 state: str = "carry"):
        super().__init__()
        self.options = options.lstm
        self.state = state
        self.datasets = {}
        for direction in DIRECTIONS:
            for layer in range(self.options.n_layers):
                for dataset in _DATASETS:
                    own, name = f"{dataset}_{direction}_{layer}", lstm_name(direction, layer, dataset)
                    if name in weights:
                        self.datasets[own] = name
                        parameter = nn.Parameter(torch.tensor(weights[name]), requires_grad=requires_grad)
                        self.register_parameter(own, parameter)
        self._carried: State | None = None
        self._in_graph: list[State] = []  # states that captured graphs read and write

    @property
    def state(self) -> str:
        """`carry`, `zero` or `warm`: where a sentence starts (see `BiLm`)."""
        return self._state

    @state.setter
    def state(self, state: str) -> None:
        self._state = states.check_state(state)

    @property
    def stateful(self) -> bool:
        """Whether states are carried from batch to batch. Setting it chooses `carry`, or `zero` in its place."""
        return self.state == "carry"

    @stateful.setter
    def stateful(self, stateful: bool) -> None:
        if bool(stateful) != self.stateful:
            self.state = "carry" if stateful else "zero"

    @property
    def _states(self) -> State | None:
        """Carried states, (h [L, rows, 2 P], c [L, rows, 2 D]) with the forward half first, or None."""
        return self._carried

    @_states.setter
    def _states(self, carried: State | None) -> None:
        self._carried = states.check_states(carried, *self.state_sizes)

    @property
    def state_sizes(self) -> tuple[int, int, int]:
        """Layers, values of h and values of c, both directions together."""
        return self.options.n_layers, 2 * self.options.projection_dim, 2 * self.options.dim

    def reset_states(self, mask: torch.Tensor | None = None) -> None:
        """Forget the carried states of all rows, or of the rows where `mask` [rows] is not zero."""
        left = states.reset_rows(self._carried, mask)
        if left is None and self._is_in_graph():
            left = tuple(map(torch.zeros_like, self._carried))
        self._replace_carried(left)

    def run(self, vectors: torch.Tensor, rows: torch.Tensor | None, schedule: Schedule | torch.Tensor, initial: State,
            initial_state: State | None = None, backend: str = "auto", precision: str = "highest",
            projections: InputProjections | None = None,
            drop: Callable[[torch.Tensor], torch.Tensor] | None = None) -> tuple[list[torch.Tensor], State]:
        """Outputs of every layer at every packed row [S, 2 P], and the final state; carried states do not change.

        `vectors` [R, P] are token vectors, `rows` int [2, S] the row that each direction reads at each packed row.
        Without `rows`, `vectors` are the inputs of every packed row, [S, 2 P]. `initial` and the result are
        (h [L, slots, 2 P], c [L, slots, 2 D]); `initial_state` (h [L, 2 P], c [L, 2 D]) is the state that every
        sentence starts from, None where a slot's sentences carry their state. `projections` are those of the vectors
        with the first layer's weights, where they are known. `drop` is applied to each layer's input; a skip
        connection adds its result.

        In a CUDA graph's capture `schedule` is lengths int [B], and `vectors` are [B, T, P]: outputs are [B, T, 2 P].
        """
        outputs: list[torch.Tensor] = []
        finals: list[State] = []
        settings = {"cell_clip": self.options.cell_clip, "proj_clip": self.options.proj_clip, "precision": precision}
        x, bounded = vectors, False
        if projections is not None:
            x, rows = projections.table, projections.rows[rows.long()]
        for layer in range(self.options.n_layers):
            x = x if drop is None else drop(x)
            operands = schedule, (initial[0][layer], initial[1][layer]), self.layer_weights(layer)
            if isinstance(schedule, torch.Tensor):
                out, final = padded_lstm(x, *operands, **settings)
            else:
                out, final = projected_lstm(
                    x, None if layer else rows, *operands, backend=backend, bounded=bounded,
                    initial_state=None if initial_state is None else (initial_state[0][layer], initial_state[1][layer]),
                    precomputed=layer == 0 and projections is not None, **settings)
            skips = layer > 0 and self.options.use_skip_connections
            x, bounded = out + x if skips else out, not skips and drop is None
            outputs.append(x)
            finals.append(final)
        return outputs, tuple(torch.stack(values) for values in zip(*finals))

    def run_captured(self, vectors: torch.Tensor, lengths: torch.Tensor, initial_state: State | None,
                     precision: str) -> list[torch.Tensor]:
        """Outputs of every layer [B, T, 2 P] inside a capture: `vectors` [B, T, P], `lengths` int [B] on their GPU.

        Carried states are updated in place: a replay starts from where the last one ended.
        """
        count = self._carried_rows()
        if self.stateful and count < len(lengths):
            raise RuntimeError(f"_states: expected at least {len(lengths)} carried rows before a CUDA graph's capture "
                               f"(model.warmup(batch_size={len(lengths)}) adds them), got {count}")
        initial, _ = self.begin(len(lengths), initial_state, vectors)
        outputs, final = self.run(vectors, None, lengths, initial, precision=precision)
        if self.stateful:
            for carried, new in zip(self._carried, final):
                carried[:, : len(lengths)].copy_(new)
            if not self._is_in_graph():
                self._in_graph.append(self._carried)
        return outputs

    def warmup(self, precision: str) -> None:
        """Run what `run_captured` runs on one position of zeros: kernels are then loaded, weights packed."""
        vectors = full_precision(self.B_0_0).new_zeros(1, 1, self.options.projection_dim)
        lengths = torch.ones(1, dtype=torch.int64, device=vectors.device)
        self.run(vectors, None, lengths, self.zero_state(1, vectors), precision=precision)

    def reserve_states(self, rows: int) -> None:
        """Have at least `rows` carried rows on this device, where states are carried; new ones are zeros."""
        like, count = full_precision(self.B_0_0), self._carried_rows()
        if self.stateful and (count < rows or (count and self._carried[0].device != like.device)):
            self._carried = states.first_rows(self._carried, self.zero_state(max(rows, count), like))

    def begin(self, slots: int, initial_state: State | None, like: torch.Tensor) -> RunState:
        """Where `slots` slots start: the carried states, or else `initial_state` (h [L, 2 P], c [L, 2 D]) or zeros."""
        zeros = self.zero_state(slots, like)
        if self.stateful:
            return RunState(states.first_rows(self._carried, zeros), None)
        if initial_state is None:
            initial_state = tuple(zero.new_zeros(zero.shape[::2]) for zero in zeros)
        return RunState(tuple(value[:, None].expand_as(zero) for value, zero in zip(initial_state, zeros)),
                        initial_state)

    def zero_state(self, rows: int, like: torch.Tensor) -> State:
        """(h [L, rows, 2 P], c [L, rows, 2 D]) of zeros, with the type and device of `like`."""
        layers, h_dim, c_dim = self.state_sizes
        return states.zero_state(layers, rows, h_dim, c_dim, like)

    def store_state(self, final: State) -> None:
        """Carry the state that a batch ended in to the next call, where states are carried."""
        if self.stateful:
            self._replace_carried(states.next_carried(self._carried, final))

    def _carried_rows(self) -> int:
        return 0 if self._carried is None else self._carried[0].shape[1]

    def _is_in_graph(self) -> bool:
        return any(state is self._carried for state in self._in_graph)

    def _replace_carried(self, state: State | None) -> None:
        """Carry `state`, in the memory that captured graphs use where it has the same shape."""
        if self._is_in_graph() and self._carried[0].shape == state[0].shape:
            for old, new in zip(self._carried, state):
                old.copy_(new)
        else:
            self._carried = state

    def layer_weights(self, layer: int) -> tuple[LstmWeights, LstmWeights]:
        """(W, B, W_P or None) of a layer, forward then backward."""
        return tuple(tuple(getattr(self, f"{dataset}_{direction}_{layer}", None) for dataset in _DATASETS)
                     for direction in DIRECTIONS)

    def drop_fp32(self, precision: str) -> None:
        """Leave the matrices in memory only as the native engine packs them for `precision`."""
        for layer in range(self.options.n_layers):
            names = (f"{dataset}_{direction}_{layer}" for direction in DIRECTIONS for dataset in _DATASETS)
            for name, value in zip(names, drop_lstm(self.layer_weights(layer), precision)):
                if value is not None:
                    setattr(self, name, value)

    def to_allennlp(self, own: state_dict.Tensors) -> state_dict.Tensors:
        theirs = {}
        projection = self.options.projection_dim
        for prefix, suffix in self._cells():
            w = state_dict.swap_gates(own[f"W_0_{suffix}"].t())  # [4 D, 2 P]
            theirs[f"{prefix}.input_linearity.weight"] = w[:, :-projection].contiguous()
            theirs[f"{prefix}.state_linearity.weight"] = w[:, -projection:].contiguous()
            theirs[f"{prefix}.state_linearity.bias"] = state_dict.bias_to_allennlp(own[f"B_{suffix}"])
            if f"W_P_0_{suffix}" in own:
                theirs[f"{prefix}.state_projection.weight"] = own[f"W_P_0_{suffix}"].t().contiguous()
        return theirs

    def from_allennlp(self, theirs: state_dict.Tensors) -> state_dict.Tensors:
        own = {}
        for prefix, suffix in self._cells():
            both = [theirs[f"{prefix}.{part}_linearity.weight"] for part in ("input", "state")]
            own[f"W_0_{suffix}"] = state_dict.swap_gates(torch.cat(both, dim=1)).t().contiguous()
            own[f"B_{suffix}"] = state_dict.bias_from_allennlp(theirs[f"{prefix}.state_linearity.bias"])
            if f"{prefix}.state_projection.weight" in theirs:
                own[f"W_P_0_{suffix}"] = theirs[f"{prefix}.state_projection.weight"].t().contiguous()
        return own

    def _cells(self):
        """AllenNLP's module name and our suffix of every cell."""
        for layer in range(self.options.n_layers):
            for direction, name in enumerate(_ALLENNLP_DIRECTIONS):
                yield f"{name}_layer_{layer}", f"{direction}_{layer}"
