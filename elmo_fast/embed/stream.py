"""Slots: a stream of sentences runs back to back in a fixed number of rows, and no row waits for a longer sentence.

Where states are carried, sentence i runs in slot i mod B, as in batches of B; else wherever there is room. The
results are those of batches, in the order of the input.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from elmo_fast.embed.token_vectors import TokenVectors
from elmo_fast.model.bilm import BiLm
from elmo_fast.model.states import RunState
from elmo_fast.ops.device import HostCopy, to_device
from elmo_fast.ops.schedule import Schedule

_ROWS_AT_ONCE = 4096
_TOKENS_AHEAD = 1 << 15


@dataclass
class _Sentence:
    """A sentence with its boundaries: rows of token vectors, steps done, and the vectors so far [layers, T, 2 P]."""

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
class _Begun:
    """A chunk that was queued: its pieces, the packed rows of each, and its outputs on their way to the host.

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
        self._steps = max(16, _ROWS_AT_ONCE // slots)
        self._tokens = TokenVectors(bilm)
        self._read = self._written = self._ahead = self._used = 0
        self._finished: dict[int, np.ndarray] = {}
        # On a GPU the outputs of a chunk come back, and go where they belong, while the next chunk runs.
        device = next(bilm.parameters()).device
        self._copies = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._chunks_ahead = 1 if self._copies else 0

    def run(self, sentences: Iterator[Sequence[str]]) -> Iterator[np.ndarray]:
        """Vectors of each sentence, float32 [layers, T, 2 P]. Carried states move on when the stream has ended."""
        self._source = _with_next(sentences)
        state: RunState | None = None
        begun: deque[_Begun] = deque()
        while (pieces := self._plan()) or begun or self._finished:
            if pieces:
                with torch.no_grad():
                    chunk, state = self._advance(pieces, state)
                begun.append(chunk)
            while len(begun) > (self._chunks_ahead if pieces else 0):
                self._put(begun.popleft())
            yield from self._in_order()
        if self._used:
            self._bilm.lstm.store_state(tuple(each[:, : self._used] for each in state.last))

    def _plan(self) -> list[_Piece]:
        """What each slot runs in the next chunk of steps."""
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
        """The slot with the fewest planned steps, if it has room and a sentence; reads on to find it one."""
        order = sorted(range(len(self._slots)), key=lambda number: self._slots[number].planned)
        for number in order:
            slot = self._slots[number]
            if slot.planned < self._steps and (slot.queue or self._read_for(number)):
                return number
        return None

    def _read_for(self, number: int) -> bool:
        """Read sentences until the slot has one; False when the stream ended or is far enough ahead."""
        while not self._slots[number].queue:
            if self._ahead >= max(_TOKENS_AHEAD, 32 * len(self._slots)):
                return False
            sentence, last = next(self._source, (None, True))
            if sentence is None:
                return False
            self._take(sentence, number, last)
        return True

    def _take(self, tokens: Sequence[str], number: int, last: bool) -> None:
        position = self._read % len(self._slots)
        alone = position == 0 and (last or len(self._slots) == 1)
        sentence = _Sentence(self._read, self._tokens.rows(tokens))
        self._read += 1
        self._ahead += len(sentence.rows)
        if self._carried and alone and not self._runs_empty and not len(tokens):
            self._finish(sentence)  # a batch of one empty sentence is not run and leaves its state alone
            return
        self._used = max(self._used, position + 1)
        self._slots[position if self._carried else number].queue.append(sentence)

    def _advance(self, pieces: list[_Piece], state: RunState | None) -> tuple[_Begun, RunState]:
        """Queue the pieces; their outputs are fetched by `_put`."""
        in_flight = [sentence for slot in self._slots for sentence in slot.queue]
        table = self._tokens.vectors([*in_flight, *(piece.sentence for piece in pieces)])
        schedule, first_row, position = self._schedule(pieces)
        layers, state = self._bilm.run(table, torch.from_numpy(schedule.tokens), schedule, state)
        tokens = table.vectors[to_device(schedule.tokens[0], table.vectors.device)]
        rows = [first_row[piece.at : piece.at + piece.end - piece.begin] + position[piece.slot] for piece in pieces]
        outputs = HostCopy([each.float() for each in (tokens, *layers)], self._copies)
        return _Begun(pieces, rows, outputs), state

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
        live = running.sum(1).astype(np.int32)
        schedule = Schedule(order, live, np.ascontiguousarray(tokens[:, running]), starts[running])
        return schedule, np.cumsum(live) - live, position

    def _put(self, begun: _Begun) -> None:
        """Copy a chunk's outputs to its sentences."""
        outputs = [each.numpy() for each in begun.outputs.result()]
        for piece, rows in zip(begun.pieces, begun.rows):
            self._put_piece(piece, rows, outputs)

    def _put_piece(self, piece: _Piece, rows: np.ndarray, outputs: list[np.ndarray]) -> None:
        """Copy a piece's outputs to its sentence, `<S>` and `</S>` left out."""
        sentence = piece.sentence
        length = len(sentence.rows)
        if sentence.vectors is None:
            sentence.vectors = self._begun(sentence)
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
            self._finish(sentence)

    def _begun(self, sentence: _Sentence) -> np.ndarray:
        """Room for a sentence's vectors."""
        return np.empty((self._bilm.num_layers, len(sentence.rows) - 2, self._bilm.get_output_dim()), dtype=np.float32)

    def _finish(self, sentence: _Sentence) -> None:
        self._finished[sentence.number] = self._begun(sentence) if sentence.vectors is None else sentence.vectors

    def _in_order(self) -> Iterator[np.ndarray]:
        while self._written in self._finished:
            vectors = self._finished.pop(self._written)
            self._ahead -= vectors.shape[1] + 2
            self._written += 1
            yield vectors


def _with_next(items: Iterator) -> Iterator[tuple]:
    """Each item and whether it is the last."""
    before = next(items, None)
    while before is not None:
        following = next(items, None)
        yield before, following is None
        before = following
