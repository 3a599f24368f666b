"""Stage `ceilings`: what this chip can do at most: copies, matrix products, launches, graph nodes, barriers."""

import subprocess
import sys
from itertools import cycle

import torch

from benchmarks.gpu import barriers, clock
from benchmarks.gpu import stage as stages

SECONDS = 1.2  # for one case
# gates of one direction of the original model's LSTM for one batch: [batch, 1024] x [1024, 16384]
STEP_INPUT, STEP_GATES = 1024, 16384

# name: operand type, whether tf32 may be used
GEMMS = {
    "fp16": (torch.float16, False),
    "bf16": (torch.bfloat16, False),
    "tf32": (torch.float32, True),
    "fp32": (torch.float32, False),
}


def copy(stage: stages.Stage) -> dict:
    """Device-to-device copy, bytes read plus bytes written; far larger than the L2 cache."""
    count = 2**16 if stage.dry_run else 2**30
    source = torch.randint(0, 255, (count,), dtype=torch.uint8, device=stage.device)
    target = torch.empty_like(source)
    timing = clock.measure(lambda: target.copy_(source), stage.device, SECONDS)
    return {"bytes": 2 * count, **timing.as_dict(), "gb_per_s": 2 * count / timing.median / 1e9}


def product(stage: stages.Stage, kind: str, rows: int, inner: int, columns: int, sets: int = 1) -> dict:
    """One matrix product on random data (zeros run faster).

    Several `sets` of right-hand sides take turns, so that they stream from memory and not from the cache.
    """
    dtype, tf32 = GEMMS[kind]
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = tf32
    try:
        a = torch.randn(rows, inner, device=stage.device, dtype=dtype)
        turns = cycle([torch.randn(inner, columns, device=stage.device, dtype=dtype) for _ in range(sets)])
        timing = clock.measure(lambda: a @ next(turns), stage.device, SECONDS)
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before
    flop = 2 * rows * inner * columns
    return {**timing.as_dict(), "tflop_per_s": flop / timing.median / 1e12}


def launches(stage: stages.Stage) -> dict:
    """Smallest kernels, one after the other: what a launch costs."""
    count = 50 if stage.dry_run else 2000
    x = torch.zeros(1, device=stage.device)

    def many():
        for _ in range(count):
            x.add_(1)

    timing = clock.measure(many, stage.device, SECONDS)
    return {"launches": count, "us_per_launch": timing.median / count * 1e6}


def graph_nodes(stage: stages.Stage) -> dict:
    """The same kernels as nodes of a CUDA graph; two sizes, so that the cost of the launch itself drops out."""
    if stage.device != "cuda":
        return {"skipped": "CUDA graphs need a GPU"}
    few, many = 200, 2000
    seconds = {count: clock.measure(_graph_of(count), stage.device, SECONDS).median for count in (few, many)}
    per_node = (seconds[many] - seconds[few]) / (many - few)
    return {"us_per_node": per_node * 1e6, "us_per_replay": (seconds[few] - few * per_node) * 1e6}


def _graph_of(nodes: int):
    """A function that replays a graph of so many kernels, each waiting for the one before."""
    x = torch.zeros(1, device="cuda")
    x.add_(1)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(nodes):
            x.add_(1)

    def replay(_kept=x):  # the graph knows its memory by address only
        graph.replay()

    return replay


def work(stage: stages.Stage) -> None:
    stage.attempt({"case": "copy"}, lambda: copy(stage))
    stage.attempt({"case": "launch"}, lambda: launches(stage))
    stage.attempt({"case": "graph node"}, lambda: graph_nodes(stage))
    try:
        barriers.measure(stage)
    except (OSError, RuntimeError, subprocess.SubprocessError) as error:
        stage.add(case="barrier", failed=stages.describe(error))
    side = 64 if stage.dry_run else 8192
    for kind in GEMMS:
        size = side if kind != "fp32" or stage.dry_run else side // 2
        stage.attempt({"case": f"gemm {kind}", "shape": [size, size, size]},
                      lambda kind=kind, size=size: product(stage, kind, size, size, size))
    inner, columns = (32, 64) if stage.dry_run else (STEP_INPUT, STEP_GATES)
    for kind in GEMMS:
        for rows in (1, 16) if stage.dry_run else (1, 16, 64, 256):
            stage.attempt({"case": f"step gemm {kind}", "shape": [rows, inner, columns]},
                          lambda kind=kind, rows=rows: product(stage, kind, rows, inner, columns, sets=8))


if __name__ == "__main__":
    sys.exit(stages.run("ceilings", work, stages.parser(__doc__).parse_args()))
