"""Continuous batching: sentences run back to back in a fixed number of slots, and none waits for a longer one.

Where states are carried, sentence i runs in slot i mod B, as in batches of B; else in any slot with room. The
results are those of batches, in the order of the input.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from elmo_fast.model.bilm import BiLm
from elmo_fast.model.lstm import RunState
from elmo_fast.model.token_table.lookup import TokenEmbeddings
from elmo_fast.ops.device import HostCopy, to_device
from elmo_fast.ops.schedule import Schedule
from elmo_fast.text.characters import BEGIN_SENTENCE_TOKEN, END_SENTENCE_TOKEN

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


@dataclass(frozen=True)
class _Piece:
    """Steps `begin` to `end` of a sentence, run in a slot from step `at` of the chunk on."""

    sentence: _Sentence
    slot: int
    at: int
    begin: int
    end: int


@dataclass(frozen=True)
class _Chunk:
    """A chunk of steps that was queued: its pieces, the packed rows of each, and its outputs on their way to the host.

    The outputs are the vectors of the tokens that the forward direction read, [S, P], then each layer's [S, 2 P].
    """

    pieces: list[_Piece]
    rows: list[np.ndarray]
    outputs: HostCopy


@dataclass
class _Slot:
    queue: deque[_Sentence] = field(default_factory=deque)
    planned: int = 0


class SlotStream:
    """Embeds a stream of sentences in `slots` slots; iterate once over `run`.

    Carried states pass over an empty sentence alone in its batch, as in AllenNLP; with `runs_empty` it runs as
    `<S> </S>`, as in bilm-tf.
    """

    def __init__(self, bilm: BiLm, slots: int, runs_empty: bool = False):
        self._bilm = bilm
        self._slots = [_Slot() for _ in range(slots)]
        self._carried = bilm.state == "carry"
        self._runs_empty = runs_empty
        self._steps = max(16, _ROWS_PER_CHUNK // slots)
        self._tokens = _TokenVectors(bilm, _TABLE_ROWS)
        self._read = self._written = self._ahead = self._used = 0
        self._finished: dict[int, np.ndarray] = {}
        # On a GPU the outputs of a chunk are copied and collected while the next chunk runs.
        device = next(bilm.parameters()).device
        self._copies = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._chunks_ahead = 1 if self._copies else 0

    def run(self, sentences: Iterable[Sequence[str]]) -> Iterator[np.ndarray]:
        """Vectors of each sentence, float32 [layers, T, 2 P]. Carried states are stored when the stream has ended."""
        self._source = _with_last(iter(sentences))
        state: RunState | None = None
        queued: deque[_Chunk] = deque()
        while (pieces := self._plan()) or queued or self._finished:
            if pieces:
                with torch.no_grad():
                    table = self._tokens.update(self._in_flight(pieces))
                    chunk, state = self._advance(pieces, table, state)
                queued.append(chunk)
            while len(queued) > (self._chunks_ahead if pieces else 0):
                self._collect(queued.popleft())
            yield from self._in_order()
        if state and self._used:
            h, c = state.last
            self._bilm.lstm.store_state((h[:, : self._used], c[:, : self._used]))

    def _plan(self) -> list[_Piece]:
        """The pieces of the next chunk of steps."""
        pieces: list[_Piece] = []
        for slot in self._slots:
            slot.planned = 0
        while (number := self._slot_with_room()) is not None:
            slot = self._slots[number]
            sentence = slot.queue[0]
            count = min(len(sentence.rows) - sentence.done, self._steps - slot.planned)
            pieces.append(_Piece(sentence, number, slot.planned, sentence.done, sentence.done + count))
            sentence.done += count
            slot.planned += count
            if sentence.done == len(sentence.rows):
                slot.queue.popleft()
        return pieces

    def _slot_with_room(self) -> int | None:
        """The slot with the fewest planned steps that has room and a sentence; reads further sentences for it."""
        for number in sorted(range(len(self._slots)), key=lambda number: self._slots[number].planned):
            slot = self._slots[number]
            if slot.planned < self._steps and (slot.queue or self._read_for(number)):
                return number
        return None

    def _read_for(self, number: int) -> bool:
        """Read until the slot has a sentence; False when the stream ended or enough was read ahead."""
        while not self._slots[number].queue:
            if self._ahead >= max(_TOKENS_AHEAD, 32 * len(self._slots)):
                return False
            tokens, last = next(self._source, (None, True))
            if tokens is None:
                return False
            self._take(tokens, number, last)
        return True

    def _take(self, tokens: Sequence[str], number: int, last: bool) -> None:
        position = self._read % len(self._slots)
        alone = position == 0 and (last or len(self._slots) == 1)
        sentence = _Sentence(self._read, self._tokens.rows(tokens))
        self._read += 1
        self._ahead += len(sentence.rows)
        if self._carried and alone and not self._runs_empty and not len(tokens):
            self._finished[sentence.number] = self._empty(sentence)
            return
        self._used = max(self._used, position + 1)
        self._slots[position if self._carried else number].queue.append(sentence)

    def _in_flight(self, pieces: list[_Piece]) -> list[_Sentence]:
        queued = [sentence for slot in self._slots for sentence in slot.queue]
        planned = [piece.sentence for piece in pieces]
        return list({sentence.number: sentence for sentence in queued + planned}.values())

    def _advance(self, pieces: list[_Piece], table: TokenEmbeddings,
                 state: RunState | None) -> tuple[_Chunk, RunState]:
        """Queue the pieces: the chunk, and the state after it."""
        schedule, first_row, position = self._schedule(pieces)
        layers, state = self._bilm.run(table, torch.from_numpy(schedule.tokens), schedule, state)
        tokens = table.vectors[to_device(schedule.tokens[0], table.vectors.device)]
        rows = [first_row[piece.at : piece.at + piece.end - piece.begin] + position[piece.slot] for piece in pieces]
        outputs = HostCopy([each.float() for each in (tokens, *layers)], self._copies)
        return _Chunk(pieces, rows, outputs), state

    def _schedule(self, pieces: list[_Piece]) -> tuple[Schedule, np.ndarray, np.ndarray]:
        """The chunk's schedule, the packed row at which each step begins, and each slot's position in a step."""
        planned = np.array([slot.planned for slot in self._slots])
        order = np.argsort(-planned, kind="stable")
        position = np.empty_like(order)
        position[order] = np.arange(order.size)
        steps = int(planned.max())
        tokens = np.zeros((2, steps, order.size), dtype=np.int32)
        starts = np.zeros((steps, order.size), dtype=bool)
        for piece in pieces:
            place = slice(piece.at, piece.at + piece.end - piece.begin), position[piece.slot]
            tokens[0][place] = piece.sentence.rows[piece.begin : piece.end]
            tokens[1][place] = piece.sentence.rows[::-1][piece.begin : piece.end]
            starts[piece.at, position[piece.slot]] = piece.begin == 0
        running = planned[order] > np.arange(steps)[:, None]  # [steps, slots]
        batch_sizes = running.sum(1).astype(np.int32)
        schedule = Schedule(order, batch_sizes, np.ascontiguousarray(tokens[:, running]), starts[running])
        return schedule, np.cumsum(batch_sizes) - batch_sizes, position

    def _collect(self, chunk: _Chunk) -> None:
        """Copy a chunk's outputs to its sentences."""
        outputs = [each.numpy() for each in chunk.outputs.result()]
        for piece, rows in zip(chunk.pieces, chunk.rows):
            self._collect_piece(piece, rows, outputs)

    def _collect_piece(self, piece: _Piece, rows: np.ndarray, outputs: list[np.ndarray]) -> None:
        """Copy a piece's outputs to its sentence, without those of BOS and EOS."""
        sentence = piece.sentence
        length = len(sentence.rows)
        if sentence.vectors is None:
            sentence.vectors = self._empty(sentence)
        begin, end = max(piece.begin, 1), min(piece.end, length - 1)
        if begin < end:
            inner = rows[begin - piece.begin : end - piece.begin]
            half = sentence.vectors.shape[2] // 2
            tokens, *layers = outputs
            sentence.vectors[0, begin - 1 : end - 1] = np.tile(tokens[inner], 2)
            for layer, output in zip(sentence.vectors[1:], layers):
                layer[begin - 1 : end - 1, :half] = output[inner, :half]
                layer[length - 1 - end : length - 1 - begin, half:] = output[inner[::-1], half:]
        if piece.end == length:
            self._finished[sentence.number] = sentence.vectors

    def _empty(self, sentence: _Sentence) -> np.ndarray:
        """Uninitialized vectors of a sentence."""
        return np.empty((self._bilm.num_layers, len(sentence.rows) - 2, self._bilm.get_output_dim()), dtype=np.float32)

    def _in_order(self) -> Iterator[np.ndarray]:
        while self._written in self._finished:
            vectors = self._finished.pop(self._written)
            self._ahead -= vectors.shape[1] + 2
            self._written += 1
            yield vectors


class _TokenVectors:
    """A bounded table of token vectors: each unique token is encoded once, until it is dropped from a full table."""

    def __init__(self, bilm: BiLm, capacity: int):
        self._table: TokenEmbeddings | None = None
        self._bilm = bilm
        self._capacity = capacity
        self._rows: dict[str, int] = {}

    def rows(self, tokens: Sequence[str]) -> np.ndarray:
        """Rows of a sentence's tokens, with BOS and EOS: int32 [tokens + 2]; `update` then encodes new ones."""
        bounded = (BEGIN_SENTENCE_TOKEN, *tokens, END_SENTENCE_TOKEN)
        return np.array([self._rows.setdefault(token, len(self._rows)) for token in bounded], dtype=np.int32)

    def update(self, in_flight: list[_Sentence]) -> TokenEmbeddings:
        """The table, with new tokens encoded. A full one keeps the tokens in flight and renumbers their `rows`."""
        known = len(self._table.vectors) if self._table else 0
        if known < len(self._rows):
            self._table = _joined(self._table, self._bilm.token_encoder.strings(list(self._rows)[known:]))
        if len(self._rows) > self._capacity:
            self._drop_unused(in_flight)
        return self._table

    def _drop_unused(self, in_flight: list[_Sentence]) -> None:
        kept, renumbered = np.unique(np.concatenate([sentence.rows for sentence in in_flight]), return_inverse=True)
        tokens = list(self._rows)
        self._rows = {tokens[row]: number for number, row in enumerate(kept)}
        vectors, table_rows = self._table
        vectors = vectors[to_device(kept, vectors.device).long()]
        self._table = TokenEmbeddings(vectors, None if table_rows is None else table_rows[kept])
        ends = np.cumsum([len(sentence.rows) for sentence in in_flight])[:-1]
        for sentence, rows in zip(in_flight, np.split(renumbered.astype(np.int32), ends)):
            sentence.rows = rows


def _joined(table: TokenEmbeddings | None, new: TokenEmbeddings) -> TokenEmbeddings:
    if table is None:
        return new
    rows = None if table.rows is None or new.rows is None else np.concatenate([table.rows, new.rows])
    return TokenEmbeddings(torch.cat([table.vectors, new.vectors]), rows)


def _with_last(items: Iterator) -> Iterator[tuple]:
    """Each item and whether it is the last."""
    before = next(items, None)
    while before is not None:
        following = next(items, None)
        yield before, following is None
        before = following
