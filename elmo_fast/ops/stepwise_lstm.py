"""Tier A of the LSTM on a GPU: batched products of both directions and two small kernels a step, in CUDA graphs.

Input products are computed ahead, once for each distinct row where that is known. A step is the recurrent product of
both directions, the gates, the projection, and the clip that follows it. Steps run in chunks over buffers at fixed
addresses, so that a few graphs replay a sequence of any length; what differs between calls (rows, live lanes,
restarts) lies in device memory. Off the GPU the same code runs without graphs.

Registered with `torch.library` as `torch.ops.elmo_fast.stepwise_lstm`.
"""

import contextlib
import functools
import math

import numpy as np
import torch

from elmo_fast.ops import backend, torch_lstm_pointwise
from elmo_fast.ops.host_device import is_capturing, to_device
from elmo_fast.ops.lstm_operands import Operands, flat_weights, limit, operands, scaled
from elmo_fast.ops.precision import numerics
from elmo_fast.ops.reference import LstmWeights, State, restore
from elmo_fast.ops.schedule import Schedule
from elmo_fast.ops.step_buffers import Arena, Arenas, Bucket, Sizes
from elmo_fast.ops.step_graphs import capture_on
from elmo_fast.ops.step_plan import Block, blocks, chunks_of

SIGNATURE = ("(Tensor inputs, Tensor? rows, Tensor live, Tensor? starts, Tensor h, Tensor c, Tensor[] weights, "
             "str precision, float cell_clip, float proj_clip, Tensor? restart_h, Tensor? restart_c)"
             " -> (Tensor, Tensor, Tensor)")

_library = torch.library.Library("elmo_fast", "FRAGMENT")
_library.define("stepwise_lstm" + SIGNATURE)
_arenas = Arenas()


def projected_lstm(
    inputs: torch.Tensor,
    rows: torch.Tensor | None,
    schedule: Schedule,
    state: State,
    weights: tuple[LstmWeights, LstmWeights],
    *,
    cell_clip: float | None = None,
    proj_clip: float | None = None,
    restart: State | None = None,
    precision: str = "highest",
) -> tuple[torch.Tensor, State]:
    """As `reference.projected_lstm`, in fp32. `rows` may lie on the host: each row is then multiplied once."""
    return through(torch.ops.elmo_fast.stepwise_lstm, inputs, rows, schedule, state, weights, (cell_clip, proj_clip),
                   restart, precision)


def through(op, inputs, rows, schedule: Schedule, state: State, weights, clips, restart: State | None,
            precision: str) -> tuple[torch.Tensor, State]:
    """What `projected_lstm` is asked for, through an op of `SIGNATURE`: its lanes are the schedule's positions."""
    order = to_device(schedule.lanes, inputs.device)
    out, h, c = op(
        inputs, rows, torch.from_numpy(schedule.live), None if restart is None else torch.from_numpy(schedule.starts),
        state[0][order], state[1][order], flat_weights(weights), precision, *map(limit, clips),
        *((None, None) if restart is None else restart))
    return out, (restore(h, order), restore(c, order))


def pointwise_of(device: torch.device):
    """The module of the two small kernels: Triton's where it runs, torch operations elsewhere."""
    return torch_lstm_pointwise if why_no_triton(device) else _triton_kernels()


@functools.cache
def why_no_triton(device: torch.device) -> str | None:
    """None where Triton's kernels run on `device`, else the reason that torch operations stand in for them."""
    if device.type != "cuda":
        return f"Triton has no kernels for {device.type}"
    return backend.why_no_triton(torch.cuda.get_device_capability(device))


def _triton_kernels():
    from elmo_fast.kernels import lstm_pointwise

    return lstm_pointwise


def known_on_host(rows: torch.Tensor) -> bool:
    """Whether the host can read `rows` without waiting."""
    return rows.device.type == "cpu"


def multiply(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> None:
    """out = a b, matrices or batches of them, summed in fp32 whatever their type."""
    product = torch.mm if a.dim() == 2 else torch.bmm
    if a.dtype == torch.float32:
        product(a, b, out=out)
    elif a.device.type == "cpu":
        out.copy_(product(a.float(), b.float()))
    elif out.dtype == a.dtype:
        product(a, b, out=out)
    else:
        product(a, b, out_dtype=out.dtype, out=out)


@contextlib.contextmanager
def surroundings(precision: str, device: torch.device):
    """Products in fp32 or tf32 as `precision` says, on `device`; 16-bit ones have operands of that type already.

    Buffers outlive the call, so they must not be inference tensors, which nothing outside inference mode may edit.
    """
    where = torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext()
    with torch.inference_mode(False), torch.no_grad(), where, numerics("highest" if precision == "medium" else precision, device):
        with torch.autocast(device.type, enabled=False):
            yield


def arena_of(of: Operands, device: torch.device) -> Arena:
    """The arena for these operands on the current stream. Inside somebody's capture it is one for this call alone."""
    sizes = Sizes.of(of)
    if is_capturing(device):
        return Arena(sizes, device, None)
    stream = torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else None
    return _arenas.get((device, stream, sizes), of.owner, lambda: Arena(sizes, device, capture_on(device)))


def run(inputs, rows, live, starts, h, c, weights, precision, cell_clip, proj_clip, restart_h, restart_c):
    """The op: outputs and the final state of the schedule's positions."""
    with surroundings(precision, inputs.device):
        of = operands(weights, h.shape[1] // 2, precision, proj_clip)
        arena = arena_of(of, inputs.device)
        with arena.lock:
            arena.hold(of, None if restart_h is None else (restart_h, restart_c))
            call = _Call(arena, of, inputs, rows, None if starts is None else starts.numpy(),
                         (cell_clip, proj_clip if of.w_p is not None else math.inf, precision))
            return call.run(live.numpy(), split_directions(h), split_directions(c))


def fake(inputs, rows, live, starts, h, c, weights, precision, cell_clip, proj_clip, restart_h, restart_c):
    """Shapes and types of what `run` returns."""
    count = inputs.shape[0] if rows is None else rows.shape[1]
    return tuple(h.new_empty(*shape, dtype=torch.float32) for shape in ((count, h.shape[1]), h.shape, c.shape))


for _kind in ("CUDA", "CPU"):
    _library.impl("stepwise_lstm", run, _kind)
torch.library.register_fake("elmo_fast::stepwise_lstm", fake, lib=_library)


def split_directions(state: torch.Tensor) -> torch.Tensor:
    """[lanes, 2 n] -> a new fp32 [2, lanes, n]."""
    halves = state.view(len(state), 2, state.shape[1] // 2).transpose(0, 1)
    return halves.to(torch.float32, memory_format=torch.contiguous_format, copy=True)


def join_directions(state: torch.Tensor) -> torch.Tensor:
    """[2, lanes, n] -> [lanes, 2 n]."""
    return state.transpose(0, 1).reshape(state.shape[1], 2 * state.shape[2])


class _Call:
    """One layer over one schedule, on the buffers of an arena whose lock is held.

    `settings` are both clips and the precision: what the kernels of a graph have fixed.
    """

    def __init__(self, arena: Arena, of: Operands, inputs, rows, starts: np.ndarray | None, settings: tuple):
        self.arena, self.operands, self.inputs = arena, of, inputs
        self.on_host = rows is not None and known_on_host(rows)
        self.rows = rows.numpy() if self.on_host else rows
        self.starts, self.settings = starts, settings
        # a table that is not much larger than what is read of it is multiplied whole
        self.whole = rows is not None and len(inputs) <= min(len(arena.z), 2 * rows.shape[1])
        self.pointwise = pointwise_of(inputs.device)

    def run(self, live: np.ndarray, h: torch.Tensor, c: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Outputs [S, 2 P] and the final state [lanes, 2 P], [lanes, 2 D], from [2, lanes, P] and [2, lanes, D]."""
        out = h.new_empty(int(live.sum()), 2 * h.shape[2])
        if self.whole:
            self._multiply_rows((self.inputs, self.inputs))
        # rows that are told apart on the host may all differ, in both directions
        most = len(self.arena.z) // (2 if self.on_host and not self.whole else 1)
        for block in blocks(live, most):
            bucket = self.arena.bucket(block.bucket)
            lanes = slice(block.lane, block.lane + block.lanes)
            meta, taken, placed = self._sent(block)
            begin(bucket, self.arena, h[:, lanes], c[:, lanes], meta[0], self.starts is not None)
            for first, count in chunks_of(block.steps):
                self._chunk(bucket, meta[first : first + count + 1], count)
                self._collect(block, bucket, first, count, taken, placed, out)
            h[:, lanes] = bucket.h[:, : block.lanes]
            c[:, lanes] = bucket.c[:, : block.lanes]
        return out, join_directions(h), join_directions(c)

    def _sent(self, block: Block):
        """`meta` int32 [steps + 1, 3, L], and for each step-row where it lies among a chunk's outputs and in the end."""
        live = block.places >= 0
        meta = np.full((block.steps + 1, 3, block.bucket), -1, dtype=np.int32)
        meta[:, 2] = 0
        if self.starts is not None:
            meta[:-1, 2][live] = self.starts[block.rows]
        taken = np.flatnonzero(live).astype(np.int32)
        for first, count in chunks_of(block.steps):
            taken[block.rows_of(first, count)] -= first * block.bucket
        used = self._take(meta, live, block.rows)
        parts = [meta.ravel(), taken, block.rows, used]
        sent = to_device(np.concatenate(parts), self.inputs.device).split([len(each) for each in parts])
        meta = sent[0].view(meta.shape)
        self._multiply_used(meta, block.rows, sent)
        return meta, sent[1], sent[2]

    def _take(self, meta: np.ndarray, live: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Fill in which row of products each direction reads, where the host knows; the rows to multiply for it."""
        if self.on_host:
            read = self.rows[:, rows].astype(np.int32)  # [2, n]
            used, number = (None, read) if self.whole else np.unique(read, return_inverse=True)
            for one in (0, 1):
                meta[:-1, one][live] = number.reshape(read.shape)[one]
            return np.zeros(0, np.int32) if self.whole else used.astype(np.int32)
        for one in (0, 1):
            meta[:-1, one][live] = rows if self.whole else np.arange(len(rows))
        return np.zeros(0, np.int32)

    def _multiply_used(self, meta: torch.Tensor, rows: np.ndarray, sent) -> None:
        """The input products of a block, unless they are there; and what only the device knows of `meta`."""
        if self.whole:
            if not self.on_host:
                steps = meta[:-1, :2].long()  # step-rows, to be replaced by what they read
                read = torch.stack([self.rows[one][steps[:, one].clamp(min=0)] for one in (0, 1)], dim=1)
                meta[:-1, :2] = torch.where(steps >= 0, read.int(), -1)
        elif self.on_host:
            x = self.inputs.index_select(0, sent[3])
            self._multiply_rows((x, x))
        elif self.rows is not None:
            self._multiply_rows(tuple(self.inputs.index_select(0, self.rows[one][sent[2].long()]) for one in (0, 1)))
        else:
            x = self.inputs[_stretch(rows)] if _stretch(rows) else self.inputs.index_select(0, sent[2])
            self._multiply_rows(x.chunk(2, dim=1))

    def _multiply_rows(self, x: tuple[torch.Tensor, torch.Tensor]) -> None:
        multiply_rows(self.arena, self.operands, x)

    def _chunk(self, bucket: Bucket, meta: torch.Tensor, count: int) -> None:
        bucket.meta[: count + 1].copy_(meta)
        restarts = self.starts is not None
        key = count, restarts, *self.settings, _tf32()
        bucket.graphs.run(key, lambda: steps(self.arena, bucket, self.pointwise, count, self.settings[:2], restarts))

    def _collect(self, block: Block, bucket: Bucket, first: int, count: int, taken, placed, out) -> None:
        """Outputs of a chunk to their step-rows."""
        here = block.rows_of(first, count)
        found, stretch = bucket.out.flatten(0, 1), _stretch(block.rows[here])
        if stretch:
            torch.index_select(found, 0, taken[here], out=out[stretch])
        else:
            out.index_copy_(0, placed[here].long(), found.index_select(0, taken[here]))


def _stretch(rows: np.ndarray) -> slice | None:
    """Ascending rows as a slice, where none is left out."""
    first, end = int(rows[0]), int(rows[-1]) + 1
    return slice(first, end) if end - first == len(rows) else None


def multiply_rows(arena: Arena, of: Operands, x: tuple[torch.Tensor, torch.Tensor]) -> None:
    """Input products of rows [n, I] for each direction, into the arena's first n; of rows `scaled` for fp16."""
    for one, each in enumerate(x):
        each = each.float()
        if of.scaled:
            each, arena.scale[: len(each), one] = scaled(each)
        multiply(each.to(of.dtype), of.w_x[one], arena.z[: len(each), one])


def begin(bucket: Bucket, arena: Arena, h: torch.Tensor, c: torch.Tensor, meta: torch.Tensor, restarts: bool) -> None:
    """Put the state of the first lanes in place, and what the first step multiplies: h, or where its sentence starts."""
    lanes = h.shape[1]
    bucket.h[:, :lanes] = h
    bucket.c[:, :lanes] = c
    first = torch.where((meta[2, :lanes] != 0)[:, None], arena.fresh_h[:, None], h) if restarts else h
    bucket.operand[:, :lanes] = first


def steps(arena: Arena, bucket: Bucket, pointwise, count: int, clips: tuple[float, float], restarts: bool) -> None:
    """Queue so many steps over the bucket's buffers: the work of a graph. Every address in it outlives the graph."""
    for step in range(count):
        meta = bucket.meta[step]
        multiply(bucket.operand, arena.w_h, bucket.zh)
        pointwise.gates(bucket.zh, arena.z, arena.scale, arena.bias, meta, arena.fresh_c, bucket.c, bucket.m, clips[0],
                        restarts)
        if arena.w_p is not None:
            multiply(bucket.m, arena.w_p, bucket.r)
        pointwise.hidden(bucket.r, meta, bucket.meta[step + 1], arena.fresh_h, bucket.h, bucket.operand,
                         bucket.out[step], clips[1], restarts)


def _tf32() -> str:
    """What fp32 products really run in: the strictest of what threads hold at the moment."""
    return torch._C._get_fp32_precision_getter("cuda", "matmul")
