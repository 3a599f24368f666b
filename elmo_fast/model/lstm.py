"""The stack of two-direction LSTM layers, and the states it carries between calls."""

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import numpy as np
import torch
from torch import nn

from elmo_fast.model import allennlp_names, states
from elmo_fast.model.options import Options
from elmo_fast.model.weights import DIRECTIONS, lstm_name
from elmo_fast.ops.cpu.projected_lstm import drop_lstm
from elmo_fast.ops.cuda.padded import padded_lstm
from elmo_fast.ops.precision import full_precision
from elmo_fast.ops.projected_lstm import projected_lstm
from elmo_fast.ops.reference import LstmWeights, State
from elmo_fast.ops.schedule import Schedule

_ALLENNLP_DIRECTIONS = ("forward", "backward")


class InputProjections(NamedTuple):
    """`table` [V, 8 D]: `input_projections` of the first layer, and `rows` int64 [R]: the one of each token vector."""

    table: torch.Tensor
    rows: torch.Tensor


class LstmStack(allennlp_names.AllenNlpStateDict):
    """LSTM layers with projection, clipping and skip connections, each direction on its own all the way up.

    Parameters have bilm-tf's layout: `W_0_{d}_{l}` [2 P, 4 D] with gates i, j, f, o, `B_{d}_{l}` [4 D] without
    the forget gate's +1, `W_P_0_{d}_{l}` [D, P]. `stateful`, `reset_states()` and `_states` are AllenNLP's.
    """

    @torch.inference_mode(False)  # torch counts no edits of tensors made in that mode, so nothing packed from them would last
    def __init__(self, options: Options, weights: Mapping[str, np.ndarray], requires_grad: bool = False,
                 state: str = "carry"):
        super().__init__()
        self.options = options.lstm
        self.state = state
        self.datasets = {}
        for direction in DIRECTIONS:
            for layer in range(self.options.n_layers):
                for dataset in ("W_0", "B", "W_P_0"):
                    own, name = f"{dataset}_{direction}_{layer}", lstm_name(direction, layer, dataset)
                    if name in weights:
                        self.datasets[own] = name
                        parameter = nn.Parameter(torch.tensor(weights[name]), requires_grad=requires_grad)
                        self.register_parameter(own, parameter)
        self._carried: State | None = None
        self._in_graph: list[State] = []  # states that captured graphs read and write, kept for those

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
        if self._is_in_graph():
            for k, kept in enumerate(self._carried):
                kept.zero_() if left is None else kept.copy_(left[k])
        else:
            self._carried = left

    def forward(self, vectors: torch.Tensor, rows: torch.Tensor, schedule: Schedule, fresh: State | None = None,
                backend: str = "auto", precision: str = "highest",
                products: InputProjections | None = None) -> list[torch.Tensor]:
        """Outputs of every layer at every packed row of the schedule, [S, 2 P] each.

        `vectors` [R, P] are token vectors, `rows` int [2, S] names the one that each direction reads at each
        packed row. `fresh` (h [L, 2 P], c [L, 2 D]) is where sentences start unless states are carried; None
        stands for zeros. `products` are those of the vectors with the first layer's weights, where they are known.
        """
        initial, initial_state = self.begin(schedule.slots.size, fresh, vectors)
        outputs, final = self.run(vectors, rows, schedule, initial, initial_state, backend, precision, products)
        self.store_state(final)
        return outputs

    def run(self, vectors: torch.Tensor, rows: torch.Tensor | None, schedule: Schedule, initial: State,
            initial_state: State | None = None, backend: str = "auto", precision: str = "highest",
            products: InputProjections | None = None,
            drop: Callable[[torch.Tensor], torch.Tensor] | None = None) -> tuple[list[torch.Tensor], State]:
        """Outputs of every layer and the final state, from the state given; what is carried is left alone.

        `initial` and the result are (h [L, slots, 2 P], c [L, slots, 2 D]); `initial_state` (h [L, 2 P], c [L, 2 D])
        is the state of every sentence's start, or None when sentences of a slot carry on. Without `rows`, `vectors`
        are the inputs of every packed row, [S, 2 P]. `drop` is applied to each layer's input, and what it leaves is
        what a skip connection adds.
        """
        outputs: list[torch.Tensor] = []
        finals: list[State] = []
        x, bounded = vectors, False
        if products is not None:
            x, rows = products.table, products.rows[rows.long()]
        for layer in range(self.options.n_layers):
            x = x if drop is None else drop(x)
            out, final = projected_lstm(
                x, None if layer else rows, schedule, (initial[0][layer], initial[1][layer]),
                self.layer_weights(layer), cell_clip=self.options.cell_clip, proj_clip=self.options.proj_clip,
                initial_state=None if initial_state is None else (initial_state[0][layer], initial_state[1][layer]), backend=backend,
                precision=precision, precomputed=layer == 0 and products is not None, bounded=bounded,
            )
            skips = layer > 0 and self.options.use_skip_connections
            x, bounded = out + x if skips else out, not skips and drop is None
            outputs.append(x)
            finals.append(final)
        return outputs, tuple(torch.stack(each) for each in zip(*finals))

    def run_padded(self, vectors: torch.Tensor, lengths: torch.Tensor, fresh: State | None,
                   precision: str) -> list[torch.Tensor]:
        """Outputs of every layer [B, T, 2 P] inside a capture: `vectors` [B, T, P], `lengths` int [B] on their GPU.

        Carried states are updated where they lie, so that each replay goes on where the last one ended.
        """
        if self.stateful and (self._carried is None or self._carried[0].shape[1] < len(lengths)):
            raise RuntimeError(f"_states: expected at least {len(lengths)} carried rows before a CUDA graph's capture "
                               f"(model.warmup(batch_size={len(lengths)}) adds them), got "
                               f"{0 if self._carried is None else self._carried[0].shape[1]}")
        initial, _ = self.begin(len(lengths), fresh, vectors)
        layers = list(self._padded(vectors, lengths, initial, precision))
        if self.stateful:
            for kept, new in zip(self._carried, zip(*(final for _, final in layers))):
                kept[:, : len(lengths)].copy_(torch.stack(new))
            if not self._is_in_graph():
                self._in_graph.append(self._carried)
        return [out for out, _ in layers]

    def _padded(self, x: torch.Tensor, lengths: torch.Tensor, initial: State,
                precision: str) -> Iterator[tuple[torch.Tensor, State]]:
        """Output [B, T, 2 P] and final state of each layer, from `initial` (h [L, B, 2 P], c [L, B, 2 D])."""
        for layer, state in enumerate(zip(*initial)):
            out, final = padded_lstm(x, lengths, state, self.layer_weights(layer), cell_clip=self.options.cell_clip,
                                     proj_clip=self.options.proj_clip, precision=precision)
            x = out + x if layer and self.options.use_skip_connections else out
            yield x, final

    def warmup(self, precision: str) -> None:
        """Run once what `run_padded` runs, from zeros and for nothing: kernels are then loaded, weights prepared."""
        layers, h_dim, c_dim = self.state_sizes
        vectors = full_precision(self.B_0_0).new_zeros(1, 1, self.options.projection_dim)
        initial = states.zero_state(layers, 1, h_dim, c_dim, vectors)
        list(self._padded(vectors, torch.ones(1, dtype=torch.int64, device=vectors.device), initial, precision))

    def reserve_states(self, rows: int) -> None:
        """Have at least so many carried rows on this device, where states are carried; new ones are zeros."""
        like, have = full_precision(self.B_0_0), 0 if self._carried is None else self._carried[0].shape[1]
        if self.stateful and (have < rows or have and self._carried[0].device != like.device):
            layers, h_dim, c_dim = self.state_sizes
            zeros = states.zero_state(layers, max(rows, have), h_dim, c_dim, like)
            self._carried = states.first_rows(self._carried, zeros)

    def _is_in_graph(self) -> bool:
        return any(each is self._carried for each in self._in_graph)

    def begin(self, slots: int, fresh: State | None, like: torch.Tensor) -> tuple[State, State | None]:
        """The state that `slots` slots begin in, and the one that every sentence restarts from when none is carried."""
        layers, h_dim, c_dim = self.state_sizes
        zeros = states.zero_state(layers, slots, h_dim, c_dim, like)
        if self.stateful:
            return states.first_rows(self._carried, zeros), None
        if fresh is None:
            fresh = zeros[0].new_zeros(layers, h_dim), zeros[1].new_zeros(layers, c_dim)
        return tuple(each[:, None].expand_as(zero) for each, zero in zip(fresh, zeros)), fresh

    def store_state(self, final: State) -> None:
        """Keep the state that a batch ended in, where states are carried."""
        if not self.stateful:
            return
        carried = states.carried_on(self._carried, final)
        if self._is_in_graph() and self._carried[0].shape == carried[0].shape:
            for kept, new in zip(self._carried, carried):
                kept.copy_(new)
        else:
            self._carried = carried

    def layer_weights(self, layer: int) -> tuple[LstmWeights, LstmWeights]:
        """(W, B, W_P or None) of a layer, forward then backward."""
        def one(direction):
            names = (f"{dataset}_{direction}_{layer}" for dataset in ("W_0", "B", "W_P_0"))
            return tuple(getattr(self, name, None) for name in names)

        return one(0), one(1)

    def drop_fp32(self, precision: str) -> None:
        """Keep the matrices only as the native engine packs them for `precision`."""
        for layer in range(self.options.n_layers):
            left = drop_lstm(self.layer_weights(layer), precision)
            names = (f"{dataset}_{direction}_{layer}" for direction in DIRECTIONS for dataset in ("W_0", "B", "W_P_0"))
            for name, value in zip(names, left):
                if value is not None:
                    setattr(self, name, value)

    def to_allennlp(self, own: allennlp_names.Tensors) -> allennlp_names.Tensors:
        theirs = {}
        projection = self.options.projection_dim
        for prefix, suffix in self._cells():
            w = allennlp_names.swap_gates(own[f"W_0_{suffix}"].t())  # [4 D, 2 P]
            theirs[f"{prefix}.input_linearity.weight"] = w[:, :-projection].contiguous()
            theirs[f"{prefix}.state_linearity.weight"] = w[:, -projection:].contiguous()
            theirs[f"{prefix}.state_linearity.bias"] = allennlp_names.bias_to_allennlp(own[f"B_{suffix}"])
            if f"W_P_0_{suffix}" in own:
                theirs[f"{prefix}.state_projection.weight"] = own[f"W_P_0_{suffix}"].t().contiguous()
        return theirs

    def from_allennlp(self, theirs: allennlp_names.Tensors) -> allennlp_names.Tensors:
        own = {}
        for prefix, suffix in self._cells():
            both = [theirs[f"{prefix}.{part}_linearity.weight"] for part in ("input", "state")]
            own[f"W_0_{suffix}"] = allennlp_names.swap_gates(torch.cat(both, dim=1)).t().contiguous()
            own[f"B_{suffix}"] = allennlp_names.bias_from_allennlp(theirs[f"{prefix}.state_linearity.bias"])
            if f"{prefix}.state_projection.weight" in theirs:
                own[f"W_P_0_{suffix}"] = theirs[f"{prefix}.state_projection.weight"].t().contiguous()
        return own

    def _cells(self):
        """AllenNLP's module name and our suffix of every cell."""
        for layer in range(self.options.n_layers):
            for direction, name in enumerate(_ALLENNLP_DIRECTIONS):
                yield f"{name}_layer_{layer}", f"{direction}_{layer}"
