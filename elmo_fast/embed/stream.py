"""Continuous batching: sentences run back to back in a fixed number of slots, and none waits for a longer one."""

import functools
import itertools
import logging
from collections import deque
from collections.abc import Callable, Container, Iterable, Iterator, Sequence

import numpy as np
import torch

from elmo_fast.arguments import STATES, check_choice
from elmo_fast.embed.outputs import plan_of
from elmo_fast.embed.scheduler import Piece, Scheduler, Sentence
from elmo_fast.model.bilm import BiLm
from elmo_fast.model.layers.lstm import RunState
from elmo_fast.model.token_table.spare import SpareVectors
from elmo_fast.ops.calling_thread import rows_of
from elmo_fast.ops.device import HostCopy, to_device
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

    The model carries the states after a run when the run has ended. An error in reading the sentences is raised after
    the results of the whole batches before it.

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

    def _run(self, sentences: Iterable[Sequence[str]],
             take: Callable[[], Sequence[str] | None] | None) -> Iterator:
        sentences = iter(sentences)
        first = list(itertools.islice(sentences, self._slots))
        self._begin(self._slots if take else max(1, len(first)))
        scheduler = self._scheduler
        if take:
            scheduler.take_from(take)
        else:
            scheduler.read_from(itertools.chain(first, sentences))
        last: RunState | None = None
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
                        last = last or self._bilm.begin(len(scheduler.queues), self._state)
                        chunk, last = self._advance(pieces, self._tokens.encoded, last)
                    self._queued.append(chunk)
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
        if last and self._state == "carry":
            self._bilm.lstm.store_state(last.last)

    def _in_order(self) -> Iterator[np.ndarray]:
        while self._written in self._finished:
            vectors = self._finished.pop(self._written)
            self._scheduler.ahead -= vectors.shape[1] + 2
            self._written += 1
            yield vectors

    def _as_they_came(self, pieces: list[Piece]) -> Iterator[tuple[int, _Numbered]]:
        finished, self._finished, self._scheduler.ahead = list(self._finished.items()), {}, 0
        yield sum(piece.end - piece.begin for piece in pieces), finished

    def _begin(self, slots: int) -> None:
        self._tokens = self._spare.take()
        number = functools.partial(self._tokens.number, boundaries=self._bilm.token_source.boundaries)
        self._scheduler = Scheduler(slots, number, self._pass_over, self._state == "carry", self._runs_empty)
        self._queued: deque[_Chunk] = deque()
        self._finished: dict[int, np.ndarray] = {}
        self._written = 0  # number of results given out
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
