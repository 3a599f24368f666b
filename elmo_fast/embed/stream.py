"""Continuous batching: sentences run back to back in a fixed number of slots, and none waits for a longer one."""

import heapq
import itertools
import logging
from collections import deque
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch

from elmo_fast.embed.layouts.item import fits_float16
from elmo_fast.model.bilm import BiLm
from elmo_fast.model.lstm import RunState
from elmo_fast.model.token_table.lookup import TokenEmbeddings
from elmo_fast.ops.device import HostCopy, to_device
from elmo_fast.ops.schedule import make_schedule
from elmo_fast.text.batching import not_a_string

logger = logging.getLogger(__name__)

_ROWS_PER_CHUNK = 4096
_TOKENS_AHEAD = 1 << 15
_TABLE_ROWS = 1 << 15


@dataclass
class _Sentence:
    """A sentence with BOS and EOS: rows of token vectors, steps scheduled, and the vectors so far [layers, T, 2 P]."""

    number: int
    rows: np.ndarray
    done: int = 0
    vectors: np.ndarray | None = None


class _Piece(NamedTuple):
    """Steps `begin` to `end` of a sentence, run in a slot."""

    sentence: _Sentence
    slot: int
    begin: int
    end: int


# A queued chunk of steps: its pieces, the packed rows of each, and its outputs on their way to the host, which are the
# vectors of the tokens that the forward direction read, [S, P], then each layer's [S, 2 P].
_Chunk = tuple[list[_Piece], list[np.ndarray], HostCopy]
_Numbered = list[tuple[int, np.ndarray]]


class SlotStream:
    """Embeds streams of sentences in `slots` slots, but no more than there are sentences; one `run` after the other.

    Where states are carried, sentence i runs in slot i mod B, as in batches of B; else in any slot with room. The
    results are those of batches, in the order of the input. Carried states pass over an empty sentence alone in its
    batch, as in AllenNLP; with `runs_empty` it runs as `<S> </S>`, as in bilm-tf. Vectors of tokens are shared by the
    runs, between which weights must not change. When memory is out, chunks of steps become smaller.

    `dtype` is float32, or float16 where vectors are only stored: on a CPU those of a chunk without a value beyond
    float16 are then float16, others float32.
    """

    def __init__(self, bilm: BiLm, slots: int, runs_empty: bool = False, dtype: torch.dtype = torch.float32):
        self._bilm = bilm
        self._slots = slots
        self._dtype = dtype
        self._queues: list[deque[_Sentence]] = []
        self._carried = bilm.state == "carry"
        self._runs_empty = runs_empty
        self._tokens = _TokenVectors(bilm)
        self._halvings = 0  # of a chunk, for want of memory
        # On a GPU the outputs of a chunk are copied and collected while the next chunk runs.
        device = next(bilm.parameters()).device
        self._copies = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._chunks_ahead = 1 if self._copies else 0

    def run(self, sentences: Iterable[Sequence[str]]) -> Iterator[np.ndarray]:
        """Vectors of each sentence, [layers, T, 2 P]. Carried states are stored when the stream has ended."""
        return self._run(sentences, None)

    def run_as_they_come(self, take: Callable[[], Sequence[str] | None]) -> Iterator[tuple[int, _Numbered]]:
        """Rows computed and sentences finished, [(number, vectors)], after every chunk, until nothing runs.

        A free slot calls `take` for its next sentence, numbered from 0 in that order; None is none at present. For
        `zero` and `warm` states.
        """
        return self._run((), take)

    def drop(self, numbers: Container[int]) -> None:
        """Leave off sentences between two chunks of `run_as_they_come`."""
        for queue in self._queues:
            if queue and queue[0].number in numbers:
                queue.popleft()

    def _run(self, sentences: Iterable[Sequence[str]], take: Callable[[], Sequence[str] | None] | None) -> Iterator:
        sentences = iter(sentences)
        first = list(itertools.islice(sentences, self._slots))
        self._begin(self._slots if take else max(1, len(first)))
        self._source = (((take(), None) for _ in itertools.repeat(None)) if take else
                        itertools.pairwise(itertools.chain(first, sentences, [None])))
        state: RunState | None = None
        queued: deque[_Chunk] = deque()
        while (pieces := self._plan()) or queued or self._finished:
            chunk: _Chunk | None = None
            try:
                if pieces:
                    with torch.no_grad():
                        in_flight = itertools.chain(*self._queues, (piece.sentence for piece in pieces))
                        table = self._tokens.update(list(in_flight))
                        chunk, state = self._advance(pieces, table, state)
                    queued.append(chunk)
            except (RuntimeError, MemoryError) as error:
                self._shrink_chunks(error)
            if pieces and not chunk:
                self._undo(pieces)
            while len(queued) > (self._chunks_ahead if chunk else 0):
                self._collect(queued.popleft())
            yield from self._as_they_came(pieces if chunk else []) if take else self._in_order()
        if state:
            self._bilm.lstm.store_state(tuple(values[:, : self._read] for values in state.last))

    def _in_order(self) -> Iterator[np.ndarray]:
        while self._written in self._finished:
            vectors = self._finished.pop(self._written)
            self._ahead -= vectors.shape[1] + 2
            self._written += 1
            yield vectors

    def _as_they_came(self, pieces: list[_Piece]) -> Iterator[tuple[int, _Numbered]]:
        finished, self._finished, self._ahead = list(self._finished.items()), {}, 0
        yield sum(piece.end - piece.begin for piece in pieces), finished

    def _begin(self, slots: int) -> None:
        self._queues: list[deque[_Sentence]] = [deque() for _ in range(slots)]
        self._finished: dict[int, np.ndarray] = {}
        self._read = self._written = self._ahead = 0
        self._limit_chunks()

    def _limit_chunks(self) -> None:
        """Set the steps of a chunk and the slots that run in it, after so many halvings first of the steps."""
        slots = len(self._queues)
        self._rows = max(1, slots * max(16, _ROWS_PER_CHUNK // slots) >> self._halvings)
        self._steps, self._width = max(1, self._rows // slots), min(slots, self._rows)
        self._tokens.most = max(1, _TABLE_ROWS >> self._halvings)

    def _plan(self) -> list[_Piece]:
        """The pieces of the next chunk of steps."""
        pieces: list[_Piece] = []
        least = [(0, slot) for slot in range(len(self._queues))]  # a heap of planned steps and slots
        running = 0
        while least:
            planned, slot = heapq.heappop(least)
            if not planned and running == self._width:
                continue
            if not self._queues[slot] and not self._read_for(slot):
                continue
            running += not planned
            sentence = self._queues[slot][0]
            begin = sentence.done
            sentence.done = min(len(sentence.rows), begin + self._steps - planned)
            pieces.append(_Piece(sentence, slot, begin, sentence.done))
            planned += sentence.done - begin
            if sentence.done == len(sentence.rows):
                self._queues[slot].popleft()
            if planned < self._steps:
                heapq.heappush(least, (planned, slot))
        return pieces

    def _undo(self, pieces: list[_Piece]) -> None:
        """Put the pieces, for which memory was out, back into the queues, in front."""
        for sentence, slot, begin, end in reversed(pieces):
            if end == len(sentence.rows):
                self._queues[slot].appendleft(sentence)
            sentence.done = begin
        if self._copies:
            torch.cuda.empty_cache()

    def _read_for(self, slot: int) -> bool:
        """Read until the slot has a sentence; False when the stream ended or enough was read ahead."""
        while not self._queues[slot]:
            if self._ahead >= max(_TOKENS_AHEAD, 32 * len(self._queues)):
                return False
            tokens, following = next(self._source, (None, None))
            if tokens is None:
                return False
            position = self._read % len(self._queues)
            alone = position == 0 and (following is None or len(self._queues) == 1)
            sentence = _Sentence(self._read, self._tokens.rows(tokens))
            self._read += 1
            self._ahead += len(sentence.rows)
            if self._carried and alone and not self._runs_empty and not len(tokens):
                self._finished[sentence.number] = self._empty(sentence)
            else:
                self._queues[position if self._carried else slot].append(sentence)
        return True

    def _shrink_chunks(self, error: RuntimeError | MemoryError) -> None:
        """Halve the chunks where memory is out; raise other errors, and this one where no half is left."""
        if not _is_out_of_memory(error) or self._rows == self._tokens.most == 1:
            raise error
        if not self._halvings:
            logger.warning("memory is out, and chunks are smaller from here on: %s", str(error).partition("\n")[0])
        self._halvings += 1
        self._limit_chunks()

    def _advance(self, pieces: list[_Piece], table: TokenEmbeddings, state: RunState | None) -> tuple[_Chunk, RunState]:
        """Queue the pieces: the chunk, and the state after it."""
        counts = [piece.end - piece.begin for piece in pieces]
        schedule = make_schedule(counts, [piece.slot for piece in pieces], len(self._queues))
        forward = np.concatenate([piece.sentence.rows[piece.begin : piece.end] for piece in pieces])
        backward = np.concatenate([piece.sentence.rows[::-1][piece.begin : piece.end][::-1] for piece in pieces])
        tokens = np.stack([forward[schedule.tokens[0]], backward[schedule.tokens[1]]])  # rows of token vectors
        packed_rows = np.split(np.argsort(schedule.tokens[0]), np.cumsum(counts)[:-1])
        starts = schedule.sequence_starts.copy()
        starts[[rows[0] for piece, rows in zip(pieces, packed_rows) if piece.begin > 0]] = False
        schedule = replace(schedule, tokens=tokens, sequence_starts=starts)
        layers, state = self._bilm.run(table, torch.from_numpy(tokens), schedule, state)
        vectors = table.vectors[to_device(schedule.tokens[0], table.vectors.device)]
        return (pieces, packed_rows, HostCopy(self._converted([vectors, *layers]), self._copies)), state

    def _converted(self, outputs: list[torch.Tensor]) -> list[torch.Tensor]:
        """Outputs of a chunk, in the stream's type where that holds them."""
        outputs = [each.float() for each in outputs]
        # On a GPU looking at values would wait for it.
        if self._dtype == torch.float32 or outputs[0].device.type != "cpu" or not all(map(fits_float16, outputs)):
            return outputs
        return [each.to(self._dtype) for each in outputs]

    def _collect(self, chunk: _Chunk) -> None:
        """Copy a chunk's outputs to its sentences, without those of BOS and EOS."""
        pieces, packed, outputs = chunk
        tokens, *layers = (each.numpy() for each in outputs.result())
        half = tokens.shape[1]
        for (sentence, _, first, last), rows in zip(pieces, packed):
            length = len(sentence.rows)
            if sentence.vectors is None:
                sentence.vectors = self._empty(sentence, tokens.dtype)
            elif tokens.dtype == np.float32:
                sentence.vectors = sentence.vectors.astype(np.float32, copy=False)
            begin, end = max(first, 1), min(last, length - 1)
            if begin < end:
                inner = rows[begin - first : end - first]
                sentence.vectors[0, begin - 1 : end - 1].reshape(-1, 2, half)[:] = tokens.take(inner, 0)[:, None]
                for layer, output in zip(sentence.vectors[1:], layers):
                    both = output.take(inner, 0)  # faster than two indices of half rows
                    layer[begin - 1 : end - 1, :half] = both[:, :half]
                    layer[length - 1 - end : length - 1 - begin, half:] = both[::-1, half:]
            if last == length:
                self._finished[sentence.number] = sentence.vectors

    def _empty(self, sentence: _Sentence, dtype: type | np.dtype = np.float32) -> np.ndarray:
        """Uninitialized vectors of a sentence."""
        return np.empty((self._bilm.num_layers, len(sentence.rows) - 2, self._bilm.get_output_dim()), dtype)


class _TokenVectors:
    """A bounded table of token vectors: each unique token is encoded once, until it is dropped from a full table."""

    def __init__(self, bilm: BiLm):
        self._bilm = bilm
        self.most = _TABLE_ROWS  # tokens encoded at a time
        self._table: TokenEmbeddings | None = None
        self._capacity = torch.empty(0, 0)  # the table's vectors and room for more
        self._rows: dict[str, int] = {}
        self._kept = 0  # tokens that were in flight when the table was last full

    def rows(self, tokens: Sequence[str]) -> np.ndarray:
        """Rows of a sentence's tokens, with BOS and EOS: int32 [tokens + 2]; `update` then encodes new ones."""
        first, last = self._bilm.token_source.boundaries
        bounded = (first, *tokens, last)
        try:
            return np.array([self._rows.setdefault(token, len(self._rows)) for token in bounded], dtype=np.int32)
        except TypeError as error:
            raise not_a_string(error) from error

    def update(self, in_flight: list[_Sentence]) -> TokenEmbeddings:
        """The table, with new tokens encoded. A full one keeps the tokens in flight and renumbers their `rows`."""
        known = len(self._table.vectors) if self._table else 0
        if known < len(self._rows):
            tokens = list(self._rows)
            for begin in range(known, len(tokens), self.most):
                self._append(self._bilm.token_encoder.strings(tokens[begin : begin + self.most]))
        if len(self._rows) > max(_TABLE_ROWS, 2 * self._kept):
            rows = np.concatenate([sentence.rows for sentence in in_flight])
            kept, renumbered = np.unique(rows, return_inverse=True)
            tokens, (vectors, table_rows) = list(self._rows), self._table
            self._table = TokenEmbeddings(vectors[to_device(kept, vectors.device).long()],
                                          None if table_rows is None else table_rows[kept])
            self._rows = {tokens[row]: number for number, row in enumerate(kept)}
            self._capacity, self._kept = self._table.vectors, len(kept)
            ends = np.cumsum([len(sentence.rows) for sentence in in_flight])[:-1]
            for sentence, rows in zip(in_flight, np.split(renumbered.astype(np.int32), ends)):
                sentence.rows = rows
        return self._table

    def _append(self, new: TokenEmbeddings) -> None:
        if self._table:
            rows = None if new.rows is None or self._table.rows is None else [self._table.rows, new.rows]
            known, count = len(self._table.vectors), len(self._table.vectors) + len(new.vectors)
            if count > len(self._capacity):
                self._capacity = new.vectors.new_empty(2 * count, new.vectors.shape[1])
                self._capacity[:known] = self._table.vectors
            self._capacity[known:count] = new.vectors
            new = TokenEmbeddings(self._capacity[:count], rows and np.concatenate(rows))
        self._table = new


def _is_out_of_memory(error: RuntimeError | MemoryError) -> bool:
    """Whether it is an error of torch's allocators, of CUDA, or of C++."""
    return (isinstance(error, (MemoryError, torch.OutOfMemoryError))
            or any(words in str(error) for words in ("out of memory", "can't allocate memory", "not enough memory")))
