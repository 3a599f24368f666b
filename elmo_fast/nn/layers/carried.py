"""The states that a module carries from call to call, for all threads that call it."""

import contextlib
import threading

import torch

from elmo_fast.arguments import STATES, check_choice
from elmo_fast.engine.model import RunState
from elmo_fast.nn.outside_graphs import OutsideGraphs
from elmo_fast.ops.projected_lstm.reference import State


class CarriedStates:
    """`value` is (h [L, rows, 2 P], c [L, rows, 2 D]), forward half first, or None.

    A batch holds `lock` from reading the value to storing a new value, so that batches of several threads run one after
    another. Copies and pickles contain the value.
    """

    def __init__(self, value: State | None = None):
        self.lock = threading.RLock()
        self.value = value

    def __reduce__(self) -> tuple:
        return CarriedStates, (self.value,)


class Stateful(OutsideGraphs):
    """A module that carries states from call to call. From AllenNLP's `_EncoderBase`.

    `state_sizes` are layers, values of h and values of c, both directions together.
    """

    _stores_zero = False  # whether batches in `zero` store their final states
    carried: CarriedStates
    state_sizes: tuple[int, int, int]

    @property
    def state(self) -> str:
        """`carry`, `zero` or `warm`: where a sentence starts (see `BiLm`)."""
        return self._state

    @state.setter
    def state(self, state: str) -> None:
        self._state, self._stores_zero = check_choice("state", state, STATES), False

    @property
    def stateful(self) -> bool:
        """Whether states are carried from batch to batch. Setting it to True chooses `carry`, to False `zero`.

        As in AllenNLP, batches store their final states in either case.
        """
        return self.state == "carry"

    @stateful.setter
    def stateful(self, stateful: bool) -> None:
        if bool(stateful) != self.stateful:
            self.state = "carry" if stateful else "zero"
            self._stores_zero = not stateful

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
        with self.carried.lock:
            self.carried.value = carried

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

    def begin(self, slots: int, like: torch.Tensor, carried: bool, initial_state: State | None = None) -> RunState:
        """The state that `slots` slots start in: carried, or `initial_state` (h [L, 2 P], c [L, 2 D]), or zeros.

        If the batch stores its final state, slots without a token keep the carried state.
        """
        last = zeros = self.zero_state(slots, like)
        if self.stores(carried, initial_state) and self._states is not None:
            last = tuple(torch.cat([old[:, :slots].to(like), zero[:, old.shape[1] :]], dim=1)
                         for old, zero in zip(self._states, zeros))
        if carried:
            return RunState(last, None)
        if initial_state is None:
            return RunState(last, tuple(zero[:, 0] for zero in self.zero_state(1, like)))
        return RunState(tuple(value[:, None].expand(zero.shape) for value, zero in zip(initial_state, zeros)),
                        initial_state)

    def stores(self, carried: bool, initial_state: State | None) -> bool:
        """Whether a batch with these arguments of `begin` stores its final state."""
        return carried or (self._stores_zero and initial_state is None)

    def store_state(self, final: State) -> None:
        """Carry the final state of a batch, detached, to the next call. Rows beyond the batch are unchanged."""
        with self.carried.lock:
            final, old = tuple(value.detach() for value in final), self._states
            if old is not None:
                final = tuple(torch.cat([new, further[:, new.shape[1] :].to(new)], dim=1)
                              for new, further in zip(final, old))
            self.carried.value = final

    def _replicate_for_data_parallel(self) -> "Stateful":
        """A replica, which starts from the current carried states and stores states separately."""
        replica = super()._replicate_for_data_parallel()
        replica.carried = CarriedStates(self._states)
        return replica
