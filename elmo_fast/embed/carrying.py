"""The carried states of a stream, whose slots run ahead of the results that the caller has taken."""

import itertools
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from elmo_fast.model.bilm import BiLm
from elmo_fast.model.layers.lstm import RunState, above
from elmo_fast.ops.projected_lstm.reference import State


class Span(NamedTuple):
    """The steps of a sentence from `begin` on, in a slot."""

    number: int
    slot: int
    begin: int
    tokens: Sequence[str]


class _Chunk(NamedTuple):
    """A chunk of steps that has run: its last batch, its spans, and the state before it if that batch begins in it."""

    batch: int
    before: RunState | None
    spans: list[Span]


# Runs each span to the end of its sentence, from a state; returns the state after the spans.
Replay = Callable[[RunState, list[Span]], RunState]


class StreamStates:
    """Stores in a model the states after each batch of a stream, as if slots had run no further than that batch.

    If slots have run further, or have not finished the batch, a function is stored: it computes the states when they
    are first read. All calls except `note` are made under the lock of the model's carried states.
    """

    def __init__(self, bilm: BiLm, slots: int, replay: Replay):
        self._bilm, self._slots, self._replay = bilm, slots, replay
        self._history: deque[_Chunk] = deque()  # starts with the chunk where a batch after the stored batch begins

    def begin(self, first: int) -> RunState:
        """The state of the slots before `first`, the first sentence of a batch: the states that the model carries."""
        stack = self._bilm.lstm
        self._first, self._latest, self._has_run = first, first // self._slots - 1, False
        self._beyond, self._changes = stack._states, stack.carried.changes
        self._history.clear()
        return self._bilm.begin(self._slots, "carry")

    @property
    def is_current(self) -> bool:
        """Whether the model's states were stored by nothing else since the last `begin` or `store`."""
        return self._changes == self._bilm.lstm.carried.changes

    def note(self, before: RunState, spans: list[Span]) -> None:
        """Record a chunk that has run from the state `before`."""
        batch = max(span.number for span in spans) // self._slots
        self._history.append(_Chunk(batch, before if batch > self._latest else None, spans))
        self._latest = max(self._latest, batch)

    def store(self, end: int, last: RunState, waiting: Iterable[Span], runs: bool) -> None:
        """Store the states after a batch, which ends before sentence `end`; `last` is the current state of the slots.

        `waiting` are the spans of sentences before `end` that have not run; `runs` says if the batch changes states.
        """
        self._has_run |= runs
        if not self._has_run:
            return
        while self._history and self._history[0].batch < -(-end // self._slots):
            self._history.popleft()
        start = self._history[0].before if self._history else last
        spans = [*(chunk.spans for chunk in self._history), list(waiting)]
        rows, beyond, replay, stack = min(self._slots, end - self._first), self._beyond, self._replay, self._bilm.lstm

        def states() -> State:
            first: dict[int, Span] = {}
            for span in itertools.chain.from_iterable(spans):
                if span.number < end:
                    first.setdefault(span.number, span)
            final = replay(start, list(first.values())) if first else start
            return above(tuple(values[:, :rows] for values in final.last), beyond)

        stack.carried.store(states if any(spans) else states())
        self._changes = stack.carried.changes
