"""Stage `ceilings`: what this chip can do at most: products, reads from HBM and L2, a barrier over the grid.

The last three are Triton kernels whose results say whether they did what was timed.
"""

import torch

from benchmarks.gpu.stage import Stage
from elmo_fast.ops.precision import numerics

try:
    import triton
    import triton.language as tl
except ImportError:
    triton = None

SECONDS = 1.2  # for one case
GEMMS = {"fp16": (torch.float16, "highest"), "tf32": (torch.float32, "high"), "fp32": (torch.float32, "highest")}


if triton:
    @triton.jit
    def read_kernel(source, sums, words, passes, BLOCK: tl.constexpr):
        """Adds up int32 words, past the L1 cache."""
        first, inside = tl.program_id(0) * BLOCK, tl.arange(0, BLOCK)
        total = tl.zeros([BLOCK], tl.int32)
        for _ in range(passes):
            for at in range(first, words, tl.num_programs(0) * BLOCK):
                total += tl.load(source + at + inside, mask=at + inside < words, other=0, cache_modifier=".cg")
        tl.store(sums + first + inside, total)

    @triton.jit
    def barrier_kernel(count, gave_up, rounds, MOST: tl.constexpr):
        """All programs wait for each other, as csrc/cuda does: red.release, then ld.acquire until all have come."""
        for generation in range(1, rounds + 1):
            tl.atomic_add(count, 1, sem="release", scope="gpu")
            seen, spins = 0, 0
            while (seen < generation * tl.num_programs(0)) & (spins < MOST):
                seen = tl.inline_asm_elementwise("ld.acquire.gpu.global.u32 $0, [$1];", "=r,l", [count.to(tl.int64)],
                                                 dtype=tl.int32, is_pure=False, pack=1)
                spins += 1
            if spins == MOST:
                tl.store(gave_up, 1)


def gemm(stage: Stage, kind: str) -> dict:
    """A square product of random data (zeros run faster), by the library."""
    (dtype, precision), side = GEMMS[kind], 64 if stage.dry_run else 4096 if kind == "fp32" else 8192
    a, b = (torch.randn(side, side, device=stage.device, dtype=dtype) for _ in range(2))
    with numerics(precision, a.device):
        timing = stage.measure(lambda: a @ b, SECONDS)
    return {**timing.as_dict(), "tflop_per_s": 2 * side**3 / timing.median / 1e12}


def read(stage: Stage, processors: int, megabytes: int, passes: int) -> dict:
    source = torch.randint(-9, 9, (megabytes * 2**18,), dtype=torch.int32, device="cuda")
    sums = torch.empty(4 * processors * 4096, dtype=torch.int32, device="cuda")
    timing = stage.measure(lambda: read_kernel[(4 * processors,)](
        source, sums, len(source), passes, BLOCK=4096, num_warps=8), SECONDS)
    return {"megabytes": megabytes, **timing.as_dict(), "gb_per_s": passes * source.nbytes / timing.median / 1e9,
            "passed": int(sums.sum()) == passes * int(source.sum())}


def barrier(stage: Stage, processors: int) -> dict:
    """From one generation to the next, one warp on a multiprocessor; two lengths, so that the launch drops out."""
    state, seconds, passed = torch.zeros(2, dtype=torch.int32, device="cuda"), {}, True
    for rounds in (1000, 4000):
        seconds[rounds] = stage.measure(lambda: (state.zero_(), barrier_kernel[(processors,)](
            state, state[1:], rounds, MOST=1 << 22, num_warps=1)), SECONDS).median
        passed = passed and state.tolist() == [rounds * processors, 0]
    return {"blocks": processors, "ns": (seconds[4000] - seconds[1000]) / 3000 * 1e9, "passed": passed}


def work(stage: Stage) -> None:
    for kind in GEMMS:
        stage.attempt(lambda: gemm(stage, kind), case=f"gemm {kind}")
    if stage.dry_run or triton is None:
        stage.add(case="probes", skipped="they need a GPU" if stage.dry_run else "triton is not installed")
        return
    processors = torch.cuda.get_device_properties(0).multi_processor_count
    stage.attempt(lambda: read(stage, processors, 4096, 1), case="read HBM")
    stage.attempt(lambda: read(stage, processors, 24, 100), case="read L2")
    stage.attempt(lambda: barrier(stage, processors), case="grid barrier")
