"""The arguments of the projected LSTM: a call in Python, the op in `torch.library`, and its gradients."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from elmo_fast.engine.schedule import Schedule
from elmo_fast.ops.library import gradient_memory, library, schema_of
from elmo_fast.ops.projected_lstm.reference import LstmWeights, State


@dataclass(frozen=True)
class LstmCall:
    """The arguments of `reference.projected_lstm` and those that `elmo_fast.ops.projected_lstm` adds."""

    inputs: torch.Tensor
    rows: torch.Tensor | None
    schedule: Schedule
    state: State
    weights: tuple[LstmWeights, LstmWeights]
    cell_clip: float | None = None
    proj_clip: float | None = None
    initial_state: State | None = None
    precision: str = "highest"
    bounded: bool = False

    @property
    def width(self) -> int:
        """I, the number of input columns of a direction."""
        return len(self.weights[0][0]) - self.state[0].shape[1] // 2

    @property
    def tensors(self) -> list[torch.Tensor]:
        """The floating-point operands."""
        return [self.inputs, *self.state, *flat_weights(self.weights), *(self.initial_state or ())]

    def arguments(self, save: bool = False) -> "LstmArguments":
        """The arguments of the op, with the schedule on the host; `slots` is None if they are in the caller's order."""
        schedule, has_starts = self.schedule, self.initial_state is not None
        initial_h, initial_c = self.initial_state or (None, None)
        return LstmArguments(
            self.inputs, self.rows, None if schedule.is_in_order else torch.from_numpy(schedule.slots),
            torch.from_numpy(schedule.batch_sizes),
            torch.from_numpy(schedule.sequence_starts) if has_starts else None, *self.state,
            flat_weights(self.weights), initial_h, initial_c, self.width, limit(self.cell_clip),
            limit(self.proj_clip), self.precision, self.bounded, save)


def flat_weights(weights: tuple[LstmWeights, LstmWeights]) -> list[torch.Tensor]:
    """W, B and, if present, W_P; forward then backward."""
    return [part for direction in weights for part in direction if part is not None]


def limit(clip: float | None) -> float:
    """A clip as a number; infinite for None."""
    return math.inf if clip is None else float(clip)


class LstmArguments(NamedTuple):
    """The arguments of the op, in the order of its schema and of every implementation.

    `inputs` and `rows` as in `reference.projected_lstm`. `slots`, `batch_sizes` and `sequence_starts` are the schedule,
    on the host; `slots` only if they are not in the caller's order, `sequence_starts` only with an initial state.
    `weights` are those of `flat_weights`. An infinite clip does not clip. With `save` the op also returns the tensor
    saved for backward.
    """

    inputs: torch.Tensor
    rows: torch.Tensor | None
    slots: torch.Tensor | None
    batch_sizes: torch.Tensor
    sequence_starts: torch.Tensor | None
    h: torch.Tensor
    c: torch.Tensor
    weights: list[torch.Tensor]
    initial_h: torch.Tensor | None
    initial_c: torch.Tensor | None
    width: int
    cell_clip: float
    proj_clip: float
    precision: str
    bounded: bool
    save: bool

    @property
    def packed_rows(self) -> int:
        """S, the number of packed rows."""
        return self.inputs.shape[0] if self.rows is None else self.rows.shape[1]

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Input columns I, cells D and projected values P of one direction."""
        return self.width, self.c.shape[1] // 2, self.h.shape[1] // 2


class LstmGradients(NamedTuple):
    """A value for every differentiable operand: its gradient, or whether the gradient is needed."""

    inputs: Any
    h: Any
    c: Any
    weights: Sequence[Any]
    initial_h: Any
    initial_c: Any

    @classmethod
    def of(cls, arguments: tuple) -> "LstmGradients":
        """Select from values for all arguments of the op; the value of `weights` is a list."""
        values = LstmArguments(*arguments)
        return cls(*(getattr(values, name) for name in cls._fields))

    @classmethod
    def unflatten(cls, values: Sequence[Any]) -> "LstmGradients":
        """The inverse of `flatten`."""
        inputs, h, c, *weights, initial_h, initial_c = values
        return cls(inputs, h, c, weights, initial_h, initial_c)

    def flatten(self) -> list[Any]:
        """All values in a flat list."""
        return [self.inputs, self.h, self.c, *self.weights, self.initial_h, self.initial_c]


def memory_for_gradients(call: LstmArguments, needed: LstmGradients) -> LstmGradients:
    """Uninitialized gradients; [0] for inputs and weights whose gradient is not needed, and for absent operands."""
    inputs, *weights = gradient_memory((call.inputs, *call.weights), (needed.inputs, *needed.weights))
    h, c, initial_h, initial_c = (call.h.new_empty(0 if tensor is None else tensor.shape)
                                  for tensor in (call.h, call.c, call.initial_h, call.initial_c))
    return LstmGradients(inputs, h, c, weights, initial_h, initial_c)


library.define(f"projected_lstm({schema_of(LstmArguments)}) -> (Tensor, Tensor, Tensor, Tensor)")
library.define("projected_lstm_backward(Tensor? grad_out, Tensor? grad_h, Tensor? grad_c, Tensor saved, bool[] needed, "
               f"{schema_of(LstmArguments)}) -> Tensor[]")
