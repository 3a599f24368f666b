"""Runs the chunks of a stream on a device; the host waits for none before the next one is queued."""

import contextlib
import functools
import os
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
import torch

from elmo_fast.engine.model import HostChunks, Model, RunState, State
from elmo_fast.engine.schedule import Schedule
from elmo_fast.engine.scheduler import ChunkPlan, Piece, Sentence, plan_of, rows_of, spans_of
from elmo_fast.ops.device import HostCopy, current_stream, refuse_capture, to_device
from elmo_fast.ops.forked import threads_of_a_child
from elmo_fast.ops.numerics import numerics
from elmo_fast.ops.projected_lstm.cuda.blocks import send
from elmo_fast.ops.projected_lstm.reference import State as TensorState

_TOKENS_HELD = 1 << 15  # of sentences that stay on the device from chunk to chunk: 400 MB in the original size


class TensorModel(Model):
    """A model that reads and writes tensors on its `device`, whose type of floats is `dtype`."""

    device: torch.device
    dtype = torch.float32
    _warm: TensorState  # after the warm text, h [L, 2 P], c [L, 2 D]

    def key(self) -> tuple:
        """As `Model.key`; vectors of another stream of the GPU may not be ready."""
        return super().key(), current_stream(self.device)

    def chunks(self, slots: int) -> HostChunks:
        return DeviceChunks(self, slots)

    def begin(self, slots: int, state: str, carried: State | None = None) -> RunState:
        with self.computing():
            return super().begin(slots, state, carried and tuple(to_device(old, self.device) for old in carried))

    def _zeros(self, *shape: int) -> torch.Tensor:
        return torch.zeros(shape, device=self.device, dtype=self.dtype)

    def last_state(self, state: RunState) -> State:
        return tuple(value.cpu().numpy() for value in state.last)

    @contextlib.contextmanager
    def computing(self) -> Iterator[None]:
        """A context for the operations of a call; `RuntimeError` while a CUDA graph is captured."""
        refuse_capture(self.device)
        with torch.inference_mode(False), torch.no_grad(), threads_of_a_child(), numerics(self._products, self.device):
            yield

    @property
    def _products(self) -> str:
        """The precision of products."""
        return self.precision

    @abstractmethod
    def encode_tensors(self, tokens: Sequence[str]) -> torch.Tensor:
        """As `encode`, on the device."""

    @abstractmethod
    def run_tensors(self, vectors: torch.Tensor, rows: torch.Tensor, schedule: Schedule,
                    state: RunState) -> tuple[list[torch.Tensor], TensorState]:
        """The outputs of the LSTM layers at every packed row, [S, 2 P], and the last state; arguments of `run_layers`.

        Called in the context `computing`.
        """


class DeviceChunks(HostChunks):
    """Runs the chunks of a stream on a `TensorModel`.

    A chunk's outputs are put in the order of the text on the device: a block [layers, T, 2 P] for every sentence. A
    block stays there until its sentence ends; then the blocks of all sentences that end are copied to one pinned array,
    and a thread gives out views of it. A sentence that would stay and is longer than its slot's share of `tokens_held`
    is copied piece by piece to an array of its own.
    """

    most_in_flight, least_steps = 2, 32

    def __init__(self, model: TensorModel, slots: int, tokens_held: int = _TOKENS_HELD):
        self._model, self.encode, self._longest = model, model.encode_tensors, tokens_held // slots
        self._stream = self._copies = None
        if model.device.type == "cuda":
            self._stream, self._copies = torch.cuda.current_stream(model.device), torch.cuda.Stream(model.device)
        self._held: torch.Tensor | None = None  # the blocks that stay, in rows of P values
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="elmo-fast-collect")  # starts with its first chunk
        self._process = os.getpid()  # a forked one has no such thread
        self._latest: _Arrival | None = None

    def queue(self) -> contextlib.AbstractContextManager:
        """A context in which work is queued where that of the first chunk was."""
        return torch.cuda.stream(self._stream) if self._stream else contextlib.nullcontext()

    @staticmethod
    @torch.inference_mode(False)
    def empty(vectors: torch.Tensor, count: int) -> torch.Tensor:
        return vectors.new_empty(count, vectors.shape[1])

    def run(self, pieces: Sequence[Piece], idle: Sequence[Sentence], vectors: torch.Tensor,
            state: RunState) -> "tuple[RunState, Callable[[], list[Sentence]]]":
        model, width = self._model, self._model.output_dim
        layout = self._layout(pieces, idle, state.last[0].shape[1])
        schedule, (copied, kept, size) = layout.plan.schedule, layout.rows
        rows = rows_of(pieces, schedule)
        index = (layout.starts[layout.plan.owners] + layout.plan.offsets).swapaxes(1, 2)  # [layers, S, 2]
        sources, targets = layout.moves()
        with model.computing():
            read, index, sources, targets = send([rows.T, index.astype(np.int32), sources, targets], model.device)
            outputs, last = model.run_tensors(vectors, torch.from_numpy(rows), schedule, state)
            blocks = torch.empty(size, width // 2, device=model.device)
            if len(sources):
                moved = self._held.view(-1, width).index_select(0, sources)
                blocks.view(-1, width).index_copy_(0, targets.long(), moved)
            for places, layer in zip(index.flatten(1).long(), [vectors.index_select(0, read.flatten()), *outputs]):
                blocks.index_copy_(0, places, layer.float().view(-1, width // 2))
            copy = HostCopy([blocks[:copied]], self._copies)
        self._held = blocks[:kept]
        layout.set_places()
        ended = [pieces[number].sentence for number in layout.ended.tolist()]
        arrival = _Arrival(functools.partial(_collect, copy, layout.copies(pieces), model.num_layers, ended))
        if self._latest and self._process == os.getpid():
            self._latest.start(self._thread)
        self._latest = arrival
        return RunState(last, state.initial), arrival

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)
        self._latest = self._held = None

    def _layout(self, pieces: Sequence[Piece], idle: Sequence[Sentence], slots: int) -> "_Layout":
        layers, spans = self._model.num_layers, spans_of(pieces)
        _, begin, end, length = np.array(spans).T
        places = np.array([*[piece.sentence.place for piece in pieces], -1, *[sentence.place for sentence in idle]])
        ends = end == length
        whole = (places[: len(pieces)] >= 0) | ((begin == 0) & (ends | (length <= self._longest)))
        plan = plan_of(spans, slots, layers, None if whole.all() else whole.tolist())
        kinds = np.array([*(whole & ~ends).tolist(), 2, *[1] * len(idle)])
        tokens = [*plan.tokens.tolist(), 2 * len(pieces), *[len(sentence.rows) - 2 for sentence in idle]]
        sizes = 2 * layers * np.array(tokens)
        order = np.argsort(kinds, kind="stable")
        starts = np.empty_like(sizes)
        starts[order] = np.cumsum(sizes[order]) - sizes[order]
        copied, kept, outside = np.bincount(kinds, sizes, 3).astype(int).tolist()
        return _Layout([*[piece.sentence for piece in pieces], None, *idle], plan, np.flatnonzero(ends), kinds, sizes,
                       starts, places, (copied, copied + kept, copied + kept + outside))


class _Layout(NamedTuple):
    """Where the blocks of a chunk are, in rows of P values: those that are copied come first.

    The blocks are those of the `sentences` of the chunk's pieces, of the boundaries (None), and of sentences without a
    piece. `kinds` int [blocks]: 0 is copied, 1 stays, 2 neither; `sizes`, `starts` and `places` int [blocks] are their
    rows, where they are, and where they were, -1 if they are new. `ended` int are the pieces that end a sentence,
    `rows` the number of rows that are copied, that are copied or stay, and of all.
    """

    sentences: list[Sentence | None]
    plan: ChunkPlan
    ended: np.ndarray
    kinds: np.ndarray
    sizes: np.ndarray
    starts: np.ndarray
    places: np.ndarray
    rows: tuple[int, int, int]

    def moves(self) -> tuple[np.ndarray, np.ndarray]:
        """Where blocks of earlier chunks are, and where they go, int32 [rows of 2 P values] each."""
        moved = np.flatnonzero(self.places >= 0)
        counts = self.sizes[moved] // 2
        within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        return tuple((np.repeat(first[moved] // 2, counts) + within).astype(np.int32)
                     for first in (self.places, self.starts))

    def set_places(self) -> None:
        """Store in the sentences that go on where their blocks are from now on."""
        starts = self.starts.tolist()
        for number in np.flatnonzero(self.kinds == 1).tolist():
            self.sentences[number].place = starts[number]

    def copies(self, pieces: Sequence[Piece]) -> list[tuple[Piece, int, int]]:
        """The pieces whose blocks are copied, with the first row of the block and the end."""
        starts, stops = self.starts.tolist(), (self.starts + self.sizes).tolist()
        return [(pieces[number], starts[number], stops[number]) for number in np.flatnonzero(self.kinds == 0).tolist()]


class _Arrival:
    """The sentences that end in a chunk, when called. A thread may start to collect them before."""

    def __init__(self, collect: Callable[[], list[Sentence]]):
        self._collect = collect
        self._future: Future[list[Sentence]] | None = None
        self._process = os.getpid()

    def start(self, thread: ThreadPoolExecutor) -> None:
        """Let the thread collect."""
        self._future = thread.submit(self._collect)

    def __call__(self) -> list[Sentence]:
        return self._future.result() if self._future and self._process == os.getpid() else self._collect()


def _collect(copy: HostCopy, copies: list[tuple[Piece, int, int]], layers: int,
             ended: list[Sentence]) -> list[Sentence]:
    """Give sentences their vectors: views of a copied array [rows, P], or parts of it in arrays of their own."""
    rows = copy.result()[0].numpy()
    for (sentence, _, begin, end), start, stop in copies:
        count, width = len(sentence.rows) - 2, 2 * rows.shape[1]
        block = rows[start:stop].reshape(layers, (stop - start) // (2 * layers), width)
        if len(block[0]) == count:
            sentence.vectors = block
            continue
        if sentence.vectors is None:
            sentence.vectors = np.empty((layers, count, width), np.float32)
        low, high = max(begin - 1, 0), min(end - 1, count)
        sentence.vectors[:, low:high, : width // 2] = block[..., : width // 2]
        sentence.vectors[:, count - high : count - low, width // 2 :] = block[..., width // 2 :]
    return ended
