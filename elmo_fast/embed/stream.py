"""Continuous batching: sentences run back to back in a fixed number of slots, and none waits for a longer one."""

import functools
import itertools
import logging
from collections import deque
from collections.abc import Callable, Container, Iterable, Iterator, Sequence

import numpy as np
import torch

from elmo_fast.arguments import STATES, check_choice
from elmo_fast.embed.carrying import Span, StreamStates
from elmo_fast.embed.outputs import plan_of
from elmo_fast.embed.scheduler import Piece, Scheduler, Sentence
from elmo_fast.model.bilm import BiLm
from elmo_fast.model.layers.lstm import RunState
from elmo_fast.model.token_table.spare import SpareVectors
from elmo_fast.ops.calling_thread import rows_of
from elmo_fast.ops.device import HostCopy, to_device
from elmo_fast.ops.numerics import full_precision
from elmo_fast.ops.weight_snapshot import one_call

logger = logging.getLogger(__name__)

_ROWS_PER_CHUNK = 4096
_TOKENS_AHEAD = 1 << 15
_TABLE_ROWS = 1 << 15


# A queued chunk of steps: its pieces, and its outputs on their way to the host, one piece after the other and each in
# the order of the text: the vectors of the tokens that the forward direction read, [S, P], then each layer's [S, 2 P],
# whose halves belong to different tokens in a part of a sentence. None if the engine has written the outputs.
_Chunk = tuple[list[Piece], HostCopy | None]
_Numbered = list[tuple[int, np.ndarray]]


class SlotStream:
    """Embeds streams of sentences in at most `slots` slots, one stream after another.

    All runs have the same `state`, by default the model's state. With carried states sentence i runs in slot i mod B,
    as in batches of B; otherwise in any free slot. Results equal those of batches and are in the order of the input.
    An empty sentence that is a batch by itself leaves the carried state unchanged, as in AllenNLP; with `runs_empty` it
    runs as `<S> </S>`, as in bilm-tf. The runs share token vectors, which are computed again after weights change; the
    first run takes those of `spare`, and a run that ends returns them. When memory runs out, chunks get fewer steps.

    When the first result of a batch is given out, the model carries the states after that batch, however far slots have
    run. If another call has changed the states since the last batch, the slots run again from its end. An error in
    reading the sentences is raised after the results of the whole batches before it.

    With `half` vectors that are computed on a GPU are rounded to float16 there, before they are copied to the host.
    """

    def __init__(self, bilm: BiLm, slots: int, runs_empty: bool = False, state: str | None = None,
                 spare: SpareVectors | None = None, half: bool = False):
        self._bilm = bilm
        self._slots = slots
        self._state = bilm.state if state is None else check_choice("state", state, STATES)
        self._runs_empty = runs_empty
        self._spare = spare or SpareVectors(most=2 * _TABLE_ROWS)
        self._halvings = 0  # times that a chunk was halved after memory ran out
        # On a GPU the outputs of a chunk are copied and collected while the next chunk runs.
        device = bilm.lstm.B_0_0.device
        self._copies = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._chunks_ahead = 1 if self._copies else 0
        self._dtype = torch.float16 if half and self._copies else torch.float32

    def run(self, sentences: Iterable[Sequence[str]]) -> Iterator[np.ndarray]:
        """Vectors of each sentence, [layers, T, 2 P]."""
        return self._run(sentences, None)

    def run_as_they_come(self, take: Callable[[], Sequence[str] | None]) -> Iterator[tuple[int, _Numbered]]:
        """After every chunk, the number of rows computed and the finished sentences, [(number, vectors)].

        A free slot calls `take` for its next sentence, or None if there is none at present; sentences are numbered from
        0 in that order. Ends when no sentence runs. For `zero` and `warm` states.
        """
        return self._run((), take)

    def drop(self, numbers: Container[int]) -> None:
        """Cancel running sentences; to be called between two chunks of `run_as_they_come`."""
        self._scheduler.drop(numbers)

    def _run(self, sentences: Iterable[Sequence[str]], take: Callable[[], Sequence[str] | None] | None,
             begun: tuple[RunState, list[Span]] | None = None) -> Iterator:
        sentences = iter(sentences)
        first = list(itertools.islice(sentences, self._slots))
        self._begin(self._slots if take else max(1, len(first)))
        scheduler = self._scheduler
        if take:
            scheduler.take_from(take)
        else:
            scheduler.read_from(itertools.chain(first, sentences))
        self._last = self._resume(*begun) if begun else self._start(0) if self._states else None
        while ((pieces := self._plan()) or self._queued or self._finished) and self._written < scheduler.end:
            chunk: _Chunk | None = None
            try:
                if pieces:
                    with torch.no_grad(), one_call():
                        in_flight = [*itertools.chain(*scheduler.queues), *(piece.sentence for piece in pieces)]
                        self._tokens.check(self._bilm.token_key(), in_flight)
                        while new := self._tokens.unencoded(self._most_new):
                            self._tokens.append(self._bilm.token_encoder.strings(new))
                        self._tokens.reduce(_TABLE_ROWS, in_flight)
                        self._last = self._last or self._bilm.begin(len(scheduler.queues), self._state)
                        chunk, after = self._advance(pieces, self._tokens.encoded, self._last)
                    self._ran(chunk, pieces, after)
            except (RuntimeError, MemoryError) as error:
                self._shrink_chunks(error)
            if pieces and not chunk:
                self._undo(pieces)
            while len(self._queued) > (self._chunks_ahead if chunk else 0):
                self._collect(self._queued.popleft())
            yield from self._as_they_came(pieces if chunk else []) if take else self._in_order()
        self._spare.put(self._tokens)
        if scheduler.error:
            raise scheduler.error

    def _ran(self, chunk: _Chunk, pieces: list[Piece], after: RunState) -> None:
        self._queued.append(chunk)
        if self._states:
            self._states.note(self._last, [piece.span for piece in pieces])
        self._last = after

    def _start(self, first: int) -> RunState:
        """The state of the slots before sentence `first`: the states that the model carries."""
        with self._bilm.lstm.exclusive(True):
            return self._states.begin(first)

    def _resume(self, state: RunState, spans: list[Span]) -> RunState:
        """Queue spans whose states are not stored in the model."""
        self._states = None
        self._scheduler.put(spans)
        return state

    def _in_order(self) -> Iterator[np.ndarray]:
        while self._written in self._finished and (not self._states or self._store()):
            vectors = self._finished.pop(self._written)
            self._scheduler.ahead -= vectors.shape[1] + 2
            self._written += 1
            yield vectors

    def _store(self) -> bool:
        """Store the states that the model carries with the next result; False if the result must wait."""
        scheduler = self._scheduler
        if self._written == self._stored:  # the first result of a batch: read the whole batch
            end = self._written + len(scheduler.queues)
            while scheduler.read < end and scheduler.read_next():
                pass
            return self._written < scheduler.end and self._store_batch(min(end, scheduler.read))
        if scheduler.is_at_end and self._written + 1 == scheduler.read:  # the last result
            with self._bilm.lstm.exclusive(True):
                if self._states.is_current:
                    self._states.store(scheduler.read, self._last, [], False)
        return True

    def _store_batch(self, end: int) -> bool:
        """Store the states after the batch that ends before sentence `end`.

        False if the batch runs again, since another call has changed the states that it starts from.
        """
        with self._bilm.lstm.exclusive(True):
            is_current = self._states.is_current
            if not is_current:
                self._queued.clear()
                self._finished.clear()
                self._scheduler.restart()
                self._last = self._start(self._written)
            batch = [self._scheduler.unstored.popleft() for _ in range(self._written, end)]
            self._states.store(end, self._last, self._scheduler.waiting(end),
                               not all(sentence.passed_over for sentence in batch))
        self._stored = end
        return is_current

    def _as_they_came(self, pieces: list[Piece]) -> Iterator[tuple[int, _Numbered]]:
        finished, self._finished, self._scheduler.ahead = list(self._finished.items()), {}, 0
        yield sum(piece.end - piece.begin for piece in pieces), finished

    def _begin(self, slots: int) -> None:
        self._tokens = self._spare.take()
        number = functools.partial(self._tokens.number, boundaries=self._bilm.token_source.boundaries)
        carried, replay = self._state == "carry", functools.partial(_replay, self._bilm)
        self._scheduler = Scheduler(slots, number, self._pass_over, carried, self._runs_empty)
        self._states = StreamStates(self._bilm, slots, replay) if carried else None
        self._queued: deque[_Chunk] = deque()
        self._finished: dict[int, np.ndarray] = {}
        self._written = self._stored = 0  # numbers of results given out, and of those whose states are stored
        self._limit_chunks()

    def _limit_chunks(self) -> None:
        """Set the steps and slots of a chunk; every halving reduces the steps, or the slots once there is one step."""
        slots = len(self._scheduler.queues)
        self._rows = max(1, slots * max(16, _ROWS_PER_CHUNK // slots) >> self._halvings)
        self._steps, self._width = max(1, self._rows // slots), min(slots, self._rows)
        self._most_new = max(1, _TABLE_ROWS >> self._halvings)  # tokens encoded at a time

    def _plan(self) -> list[Piece]:
        """The pieces of the next chunk of steps."""
        most_ahead = max(_TOKENS_AHEAD, 32 * len(self._scheduler.queues))
        return self._scheduler.plan(self._steps, self._width, most_ahead)

    def _undo(self, pieces: list[Piece]) -> None:
        """Put back the pieces of a chunk that ran out of memory."""
        self._scheduler.undo(pieces)
        if self._copies:
            torch.cuda.empty_cache()

    def _pass_over(self, sentence: Sentence) -> None:
        self._finished[sentence.number] = self._empty(sentence)

    def _shrink_chunks(self, error: RuntimeError | MemoryError) -> None:
        """Halve the chunks after an error of memory; raise other errors, and this error if chunks are minimal."""
        if not _is_out_of_memory(error) or self._rows == self._most_new == 1:
            raise error
        if not self._halvings:
            logger.warning("out of memory, chunks are smaller from here on: %s", str(error).partition("\n")[0])
        self._halvings += 1
        self._limit_chunks()

    def _advance(self, pieces: list[Piece], vectors: torch.Tensor, state: RunState | None) -> tuple[_Chunk, RunState]:
        """Run the pieces: the chunk, which may still be running on a GPU, and the state after it."""
        bilm = self._bilm
        plan = plan_of(pieces, len(self._scheduler.queues), bilm.num_layers - 1, bilm.get_output_dim())
        schedule = plan.schedule
        forward = np.concatenate([piece.sentence.rows[piece.begin : piece.end] for piece in pieces])
        backward = np.concatenate([piece.sentence.rows[::-1][piece.begin : piece.end][::-1] for piece in pieces])
        tokens = np.stack([forward[schedule.tokens[0]], backward[schedule.tokens[1]]])  # rows of token vectors
        if bilm.can_write:
            values = vectors.float().numpy()
            for piece in pieces:
                if piece.sentence.vectors is None:
                    self._put_token_vectors(piece.sentence, values)
            addresses, _boundaries = plan.addresses(pieces)  # the name keeps their memory
            _, state = bilm.run(vectors, torch.from_numpy(tokens), schedule, state, addresses)
            return (pieces, None), state
        layers, state = bilm.run(vectors, torch.from_numpy(tokens), schedule, state)
        rows = to_device(np.argsort(schedule.tokens), layers[0].device)
        outputs = rows_of(vectors, forward), *(_in_text_order(layer, rows) for layer in layers)
        return (pieces, HostCopy([output.to(self._dtype) for output in outputs], self._copies)), state

    def _put_token_vectors(self, sentence: Sentence, vectors: np.ndarray) -> None:
        """Give a sentence its memory, with the token `vectors` [R, P] in both halves of the first layer."""
        sentence.vectors = self._empty(sentence)
        tokens, layer = vectors.take(sentence.rows[1:-1], 0), sentence.vectors[0]
        layer.reshape(len(layer), 2, layer.shape[1] // 2)[:] = tokens[:, None]

    def _collect(self, chunk: _Chunk) -> None:
        """Copy a chunk's outputs to its sentences, without the outputs of `<S>` and `</S>`."""
        pieces, outputs = chunk
        if outputs is not None:
            tokens, *layers = (output.numpy() for output in outputs.result())
            at = 0  # rows of the pieces before
            for sentence, _, first, last in pieces:
                if sentence.vectors is None:
                    sentence.vectors = self._empty(sentence)
                length, half = len(sentence.rows), tokens.shape[1]
                begin, end = max(first, 1), max(first, 1, min(last, length - 1))
                inner = slice(at + begin - first, at + end - first)
                sentence.vectors[0, begin - 1 : end - 1].reshape(-1, 2, half)[:] = tokens[inner, None]
                for layer, output in zip(sentence.vectors[1:], layers):
                    layer[begin - 1 : end - 1, :half] = output[inner, :half]
                    mirrored = output[at + last - end : at + last - begin, half:]
                    layer[length - 1 - end : length - 1 - begin, half:] = mirrored
                at += last - first
        self._finished.update((sentence.number, sentence.vectors) for sentence, _, _, last in pieces
                              if last == len(sentence.rows))

    def _empty(self, sentence: Sentence) -> np.ndarray:
        """Uninitialized vectors of a sentence."""
        shape = self._bilm.num_layers, len(sentence.rows) - 2, self._bilm.get_output_dim()
        return np.empty(shape, np.float16 if self._dtype == torch.float16 else np.float32)


def _replay(bilm: BiLm, state: RunState, spans: list[Span]) -> RunState:
    """The state after spans that run from a state of the slots, with the current weights on their current device."""
    like = full_precision(bilm.lstm.B_0_0)
    state = RunState(tuple(values.to(like) for values in state.last), None)
    stream = SlotStream(bilm, state.last[0].shape[1], state="carry")
    deque(stream._run((), lambda: None, (state, spans)), maxlen=0)
    return stream._last


def _in_text_order(packed: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """Outputs [S, 2 P] at packed rows, in the order of the text: `rows` int64 [2, S] are those of each direction."""
    ordered = torch.empty_like(packed)
    for half, numbers, to in zip(packed.chunk(2, dim=1), rows, ordered.chunk(2, dim=1)):
        torch.index_select(half, 0, numbers, out=to)
    return ordered


def _is_out_of_memory(error: RuntimeError | MemoryError) -> bool:
    """Whether an allocation failed, in torch, CUDA or C++."""
    return (isinstance(error, (MemoryError, torch.OutOfMemoryError))
            or any(words in str(error) for words in ("out of memory", "can't allocate memory", "not enough memory")))
