"""Vectors of tokenized sentences from a model: streams in slots, batches where states are carried, runs for files."""

import contextlib
import copy
import hashlib
import json
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from elmo_fast.arguments import DEFAULT_BATCH_SIZE, FREE_STATES, MOST_SENTENCES, STATES, check_choice, check_count
from elmo_fast.engine.backend import runs_as
from elmo_fast.engine.model import Model, State
from elmo_fast.engine.stream import SlotStream
from elmo_fast.engine.tokens import SpareVectors
from elmo_fast.environment import VERSION
from elmo_fast.text.batching import check_batch, check_sentence, groups_of
from elmo_fast.text.readers import Text

_WIDE = 512  # values per vector from which a layer's weights exceed a core's private cache
_MANY = 512  # sentences at a time on a GPU: a step of so few as 64 leaves most of it idle, or waits for its weights


@dataclass(frozen=True)
class Runner:
    """How texts become vectors.

    `group` divides texts into groups, after which a part may end; `run` gives the vectors of the texts of groups in
    order, [layers, T, 2 P] each, in the `state` of the model's calls; carried states continue from call to call.
    `settings` are JSON values. `embedder` has the model and the carried states.
    """

    embedder: "Embedder"
    group: Callable[[Iterator[Text]], Iterator[list[Text]]]
    run: Callable[[Iterator[list[Text]]], Iterator[np.ndarray]]
    settings: Mapping[str, Any]
    state: str

    def states(self) -> State | None:
        """A copy of the carried states, None where none are carried."""
        carried = self.embedder.carried if self.state == "carry" else None
        return None if carried is None else (carried[0].copy(), carried[1].copy())

    def restore(self, states: State | None) -> None:
        """Set the carried states."""
        if self.state == "carry":
            self.embedder.carried = states

    def describe(self) -> dict[str, Any]:
        """JSON values that are equal where the same texts give the same vectors."""
        model, table = self.embedder.model, self.embedder.model.token_table
        device = str(model.device).partition(":")[0]
        found = {"version": VERSION, "model": model.fingerprint, "state": self.state,
                 "precision": model.precision, "backend": model.backend, "device": device,
                 "effective precision": runs_as(model.computes_in) if device == "cpu" else model.computes_in,
                 "token_table": table and [table.fingerprint, len(table), table.storage, table.unknown]}
        if self.state == "carry":
            states = self.states()
            found["initial states"] = states and _digest(b"".join(value.tobytes() for value in states))
        if self.state == "warm":
            found["warm text"] = _digest(json.dumps(list(map(list, model.warm_text))).encode())
        return {**found, **self.settings}


class Embedder:
    """Computes with a model, which threads may share; the states that calls carry belong to the embedder."""

    carried: State | None = None

    def __init__(self, model: Model, state: str = "warm"):
        self.model, self._state = model, check_choice("state", state, STATES)
        self._lock = threading.RLock()
        self._spare = SpareVectors()

    def copy(self, memo: dict) -> "Embedder":
        """An embedder of the same model, with a copy of the carried states."""
        twin = Embedder(self.model, self._state)
        twin.carried = copy.deepcopy(self.carried, memo)
        return twin

    @property
    def state(self) -> str:
        """The state of calls that name none."""
        return self._state

    def stream(self, sentences: Iterable[Sequence[str]], batch_size: int | None,
               state: str | None = None) -> Iterator[np.ndarray]:
        """Vectors of sentences that were checked before, float32 [layers, tokens, 2 P] each, in order.

        `batch_size` sentences run at a time, batch after batch if states are carried; otherwise each slot takes its
        next sentence as soon as it is free (see `SlotStream`), and a bounded number of sentences is read ahead. By
        default 64 sentences run at a time; if no states are carried 128 where the CPU computes a wide model below
        `highest`, and so reads the weights half as often, and 512 on a GPU.
        """
        # Sentences are read ahead: a list that the caller fills anew is copied when it comes.
        state = self._state_of(state)
        sentences, batch_size = map(tuple, sentences), self.rows(batch_size, state)
        if state in FREE_STATES and not self._runs_padded():
            return self._slot_stream(batch_size, state).run(sentences)
        return self._in_batches(sentences, batch_size, state)

    def embed_sentence(self, sentence: Sequence[str]) -> np.ndarray:
        """Vectors of one tokenized sentence: float32 [layers, tokens, 2 P]."""
        return self.embed_batch([check_sentence(sentence)])[0]

    def embed_batch(self, batch: Sequence[Sequence[str]]) -> list[np.ndarray]:
        """Vectors of a batch, float32 [layers, tokens, 2 P] per sentence; an empty sentence has 0 tokens.

        A single empty sentence does not change the carried states, as in AllenNLP; in a larger batch an empty sentence
        runs as `<S> </S>`.
        """
        return self.batch(check_batch(batch), self.state)

    def batch(self, batch: Sequence[Sequence[str]], state: str, stream: SlotStream | None = None) -> list[np.ndarray]:
        """Vectors of the sentences of a batch; a single empty sentence leaves carried states unchanged."""
        if not batch:
            return []
        if len(batch) == 1 and not len(batch[0]):
            return [np.zeros((self.model.num_layers, 0, self.model.output_dim), np.float32)]
        with self.exclusive(state == "carry"):
            return list(self._run(stream or self._slot_stream(len(batch), state), batch, state))

    def runner(self, batch_size: int | None, state: str | None = None) -> Runner:
        """The `Runner` that computes vectors for `write_corpus`. With carried states a section has whole batches."""
        state = self._state_of(state)
        batch_size = self.rows(batch_size, state)
        stream = self._slot_stream(batch_size, state)

        def run(groups: Iterator[list]) -> Iterator[np.ndarray]:
            sentences = (text.tokens for group in groups for text in group)
            return (self._in_batches(sentences, batch_size, state) if self._runs_padded() else
                    self._run(stream, sentences, state))

        return Runner(self, lambda texts: groups_of(texts, batch_size), run,
                      {"batch_size": batch_size} if state == "carry" else {}, state)

    def _state_of(self, state: str | None) -> str:
        return self.state if state is None else check_choice("state", state, STATES)

    def exclusive(self, carried: bool) -> contextlib.AbstractContextManager:
        """A context in which no other thread reads or stores the carried states, if states are `carried`."""
        return self._lock if carried else contextlib.nullcontext()

    def rows(self, batch_size: int | None, state: str) -> int:
        """Sentences that run at a time: the caller's number, or the default of `stream`."""
        if batch_size is not None:
            return check_count("batch_size", batch_size, most=MOST_SENTENCES)
        if state not in FREE_STATES:
            return DEFAULT_BATCH_SIZE
        if not str(self.model.device).startswith("cpu"):
            return _MANY
        is_fast = self.model.computes_in != "highest" and self.model.output_dim >= _WIDE
        return 2 * DEFAULT_BATCH_SIZE if is_fast else DEFAULT_BATCH_SIZE

    def _runs_padded(self) -> bool:
        """Whether batches run padded, by a call of a module."""
        return False

    def _slot_stream(self, slots: int, state: str) -> SlotStream:
        """A stream that takes the token vectors of earlier calls."""
        return SlotStream(self.model, slots, state, spare=self._spare)

    def _in_batches(self, sentences: Iterable[Sequence[str]], batch_size: int, state: str) -> Iterator[np.ndarray]:
        stream = self._slot_stream(batch_size, state)
        for batch in groups_of(sentences, batch_size):
            yield from self.batch(batch, state, stream)

    def _run(self, stream: SlotStream, sentences: Iterable[Sequence[str]], state: str) -> Iterator[np.ndarray]:
        if state != "carry":
            yield from stream.run(sentences)
            return
        stream.carried = self.carried
        yield from stream.run(sentences)
        self.carried = stream.carried


def _digest(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=16).hexdigest()
