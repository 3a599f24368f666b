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

from elmo_fast.engine.model import HostChunks, Model, RunState, State, ended_in
from elmo_fast.engine.schedule import Schedule
from elmo_fast.engine.scheduler import ChunkPlan, Piece, Sentence, plan_of, rows_of
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
        lstm = self.options.lstm
        with self.computing():
            last = tuple(torch.zeros(lstm.n_layers, slots, 2 * size, device=self.device, dtype=self.dtype)
                         for size in (lstm.projection_dim, lstm.dim))
            for values, old in zip(last, carried or ()):
                values[:, : old.shape[1]] = to_device(old[:, :slots], self.device)
            if state == "warm":
                return RunState(last, self._warm)
            return RunState(last, None if state == "carry" else tuple(value[:, 0].clone() for value in last))

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

    most_in_flight = 2

    def __init__(self, model: TensorModel, slots: int, tokens_held: int = _TOKENS_HELD):
        self._model, self.encode, self._longest = model, model.encode_tensors, tokens_held // slots
        self._copies = torch.cuda.Stream(model.device) if model.device.type == "cuda" else None
        self._held: torch.Tensor | None = None  # the blocks that stay, in rows of P values
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="elmo-fast-collect")  # starts with its first chunk
        self._latest: _Arrival | None = None

    @staticmethod
    @torch.inference_mode(False)
    def empty(vectors: torch.Tensor, count: int) -> torch.Tensor:
        return vectors.new_empty(count, vectors.shape[1])

    def run(self, pieces: Sequence[Piece], idle: Sequence[Sentence], vectors: torch.Tensor,
            state: RunState) -> "tuple[RunState, Callable[[], list[Sentence]]]":
        model, width = self._model, self._model.output_dim
        layout = self._layout(pieces, idle, state.last[0].shape[1])
        schedule = layout.plan.schedule
        rows = rows_of(pieces, schedule)
        index = (layout.starts[layout.plan.owners] + layout.plan.offsets).swapaxes(1, 2)  # [layers, S, 2]
        sources, targets = layout.moves()
        with model.computing():
            read, index, sources, targets = send([rows.T, index.astype(np.int32), sources, targets], model.device)
            outputs, last = model.run_tensors(vectors, torch.from_numpy(rows), schedule, state)
            blocks = torch.empty(layout.size, width // 2, device=model.device)
            if len(sources):
                kept = self._held.view(-1, width).index_select(0, sources)
                blocks.view(-1, width).index_copy_(0, targets.long(), kept)
            for places, layer in zip(index.flatten(1).long(), [vectors.index_select(0, read.flatten()), *outputs]):
                blocks.index_copy_(0, places, layer.float().view(-1, width // 2))
            copy = HostCopy([blocks[: layout.copied]], self._copies)
        self._held = blocks if layout.copied < layout.size else None
        layout.set_places()
        arrival = _Arrival(functools.partial(_collect, copy, layout.copies(), model.num_layers, ended_in(pieces)))
        if self._latest:
            self._latest.start(self._thread)
        self._latest = arrival
        return RunState(last, state.initial), arrival

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)
        self._latest = self._held = None

    def _layout(self, pieces: Sequence[Piece], idle: Sequence[Sentence], slots: int) -> "_Layout":
        layers, longest = self._model.num_layers, self._longest
        whole = [sentence.place >= 0 or (not begin and (end == len(sentence.rows) or len(sentence.rows) <= longest))
                 for sentence, _, begin, end in pieces]
        plan = plan_of(pieces, slots, layers, None if all(whole) else whole)
        # Of every piece, of the boundaries and of every idle sentence: 0 if it is copied, 1 if it stays, 2 if neither.
        kinds = [int(is_whole and end < len(sentence.rows)) for is_whole, (sentence, _, _, end) in zip(whole, pieces)]
        kinds = np.array([*kinds, 2, *[1] * len(idle)])
        tokens = [*plan.tokens.tolist(), 2 * len(pieces), *[len(sentence.rows) - 2 for sentence in idle]]
        sizes = 2 * layers * np.array(tokens)
        order = np.argsort(kinds, kind="stable")
        starts = np.empty_like(sizes)
        starts[order] = np.cumsum(sizes[order]) - sizes[order]
        return _Layout(pieces, idle, plan, kinds, sizes, starts)


class _Layout(NamedTuple):
    """Where the blocks of a chunk are, in rows of P values: first those that are copied, then those that stay.

    `kinds`, `sizes` and `starts` int [pieces + 1 + idle] are those of the blocks of pieces, of the memory for `<S>` and
    `</S>`, and of sentences without a piece.
    """

    pieces: Sequence[Piece]
    idle: Sequence[Sentence]
    plan: ChunkPlan
    kinds: np.ndarray
    sizes: np.ndarray
    starts: np.ndarray

    @property
    def size(self) -> int:
        """The number of rows of all blocks."""
        return int(self.sizes.sum())

    @property
    def copied(self) -> int:
        """The number of rows that are copied to the host."""
        return int(self.sizes[self.kinds == 0].sum())

    def moves(self) -> tuple[np.ndarray, np.ndarray]:
        """Where blocks of earlier chunks are, and where they go, int32 [rows of 2 P values] each."""
        places = np.array([*[piece.sentence.place for piece in self.pieces], -1, *[each.place for each in self.idle]])
        is_moved = places >= 0
        counts = self.sizes[is_moved] // 2
        within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        return tuple((np.repeat(first[is_moved] // 2, counts) + within).astype(np.int32)
                     for first in (places, self.starts))

    def set_places(self) -> None:
        """Store in the sentences where their blocks are from now on."""
        places = np.where(self.kinds == 1, self.starts, -1).tolist()
        for piece, place in zip(self.pieces, places):
            piece.sentence.place = place
        for sentence, place in zip(self.idle, places[len(self.pieces) + 1 :]):
            sentence.place = place

    def copies(self) -> list[tuple[Piece, int, int]]:
        """The pieces whose blocks are copied, with the first row of the block and the end."""
        spans = zip(self.pieces, self.kinds.tolist(), self.starts.tolist(), (self.starts + self.sizes).tolist())
        return [(piece, start, stop) for piece, kind, start, stop in spans if kind == 0]


class _Arrival:
    """The sentences that end in a chunk, when called. A thread may start to collect them before."""

    def __init__(self, collect: Callable[[], list[Sentence]]):
        self._collect = collect
        self._future: Future[list[Sentence]] | None = None
        self._process = os.getpid()  # a forked one has no thread

    def start(self, thread: ThreadPoolExecutor) -> None:
        """Let the thread collect."""
        if self._process == os.getpid():
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
