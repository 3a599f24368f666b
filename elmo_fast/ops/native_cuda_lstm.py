"""The CUDA tiers B and C0 (csrc/projected_lstm_cuda.h): raw pointers to the kernels, in the op's contract.

Recurrent products run on 16-bit operands with fp32 sums and cell state, which is what `medium` means on CUDA. Both
tiers add in an order that depends on the layer's shape and the device alone: a row's result has the same bits
whatever batch it came in. Everything is enqueued on the caller's current stream; nothing waits for the device.
"""

import contextlib
import functools
import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from elmo_fast.ops.backend import native_module
from elmo_fast.ops.cuda_layer import empty_bytes, input_product, input_products, operand_for, operand_number, prepared
from elmo_fast.ops.cuda_limits import limits
from elmo_fast.ops.host_device import to_device
from elmo_fast.ops.lstm_operands import limit
from elmo_fast.ops.reference import LstmWeights, State, restore
from elmo_fast.ops.schedule import Schedule

_PRODUCT_BYTES = 1 << 29  # input products of both directions held at once
_PATIENCE = 2 * 10**9  # nanoseconds that a block waits for the others before the launch is given up

logger = logging.getLogger(__name__)


@torch.inference_mode(False)
@torch.no_grad()
def step_kernel(
    inputs: torch.Tensor | None,
    rows: torch.Tensor | None,
    schedule: Schedule,
    state: State,
    weights: tuple[LstmWeights, LstmWeights],
    *,
    cell_clip: float | None = None,
    proj_clip: float | None = None,
    restart: State | None = None,
    operand: str | None = None,
    products: tuple[torch.Tensor, torch.Tensor] | None = None,
    last_block_sums: bool = False,
) -> tuple[torch.Tensor, State]:
    """Tier B, as `reference.projected_lstm`: a launch for each step, any number of lanes. `rows` may lie on the host.

    Under a graph capture nothing may come from the host: lanes longest first in the caller's order, no `restart`,
    weights used before.

    `products` of `input_products` may stand for `inputs`. `operand` is `operand_for` unless given.
    `last_block_sums` lets the step's last blocks add up the projection in the place of a second launch.
    """
    run = _Run(schedule, state, weights, cell_clip, proj_clip, restart, operand)
    with _current(run.device):
        for chunk in run.chunks(inputs, rows, products):
            run.module.cuda_lstm_steps(last_block_sums=last_block_sums, **run.arguments(chunk))
            run.advance()
        return run.result()


@torch.inference_mode(False)
@torch.no_grad()
def persistent(
    inputs: torch.Tensor | None,
    rows: torch.Tensor | None,
    schedule: Schedule,
    state: State,
    weights: tuple[LstmWeights, LstmWeights],
    *,
    cell_clip: float | None = None,
    proj_clip: float | None = None,
    restart: State | None = None,
    operand: str | None = None,
    products: tuple[torch.Tensor, torch.Tensor] | None = None,
    nanoseconds: int | None = None,
    first_count: int = 0,
) -> tuple[torch.Tensor, State]:
    """Tier C0, as `step_kernel`: a cooperative launch for each direction. Not for use under graph capture.

    A launch whose blocks do not all come within `nanoseconds` (two seconds) is replayed on the device, with the same bits;
    `gave_up` tells later. Where the device refuses the launch, the steps run as tier B. Each warns once.
    `first_count` is where the barrier's counter starts, and the environment's ELMO_FAST_CUDA_ABSENT_BLOCK names a
    block that never comes: both for tests.
    """
    run = _Run(schedule, state, weights, cell_clip, proj_clip, restart, operand)
    watch = _watch(run.device)
    absent = int(os.environ.get("ELMO_FAST_CUDA_ABSENT_BLOCK", "-1"))
    with _current(run.device):
        for chunk in run.chunks(inputs, rows, products):
            arguments = run.arguments(chunk, persistent=True)
            try:
                run.module.cuda_lstm_persistent(aborts=watch.count.data_ptr(),
                                                nanoseconds=_PATIENCE if nanoseconds is None else nanoseconds,
                                                first_count=first_count, absent_block=absent, **arguments)
            except RuntimeError as error:
                watch.refused(error)
                run.module.cuda_lstm_steps(last_block_sums=False, **run.arguments(chunk))
            run.advance()
        watch.look()
        return run.result()


def gave_up(device: torch.device) -> bool:
    """Whether a launch of tier C gave up or was refused on `device`, as far as is known without waiting. Warns once."""
    return _watch(device).gave_up()


@dataclass(frozen=True)
class _Chunk:
    """Steps that one call runs, their step-rows, and what they read of the input products."""

    steps: slice
    rows: slice
    products: tuple[torch.Tensor, torch.Tensor]
    places: torch.Tensor | None  # int32 [2, S of the chunk] or None


class _Run:
    """One forward: what the calls of all its chunks share, and the state between them."""

    def __init__(self, schedule, state, weights, cell_clip, proj_clip, restart, operand):
        self.module, self.device = native_module()[0], state[0].device
        self.weights, self.layer = weights, prepared(weights, operand or operand_for(weights, proj_clip))
        self.clips = {"cell_clip": limit(cell_clip), "proj_clip": limit(proj_clip)}
        in_order = np.array_equal(schedule.lanes, np.arange(schedule.lanes.size))
        self.order = slice(None) if in_order else to_device(schedule.lanes, self.device)
        self.state = tuple(each[self.order].float().clone(memory_format=torch.contiguous_format) for each in state)
        self.live = schedule.live[schedule.live > 0]
        self.first_row = np.concatenate([[0], np.cumsum(self.live, dtype=np.int64)])
        self.restart = None if restart is None else tuple(each.float().contiguous() for each in restart)
        self.starts = None if restart is None else to_device(schedule.starts.view(np.uint8), self.device)
        self.output = self.state[0].new_empty(int(self.first_row[-1]), 2 * self.layer.projection)

    def chunks(self, inputs, rows, products) -> Iterator[_Chunk]:
        """All steps at once where the input products of all rows in use fit into memory, else part by part."""
        steps, size = len(self.live), int(self.first_row[-1])
        at_once = max(1, _PRODUCT_BYTES // (32 * self.layer.dim))
        if rows is not None:
            inputs, rows = self._used(inputs, rows, products)
        places = None if rows is None else to_device(rows.to(torch.int32), self.device).contiguous()
        if steps and (products is not None or len(inputs) <= min(at_once, 2 * size)):
            products = products or input_products(inputs, self.weights, self.layer.operand)
            yield _Chunk(slice(0, steps), slice(0, size), products, places)
            return
        for part in _parts(self.first_row, at_once):
            mine = slice(int(self.first_row[part.start]), int(self.first_row[part.stop]))
            yield _Chunk(part, mine, self._gathered(inputs, places, mine), None)

    def _used(self, inputs, rows, products):
        """Of a table much larger than what is read of it, where the host knows that, the rows in use."""
        if products is not None or rows.device.type != "cpu" or len(inputs) <= 2 * rows.shape[1]:
            return inputs, rows
        used, number = np.unique(rows.numpy(), return_inverse=True)
        return inputs.index_select(0, to_device(used, self.device)), torch.from_numpy(number.reshape(rows.shape))

    def _gathered(self, inputs, places, mine: slice):
        if places is None:
            return input_products(inputs[mine], self.weights, self.layer.operand)
        return tuple(input_product(inputs[places[d, mine]], self.weights, d, self.layer.operand) for d in range(2))

    def arguments(self, chunk: _Chunk, persistent: bool = False) -> dict:
        """What both tiers' calls take; tensors made here live until `advance`."""
        layer, lanes = self.layer, len(self.state[0])
        there = limits(self.device)
        plan = self.module.cuda_lstm_plan(persistent, layer.dim, layer.projection, there.native, lanes)
        if plan["reason"]:
            raise RuntimeError(f"lanes: {plan['reason']}, got {lanes} lanes on {there.processors} multiprocessors")
        begin = (self.first_row[chunk.steps.start : chunk.steps.stop + 1] - chunk.rows.start).astype(np.int32)
        self.final = tuple(each.clone() for each in self.state)
        scratch = empty_bytes(plan["scratch"], self.device)
        begins = to_device(begin, self.device) if persistent else None
        places = None if chunk.places is None else chunk.places[:, chunk.rows].contiguous()
        self.held = scratch, begins, places
        return {
            "dim": layer.dim, "projection": layer.projection, "operand": operand_number(layer.operand),
            "device": there.native, "packed": layer.packed.data_ptr(),
            "products": [each.data_ptr() for each in chunk.products],
            "rows": [0, 0] if places is None else [places[d].data_ptr() for d in range(2)],
            "live": self.live[chunk.steps].tolist(), "begin": 0 if begins is None else begins.data_ptr(),
            "reset": 0 if self.starts is None else self.starts[chunk.rows].data_ptr(),
            "reset_h": 0 if self.restart is None else self.restart[0].data_ptr(),
            "reset_c": 0 if self.restart is None else self.restart[1].data_ptr(),
            "output": self.output[chunk.rows].data_ptr(), "lanes": lanes,
            "h_first": self.state[0].data_ptr(), "c_first": self.state[1].data_ptr(),
            "h": self.final[0].data_ptr(), "c": self.final[1].data_ptr(), **self.clips,
            "scratch": scratch.data_ptr(), "scratch_size": scratch.numel(), "stream": _stream(self.device),
        }

    def advance(self) -> None:
        """The state a call ended in is the next one's. The stream keeps what it was given in order."""
        self.state, self.held = self.final, None

    def result(self) -> tuple[torch.Tensor, State]:
        if isinstance(self.order, slice):
            return self.output, self.state
        return self.output, tuple(restore(each, self.order) for each in self.state)


class _Watch:
    """Whether launches of tier C gave up or were refused on one device, without ever waiting for it."""

    @torch.inference_mode(False)
    def __init__(self, device: torch.device):
        self.count = torch.zeros(1, dtype=torch.int32, device=device)
        self._seen = torch.zeros(1, dtype=torch.int32, pin_memory=device.type == "cuda")
        self._warned = False
        self._refused = False

    def refused(self, error: RuntimeError) -> None:
        if not self._refused:
            self._refused = True
            logger.warning("the persistent LSTM is refused on %s and runs step by step instead (%s)", self.count.device,
                           error)

    def look(self) -> None:
        self._seen.copy_(self.count, non_blocking=True)

    def gave_up(self) -> bool:
        if int(self._seen[0]) and not self._warned:
            self._warned = True
            logger.warning("the persistent LSTM gave up waiting on %s and was replayed by a slower kernel, with the "
                           "same numbers: the GPU is shared, or smaller than it says", self.count.device)
        return self._warned or self._refused


@functools.cache
def _watch(device: torch.device) -> _Watch:
    return _Watch(device)


def _parts(first_row: np.ndarray, at_once: int) -> Iterator[slice]:
    """Runs of steps of at most `at_once` step-rows, or of one step."""
    begin, steps = 0, len(first_row) - 1
    while begin < steps:
        end = max(begin + 1, int(np.searchsorted(first_row, first_row[begin] + at_once, side="right")) - 1)
        yield slice(begin, min(end, steps))
        begin = min(end, steps)


def _stream(device: torch.device) -> int:
    return torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0


def _current(device: torch.device):
    """Launches go to the current device."""
    return torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext()
