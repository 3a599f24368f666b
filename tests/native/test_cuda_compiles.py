"""Every CUDA kernel for each target: no spills, registers and shared memory within the chip's limits, no lint errors.

Then the lint itself, on short listings: the rounds of loads, their ends, and the reported problems.
"""

import re
from pathlib import Path

import pytest

from benchmarks.gpu import read_sass
from tests.support.ptx_machine import ROOT, object_file

SYSTEM_SHARED = {"sm_80": 0, "sm_90a": 1024, "sm_100f": 1024, "sm_120": 1024}  # bytes that CUDA uses
FLAGS = ["-std=c++17", "-O3", "-fmad=false", "--threads=2", "-Werror", "all-warnings", "-Xptxas", "-Werror",
         "-Xcompiler", "-Werror",
         *(f"-gencode=arch=compute_{target[3:]},code={target}" for target in SYSTEM_SHARED)]
INSTANCES = 7


@pytest.fixture(scope="module")
def compiled() -> Path:
    """An object file; compiler warnings are errors."""
    try:
        nvcc, _ = map(read_sass.tool, ("nvcc", "cuobjdump"))
    except FileNotFoundError as error:
        pytest.skip(str(error))
    return object_file([nvcc, *FLAGS], ROOT / "csrc" / "cuda" / "persistent.cu")


@pytest.mark.long
@pytest.mark.parametrize("target", SYSTEM_SHARED)
def test_kernels_fit_the_chip(compiled, target):
    usage = read_sass.usage(compiled, "-arch", target)
    assert len(usage) == INSTANCES
    for name, used in usage.items():
        assert used["REG"] <= 255 and used["STACK"] == used["LOCAL"] == 0, (name, used)
        assert used["SHARED"] == SYSTEM_SHARED[target], (name, used)


@pytest.mark.long
def test_time_loops_do_not_serialize_loads(compiled):
    """No local memory; at 64 slots, few rounds of loads per step, and only streamed weights; no shared load is under
    way at an arrival, also on 10.0. Code for 12.0 has no clusters."""
    kernels = read_sass.kernels(read_sass.disassembled(compiled))
    assert len(kernels) == INSTANCES
    for kernel in kernels:
        assert not kernel.problems(), (kernel.name, kernel.summary())
    resident = [kernel for kernel in kernels if read_sass.HELD.search(kernel.name)]
    assert len(resident) == 1
    assert all(kernel.grid_barriers == 2 and kernel.products(kernel.time_loop) for kernel in resident)
    for target, per_kernel in (("sm_90a", 1), ("sm_100f", 1), ("sm_120", 0)):
        for kernel in read_sass.kernels(read_sass.disassembled(compiled, target)):
            assert len(kernel.arrivals()) >= per_kernel and bool(kernel.arrivals()) == per_kernel
            assert not kernel.reads_at_arrivals()


LOAD, USE = "LDG.E R8, desc[UR4][R2.64] -> 1\n", "FADD R9, R8, R9 <- 1\n"
WIDE, STREAMED = (f"LDG.E.128{kind} R8, desc[UR4][R2.64] -> 1\n" for kind in ("", ".CONSTANT"))
PRODUCTS = "HMMA.16816.F32 R80, R84, R88, R80\n" * read_sass.HIDING
PIPELINE = f"I: @P3 BRA J\nDEPBAR.LE SB0, 0x0\nLDGSTS.E.128 [R7], desc[UR4][R2.64]\nJ: {PRODUCTS}@P2 BRA I\n"
LOOP = """MOV R1, 0x1\nT: NOP\n{before}
W:  LDG.E.STRONG.GPU R0, desc[UR4][R2.64] -> 0
    CCTL.IVALL
    ISETP.NE.AND P0, PT, R0, R1, PT <- 0
    @P0 BRA W
A:  BAR.SYNC.DEFER_BLOCKING 0x0
{body}\nHMMA.16816.F32 R80, R84, R88, R80\n@P1 BRA T\nEXIT"""


def in_loop(body: str, before: str = "") -> str:
    """A time loop: `before`, the wait at a barrier, then `body`."""
    return LOOP.format(before=before, body=body)


def listing(text: str) -> str:
    """A listing as of `cuobjdump -sass`: labels become addresses; "-> 5" is the scoreboard that an instruction sets,
    "<- 1 5" the scoreboards that it waits for."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    labels = {match[1]: f"{16 * at:#x}" for at, line in enumerate(lines) if (match := re.match(r"(\w+): ", line))}
    result = ""
    for at, line in enumerate(lines):
        code, scoreboard, awaited = re.fullmatch(r"(?:\w+: +)?(.*?)(?: -> (\d))?(?: <- ([\d ]+))?", line).groups()
        code = re.sub(r"BRA (\w+)", lambda match: f"BRA {labels[match[1]]}", code)
        bits = int(scoreboard or 7) << 46 | sum(1 << 52 + int(number) for number in (awaited or "").split())
        result += f"        /*{16 * at:04x}*/    {code} ;   /* 0x01 */\n{' ' * 60}/* {bits:#018x} */\n"
    return result


def kernel(text: str) -> read_sass.Kernel:
    name = "_Z17persistent_kernelILi8ELi2ELi4ELi256EEE"
    (parsed,) = read_sass.kernels(f"\t\tFunction : {name}\n\t.headerflags @\"\"\n{listing(text)}\t\t.....\n")
    assert len(parsed.code) == listing(text).count(" ;")
    return parsed


@pytest.mark.parametrize("text, loads", {
    "a chain": (in_loop(f"{LOAD}LDG.E R6, desc[UR4][R8.64] -> 2 <- 1\nFADD R9, R6, R9 <- 2"), [1, 1]),
    "independent": (in_loop(LOAD * 16 + USE * 16), [16]),
    "copies": (in_loop("LDGSTS.E.BYPASS.128 [R7], desc[UR4][R2.64]\n" * 8 + "LDGDEPBAR\nDEPBAR.LE SB0, 0x0"), [8]),
    "in a branch": (in_loop(f"@P2 BRA B\n{LOAD}{USE}B: {LOAD}{USE}"), [1, 1]),
    "hidden by products": (in_loop(LOAD + PRODUCTS + USE), []),
    "before a wait at the barrier": (in_loop(USE, before=LOAD), []),
}.values())
def test_rounds_of_a_step(text, loads):
    parsed = kernel(text)
    assert [load_round.loads for load_round in parsed.rounds(parsed.time_loop)] == loads


def test_streamed_weights_and_copies_are_counted_apart():
    copy = "LDGSTS.E.BYPASS.128 [R7], desc[UR4][R2.64]\nDEPBAR.LE SB0, 0x0\n"
    parsed = kernel(in_loop(STREAMED + USE + copy + LOAD + USE))
    assert parsed.problems() == []
    assert "1 streamed weights, 1 grid barriers, 2 rounds of global loads, 1 of them copies" in parsed.summary()


SHARED, ARRIVE = "LDS.64 R8, [R4] -> 1\n", "SYNCS.ARRIVE.TRANS64.RED.A1T0 RZ, [R5+URZ], RZ\n"


@pytest.mark.parametrize("text, count", {
    "under way": (SHARED + ARRIVE + USE, 1), "waited for": (SHARED + USE + ARRIVE, 0),
    "waited for on one path": (f"{SHARED}@P1 BRA A\n{USE}A: {ARRIVE}", 1),
    "waited for on both paths": (f"{SHARED}@P1 BRA A\n{USE}BRA B\nA: FADD R9, R8, R9 <- 1\nB: {ARRIVE}", 0),
    "of the pass before": (f"I: {ARRIVE}{SHARED}@P1 BRA I\nEXIT", 1),
    "behind another that is waited for": (f"LDS R6, [R4]\n{SHARED}{USE}{ARRIVE}", 0),
    "behind another that may not run": (f"LDS R6, [R4]\n@P1 {SHARED}{USE}{ARRIVE}", 1),
    "before another": (f"{SHARED}LDS R6, [R4]\n{USE}{ARRIVE}", 1), "never runs": (f"@!PT {SHARED}{ARRIVE}", 0),
    "another scoreboard": (f"{SHARED}FADD R9, R8, R9 <- 2\n{ARRIVE}", 1)}.values())
def test_shared_loads_at_arrivals(text, count):
    parsed = kernel(text)
    assert len(parsed.reads_at_arrivals()) == count
    assert sum("a shared load is under way" in problem for problem in parsed.problems()) == count


@pytest.mark.parametrize("body, message", [
    ("@!P2 LDL.64 R4, [R1]", "LDL.64 at 0x70: local memory"), ("STL [R1], R4", "local memory"),
    (WIDE, "a weight outside the streamed part"),
    ((LOAD + USE) * 5, "5 rounds of global loads a step, expected at most 4: 1 at 0x80"),
    ("I: LDG.E.128.STRONG.GPU R8, desc[UR4][R6.64] -> 1\nSTS.128 [R7], R8 <- 1\n@P2 BRA I",
     "1 loops wait for loads in each pass, expected at most 0: from 0x70"),
    (PIPELINE, None), (PIPELINE.replace(PRODUCTS, "NOP\n"), "1 loops wait for loads in each pass")])
def test_reported_problems(body, message, monkeypatch):
    """A loop waits where products do not hide its copies."""
    monkeypatch.setattr(read_sass, "MOST_WAITING", 0)
    problems = kernel(in_loop(body)).problems()
    assert len(problems) == (message is not None) and all(message in problem for problem in problems)
