"""Lanes: a stream of sentences runs back to back in a fixed number of rows, and no row waits for a longer sentence.

Where states are carried, sentence i runs in lane i mod B, as in batches of B; else wherever there is room. The
results are those of batches, in the order of the input.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from elmo_fast.embed.token_vectors import TokenVectors
from elmo_fast.model.bilm import BiLm
from elmo_fast.ops.host_device import HostCopy, to_device
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
    """Steps `begin` to `end` of a sentence, run in a lane from step `at` of the chunk on."""

    sentence: _Sentence
    lane: int
    at: int
    begin: int
    end: int


@dataclass(frozen=True)
class _Begun:
    """A chunk that was queued: its pieces, the step-rows of each, and its outputs on their way to the host.

    The outputs are the vectors of the tokens that the forward direction read, [S, P], then each layer's [S, 2 P].
    """

    pieces: list[_Piece]
    rows: list[np.ndarray]
    outputs: HostCopy


@dataclass
class _Lane:
    queue: deque[_Sentence] = field(default_factory=deque)
    planned: int = 0


class LaneStream:
    """Embeds a stream of sentences in `lanes` lanes; iterate once over `run`.

    Carried states pass over an empty sentence alone in its batch, as in AllenNLP; with `runs_empty` it runs as
    `<S> </S>`, as in bilm-tf.
    """

    def __init__(self, bilm: BiLm, lanes: int, runs_empty: bool = False):
        self._bilm = bilm
        self._lanes = [_Lane() for _ in range(lanes)]
        self._carried = bilm.state == "carry"
        self._runs_empty = runs_empty
        self._steps = max(16, _ROWS_AT_ONCE // lanes)
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
        with torch.no_grad():
            state, restart = self._bilm.begin(len(self._lanes))
        begun: deque[_Begun] = deque()
        while (pieces := self._plan()) or begun or self._finished:
            if pieces:
                with torch.no_grad():
                    chunk, state = self._advance(pieces, state, restart)
                begun.append(chunk)
            while len(begun) > (self._chunks_ahead if pieces else 0):
                self._put(begun.popleft())
            yield from self._in_order()
        if self._used:
            self._bilm.carry_on(tuple(each[:, : self._used] for each in state))

    def _plan(self) -> list[_Piece]:
        """What each lane runs in the next chunk of steps."""
        pieces: list[_Piece] = []
        for lane in self._lanes:
            lane.planned = 0
        while (number := self._lane_with_room()) is not None:
            lane = self._lanes[number]
            sentence = lane.queue[0]
            count = min(len(sentence.rows) - sentence.done, self._steps - lane.planned)
            pieces.append(_Piece(sentence, number, lane.planned, sentence.done, sentence.done + count))
            sentence.done += count
            lane.planned += count
            if sentence.done == len(sentence.rows):
                lane.queue.popleft()
        return pieces

    def _lane_with_room(self) -> int | None:
        """The lane with the fewest planned steps, if it has room and a sentence; reads on to find it one."""
        order = sorted(range(len(self._lanes)), key=lambda number: self._lanes[number].planned)
        for number in order:
            lane = self._lanes[number]
            if lane.planned < self._steps and (lane.queue or self._read_for(number)):
                return number
        return None

    def _read_for(self, number: int) -> bool:
        """Read sentences until the lane has one; False when the stream ended or is far enough ahead."""
        while not self._lanes[number].queue:
            if self._ahead >= max(_TOKENS_AHEAD, 32 * len(self._lanes)):
                return False
            sentence, last = next(self._source, (None, True))
            if sentence is None:
                return False
            self._take(sentence, number, last)
        return True

    def _take(self, tokens: Sequence[str], number: int, last: bool) -> None:
        position = self._read % len(self._lanes)
        alone = position == 0 and (last or len(self._lanes) == 1)
        sentence = _Sentence(self._read, self._tokens.rows(tokens))
        self._read += 1
        self._ahead += len(sentence.rows)
        if self._carried and alone and not self._runs_empty and not len(tokens):
            self._finish(sentence)  # a batch of one empty sentence is not run and leaves its state alone
            return
        self._used = max(self._used, position + 1)
        self._lanes[position if self._carried else number].queue.append(sentence)

    def _advance(self, pieces: list[_Piece], state, restart):
        """Queue the pieces; their outputs are fetched by `_put`."""
        in_flight = [sentence for lane in self._lanes for sentence in lane.queue]
        vectors = self._tokens.vectors([*in_flight, *(piece.sentence for piece in pieces)])
        schedule, first_row, position = self._schedule(pieces)
        layers, state = self._bilm.advance(vectors, schedule, state, restart, self._tokens.products)
        tokens = vectors[to_device(schedule.tokens[0], vectors.device)]
        rows = [first_row[piece.at : piece.at + piece.end - piece.begin] + position[piece.lane] for piece in pieces]
        outputs = HostCopy([each.float() for each in (tokens, *layers)], self._copies)
        return _Begun(pieces, rows, outputs), state

    def _schedule(self, pieces: list[_Piece]) -> tuple[Schedule, np.ndarray, np.ndarray]:
        """The chunk's schedule, the step-row at which each step begins, and each lane's position in a step."""
        planned = np.array([lane.planned for lane in self._lanes])
        order = np.argsort(-planned, kind="stable")
        position = np.empty_like(order)
        position[order] = np.arange(order.size)
        steps = int(planned.max())
        tokens = np.zeros((2, steps, order.size), dtype=np.int32)
        starts = np.zeros((steps, order.size), dtype=bool)
        for piece in pieces:
            place = slice(piece.at, piece.at + piece.end - piece.begin), position[piece.lane]
            tokens[0][place] = piece.sentence.rows[piece.begin : piece.end]
            tokens[1][place] = piece.sentence.rows[::-1][piece.begin : piece.end]
            starts[piece.at, position[piece.lane]] = piece.begin == 0
        running = planned[order] > np.arange(steps)[:, None]  # [steps, lanes]
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
