"""The carried states of a stream, whose slots run ahead of the results that were asked for."""

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
    """A chunk of steps that ran: its last batch, the state before it where that batch begins in it, and its spans."""

    batch: int
    before: RunState | None
    spans: list[Span]


# Runs spans, each to the end of its sentence, from a state: the state after them.
Replay = Callable[[RunState, list[Span]], RunState]


class StreamStates:
    """Stores in a model the states after each batch of a stream, as if slots had run no further than that batch.

    Where they have, or have not run the whole batch yet, a function is stored: it runs what is needed when the states
    are asked for. All calls but `note` are made under the lock of the model's carried states.
    """

    def __init__(self, bilm: BiLm, slots: int, replay: Replay):
        self._bilm, self._slots, self._replay = bilm, slots, replay
        self._history: deque[_Chunk] = deque()  # from the first chunk on that begins a later batch than the stored one

    def begin(self, first: int) -> RunState:
        """Where slots begin, with sentence `first`, the first of a batch: in the states that the model carries now."""
        stack = self._bilm.lstm
        self._first, self._latest, self._has_run = first, first // self._slots - 1, False
        self._beyond, self._changes = stack._states, stack.carried.changes
        self._history.clear()
        return self._bilm.begin(self._slots, "carry")

    @property
    def is_current(self) -> bool:
        """Whether nothing else was stored in the model since the last call here."""
        return self._changes == self._bilm.lstm.carried.changes

    def note(self, before: RunState, spans: list[Span]) -> None:
        """A chunk has run, from a state."""
        batch = max(span.number for span in spans) // self._slots
        self._history.append(_Chunk(batch, before if batch > self._latest else None, spans))
        self._latest = max(self._latest, batch)

    def store(self, end: int, last: RunState, waiting: Iterable[Span], runs: bool) -> None:
        """Store the states after a batch, which ends before sentence `end`; `last` is where the slots are now.

        `waiting` are the spans of sentences before `end` that have not run; `runs`: whether the batch changes states.
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
            for span in (each for some in spans for each in some if each.number < end):
                first.setdefault(span.number, span)
            final = replay(start, list(first.values())) if first else start
            return above(tuple(values[:, :rows] for values in final.last), beyond)

        stack.replace_carried(states if any(spans) else states())
        self._changes = stack.carried.changes
