"""A model at rest: its weights, packed or plain, which nothing changes; threads share it.

`Model` has what the implementations share. An implementation has `_encode` (ids to vectors) and `chunks`, which run the
LSTM layers for a stream. A `HostModel` has `run`, which writes outputs to addresses:
`native` on the C++ engine, `reference` in NumPy. `nn.gpu` has the model of a GPU.
"""

import contextlib
import ctypes
import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Sequence
from typing import NamedTuple

import numpy as np

from elmo_fast.engine.schedule import Schedule, make_schedule
from elmo_fast.engine.scheduler import Piece, Sentence, plan_of, rows_of, spans_of
from elmo_fast.engine.table import TokenTable
from elmo_fast.engine.tokens import empty_rows
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

    def __init__(self, options: Options, weights: Weights, warm_text: Sequence[Sequence[str]] = WARM_TEXT):
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
        last = tuple(self._zeros(lstm.n_layers, slots, size) for size in sizes)
        if state == "warm":
            return RunState(last, self._warm)
        if state == "zero":
            return RunState(last, tuple(self._zeros(lstm.n_layers, size) for size in sizes))
        for values, old in zip(last, carried or ()):
            values[:, : old.shape[1]] = old[:, :slots]
        return RunState(last, None)

    @abstractmethod
    def _zeros(self, *shape: int) -> np.ndarray:
        """Values of a state."""

    @abstractmethod
    def last_state(self, state: RunState) -> State:
        """The state after the last step, as `carried` in `begin`."""

    @abstractmethod
    def chunks(self, slots: int) -> "HostChunks":
        """What runs the chunks of a stream in `slots` slots."""

    def _warm_steps(self) -> tuple[list[str], Schedule]:
        """The tokens of the warm text, and their schedule in one slot."""
        first, last = self.token_ids.boundaries
        tokens = [token for sentence in self.warm_text for token in (first, *sentence, last)]
        lengths = np.array([len(sentence) + 2 for sentence in self.warm_text])
        return tokens, make_schedule(lengths, np.zeros_like(lengths))

    def _encode(self, ids: np.ndarray) -> np.ndarray:
        """Ids int32 [N, ...] -> float32 [N, P]."""
        raise NotImplementedError


class HostModel(Model):
    """A model that reads and writes arrays of NumPy."""

    @abstractmethod
    def run(self, vectors: np.ndarray, rows: np.ndarray, schedule: Schedule, state: RunState,
            addresses: np.ndarray) -> RunState:
        """Run all LSTM layers over the packed rows of a schedule; returns the state after the last.

        `vectors` float32 [R, P] and `rows` int32 [2, S] are the inputs of both directions. `addresses` uint64
        [L, 2, S]: where each layer writes the output float32 [P] of each direction at each packed row, in memory that
        the caller keeps; no two are equal. `state` is not changed.
        """

    def chunks(self, slots: int) -> "HostChunks":
        return HostChunks(self)

    def _zeros(self, *shape: int) -> np.ndarray:
        return np.zeros(shape, np.float32)

    def last_state(self, state: RunState) -> State:
        return state.last

    @functools.cached_property
    def _warm(self) -> State:
        """The state after the warm text, (h [L, 2 P], c [L, 2 D])."""
        tokens, schedule = self._warm_steps()
        lstm, packed_rows = self.options.lstm, schedule.tokens.shape[1]
        outputs = np.empty((lstm.n_layers, 2, packed_rows, lstm.projection_dim), np.float32)
        begin, vectors = self.begin(1, "carry"), self._encode(self.token_ids(tokens))
        h, c = self.run(vectors, schedule.tokens, schedule, begin, addresses_of(outputs)).last
        return h[:, 0], c[:, 0]


class HostChunks:
    """Runs the chunks of a stream on a `HostModel`, which writes every output to the array of its sentence.

    `encode` gives vectors of tokens, and `empty` memory for them, where `run` reads them. At most `most_in_flight`
    chunks run while the next is planned, and a chunk has `least_steps` with any number of slots.
    """

    most_in_flight, least_steps = 0, 16
    empty = staticmethod(empty_rows)
    queue: Callable[[], contextlib.AbstractContextManager] = contextlib.nullcontext  # for the work of a chunk

    def __init__(self, model: HostModel):
        self._model, self.encode = model, model.encode

    def run(self, pieces: Sequence[Piece], idle: Sequence[Sentence], vectors: np.ndarray,
            state: RunState) -> tuple[RunState, Callable[[], list[Sentence]]]:
        """Run a chunk; returns the new state, and a function that waits for the sentences that end, with vectors.

        `idle` are sentences that began before and have no piece in the chunk. An error changes nothing.
        """
        for piece in pieces:
            if piece.sentence.vectors is None:
                self._put_token_vectors(piece.sentence, vectors)
        plan = plan_of(spans_of(pieces), state.last[0].shape[1], self._model.num_layers)
        addresses, _boundaries = plan.addresses(pieces)  # the name keeps their memory
        state = self._model.run(vectors, rows_of(pieces, plan.schedule), plan.schedule, state, addresses)
        ended = [sentence for sentence, _, _, end in pieces if end == len(sentence.rows)]
        return state, lambda: ended

    def close(self) -> None:
        """End the run of a stream, also before its end."""

    def _put_token_vectors(self, sentence: Sentence, vectors: np.ndarray) -> None:
        """Give a sentence its memory, with the token `vectors` [R, P] in both halves of the first layer."""
        count, width = len(sentence.rows) - 2, self._model.output_dim
        sentence.vectors = np.empty((self._model.num_layers, count, width), np.float32)
        tokens, layer = vectors.take(sentence.rows[1:-1], 0), sentence.vectors[0]
        layer.reshape(count, 2, width // 2)[:] = tokens[:, None]


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
