"""How the graph path computes a step's recurrent product and gates: in one Triton kernel, or by cuBLAS and a kernel.

For the kernel the gates never are in memory, which pays with many slots. It is chosen by measuring (docs/gpu.md).
"""

import functools
import logging
from collections.abc import Callable

import torch

from elmo_fast.ops import choices
from elmo_fast.ops.backend import lacks_fence, why_no_triton
from elmo_fast.ops.numerics import gemm
from elmo_fast.ops.precision import OPERANDS
from elmo_fast.ops.projected_lstm.cuda.blocks import CHUNK, SIXTEEN_BITS, Arena, Bucket, Operands

TRITON, CUBLAS = WAYS = "Triton", "cuBLAS"

logger = logging.getLogger(__name__)


def gates(way: str, arena: Arena, layer: Operands, bucket: Bucket, meta: torch.Tensor, cell_clip: float,
          pointwise) -> None:
    """Queue a step of `bucket` up to `m`; `meta` int32 [3, L] as in `pointwise.gates`, a module of such kernels."""
    if way == TRITON:
        from elmo_fast.kernels.lstm_step import step

        step(bucket.operand, layer.w_h, arena.z, arena.scale, layer.bias, meta, arena.initial_c, bucket.c, bucket.m,
             SIXTEEN_BITS[layer.dtype], cell_clip)
    else:
        gemm(bucket.operand, layer.w_h, bucket.zh)
        pointwise.gates(bucket.zh, arena.z, arena.scale, layer.bias, meta, arena.initial_c, bucket.c, bucket.m,
                        cell_clip)


def choose(arena: Arena, layer: Operands, slots: int, queue: Callable[[Bucket, int, str], None]) -> str:
    """The faster way for a bucket of `slots` slots, measured at its first call.

    `queue(bucket, count, way)` queues steps. The measurement overwrites the arena and the bucket.
    """
    if why_not(arena, layer):
        return CUBLAS
    operand = str(layer.dtype).removeprefix("torch.")
    name = f"LSTM steps of {layer.dim} cells, {layer.projection} values, {operand}, {slots} slots"
    measure = functools.partial(_measure, arena, layer, slots, queue)
    return choices.choose(arena.device, name, measure) or CUBLAS


def why_not(arena: Arena, layer: Operands) -> str | None:
    """None if the kernel can run, else the reason against it."""
    if layer.dtype not in SIXTEEN_BITS:
        return "its operands are 16-bit, which only precision 'medium' allows"
    if arena.z.numel() >= 1 << 31:
        return "its offsets are 32-bit"
    if reason := why_no_triton(arena.device):
        return reason
    from elmo_fast.kernels.configs import generation_of

    return lacks_fence(generation_of(arena.device))


def _measure(arena: Arena, layer: Operands, slots: int,
             queue: Callable[[Bucket, int, str], None]) -> choices.Measured | None:
    """Time both ways on random operands; None if their results differ."""
    bucket, generator = arena.bucket(slots, layer), torch.Generator(arena.device).manual_seed(0)
    ways = {way: functools.partial(queue, bucket, CHUNK, way) for way in WAYS}
    for values in (arena.z, arena.initial_h, arena.initial_c):
        values.normal_(0, 0.5, generator=generator)
    if arena.scale is not None:
        arena.scale.fill_(1)
    bucket.meta[:, :2] = torch.arange(slots, device=arena.device, dtype=torch.int32)
    bucket.meta[:, 2] = 0

    def run(work: Callable[[], None]) -> tuple[torch.Tensor, ...]:
        for values, initial in ((bucket.h, 0.5), (bucket.c, 0.5), (bucket.operand, 0.5)):
            values.fill_(initial)
        work()
        return bucket.out.clone(), bucket.c.clone()

    expected, found = run(ways[CUBLAS]), run(ways[TRITON])
    differences = [((one - other).norm() / one.norm()).item() for one, other in zip(expected, found)]
    limit = OPERANDS[SIXTEEN_BITS[layer.dtype]].tolerance
    if not all(difference <= limit for difference in differences):  # also for NaN
        logger.warning("LSTM steps run on cuBLAS: outputs and states of Triton's kernel differ from its by %s, "
                       "expected at most %g", differences, limit)
        return None
    graphs = {way: arena.capture(work) if arena.capture else None for way, work in ways.items()}
    return choices.times_of({way: graph.replay if graph else ways[way] for way, graph in graphs.items()})
