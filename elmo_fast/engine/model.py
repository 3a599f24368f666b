"""A model at rest: its weights, packed or plain, which nothing changes; threads share it.

`Model` has what the implementations share. An implementation has `_encode` (ids to vectors) and `run` (all LSTM layers
over a schedule): `native` on the C++ engine, `reference` in NumPy.
"""

import ctypes
import functools
from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence
from typing import NamedTuple

import numpy as np

from elmo_fast.engine.schedule import Schedule, make_schedule
from elmo_fast.engine.table import TokenTable
from elmo_fast.weights.datasets import Weights, fingerprint
from elmo_fast.weights.opening import WARM_TEXT
from elmo_fast.weights.options import Options

State = tuple[np.ndarray, np.ndarray]  # h [L, slots, 2 P], c [L, slots, 2 D], forward half first


class RunState(NamedTuple):
    """The state of the slots: `last` is the state after their last step.

    `initial` (h [L, 2 P], c [L, 2 D]) is the state that every sentence starts from, None where states are carried.
    """

    last: State
    initial: State | None


class Model(ABC):
    """What `load` computes with. `precision` is what the caller asked for, `computes_in` what runs here."""

    precision = computes_in = "highest"
    backend, device = "auto", "cpu"
    token_table: TokenTable | None = None

    def __init__(self, options: Options, weights: Weights,
                 warm_text: Sequence[Sequence[str]] = WARM_TEXT):
        self.options, self.warm_text = options, tuple(map(tuple, warm_text))
        self.num_layers, self.output_dim = options.n_layers, options.output_dim
        self.token_ids = options.token_ids()
        self.fingerprint = fingerprint(weights, options)

    @property
    def boundaries(self) -> tuple[str, str]:
        """The tokens around a sentence."""
        return self.token_ids.boundaries

    def key(self) -> Hashable:
        """What the vectors of tokens depend on beside the tokens: equal keys mean equal vectors."""
        return self.token_table and (self.token_table, self.token_table.unknown)

    def encode(self, tokens: Sequence[str]) -> np.ndarray:
        """Vectors of tokens without context: float32 [N, P]."""
        if self.token_table is None:
            return self._encode(self.token_ids(tokens))
        return self.token_table.complete(
            tokens, lambda missing: self._encode(self.token_ids([tokens[k] for k in missing])))

    def begin(self, slots: int, state: str, carried: State | None = None) -> RunState:
        """The state in which `slots` slots start; `carried` is what an earlier run left, in state `carry`."""
        lstm = self.options.lstm
        sizes = 2 * lstm.projection_dim, 2 * lstm.dim
        zeros = tuple(np.zeros((lstm.n_layers, slots, size), np.float32) for size in sizes)
        if state == "warm":
            return RunState(zeros, self._warm)
        if state == "zero":
            return RunState(zeros, tuple(np.zeros((lstm.n_layers, size), np.float32) for size in sizes))
        for values, old in zip(zeros, carried or ()):
            values[:, : old.shape[1]] = old[:, :slots]
        return RunState(zeros, None)

    @abstractmethod
    def run(self, vectors: np.ndarray, rows: np.ndarray, schedule: Schedule, state: RunState,
            addresses: np.ndarray) -> RunState:
        """Run all LSTM layers over the packed rows of a schedule; returns the state after the last.

        `vectors` float32 [R, P] and `rows` int32 [2, S] are the inputs of both directions. `addresses` uint64
        [L, 2, S]: where each layer writes the output float32 [P] of each direction at each packed row, in memory that
        the caller keeps; no two are equal. `state` is not changed.
        """

    @functools.cached_property
    def _warm(self) -> State:
        """The state after the warm text, (h [L, 2 P], c [L, 2 D])."""
        first, last = self.token_ids.boundaries
        tokens = [token for sentence in self.warm_text for token in (first, *sentence, last)]
        lengths = np.array([len(sentence) + 2 for sentence in self.warm_text])
        schedule = make_schedule(lengths, np.zeros_like(lengths))
        lstm, packed_rows = self.options.lstm, schedule.tokens.shape[1]
        outputs = np.empty((lstm.n_layers, 2, packed_rows, lstm.projection_dim), np.float32)
        begin, vectors = self.begin(1, "carry"), self._encode(self.token_ids(tokens))
        h, c = self.run(vectors, schedule.tokens, schedule, begin, addresses_of(outputs)).last
        return h[:, 0], c[:, 0]

    @abstractmethod
    def _encode(self, ids: np.ndarray) -> np.ndarray:
        """Ids int32 [N, ...] -> float32 [N, P]."""


def in_schedule_order(state: State, schedule: Schedule) -> State:
    """A contiguous copy of a state, float32, with the slots in the order of the schedule."""
    if schedule.is_in_order:
        return tuple(np.array(values, np.float32, order="C") for values in state)
    return tuple(values.take(schedule.slots, 1).astype(np.float32, copy=False) for values in state)


def in_slot_order(state: State, schedule: Schedule) -> State:
    """The inverse of `in_schedule_order`."""
    if schedule.is_in_order:
        return state
    return tuple(values.take(np.argsort(schedule.slots), 1) for values in state)


def addresses_of(outputs: np.ndarray) -> np.ndarray:
    """The address of every row of contiguous float32 [..., P], uint64 [...]."""
    count = outputs.size // outputs.shape[-1]
    starts = np.arange(count, dtype=np.uint64) * np.uint64(4 * outputs.shape[-1])
    return (starts + np.uint64(outputs.ctypes.data)).reshape(outputs.shape[:-1])


def write_rows(values: np.ndarray, addresses: np.ndarray) -> None:
    """Copy rows [S, P] to their addresses, as float32."""
    if not len(values):
        return
    base, width = int(addresses.min()), values.shape[1]
    count = (int(addresses.max()) - base) // 4 + width
    memory = np.ctypeslib.as_array(ctypes.cast(base, ctypes.POINTER(ctypes.c_float)), (count,))
    memory[((addresses - np.uint64(base)) // np.uint64(4)).astype(np.int64)[:, None] + np.arange(width)] = values
