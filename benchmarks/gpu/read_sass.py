"""A lint over the machine code of the CUDA kernels: python -m benchmarks.gpu.read_sass [FILE ...]  (needs no GPU)

A warp's instructions are issued in order. A load holds one of six scoreboards until all that hold it have arrived, and
the instruction whose control bits name the scoreboard waits for that (https://arxiv.org/abs/1804.06826). A
*round* is such a wait: all loads issued since the last one complete in it together. The lint reads a kernel's time loop
(the loop around the grid barrier's poll; without one, the kernel from end to end) line by line in the steady state, as
if no branch were taken. No round are the wait at a barrier, since what was loaded before it arrives meanwhile, and a
wait that HIDING products came before. cp.async is waited for at DEPBAR; where blocks form clusters, bulk copies and a
barrier in shared memory take its place, which are no loads here. 128-bit loads through the read-only path are streamed
weights and counted apart.

On every path, no load from shared memory is under way where a warp arrives at another block's barrier: that block may
then let a bulk copy overwrite what was read.
"""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

SOURCES = sorted((Path(__file__).resolve().parents[2] / "csrc" / "cuda").glob("*.cu"))
COMPILE = ["-std=c++17", "-O3", "-fmad=false", "-arch=sm_90a", "-cubin"]
HELD = re.compile(r"17persistent_kernelILi8ELi\d+ELi\d+ELi256E")  # kernels for 64 slots: they are held to
MOST_ROUNDS = 4  # rounds of global loads in a step
MOST_WAITING = 1  # loops that wait for loads in each of their few passes: finish_h
HIDING = 16  # tensor-core instructions of a warp that outlast a load: 8 warps' take 200 cycles and more
FUNCTION = re.compile(r"Function\s*:\s*(\S+)\n(.*?)(?=\n\s*Function\s*:|\Z)", re.DOTALL)
# Address, predicate, opcode, operands, and the high word of the encoding.
LINE = re.compile(r"^\s*/\*([0-9a-f]{4,})\*/\s+(@!?U?P\w+\s+)?([A-Z][A-Z0-9_.]*)\s*([^;]*?)\s*;.*\n"
                  r"\s*/\* (0x\w+) \*/", re.MULTILINE)
JUMPS = ("BRA", "WARPSYNC")  # the latter, where it names an instruction, is a call
UNHELD = 7
COPIED = 6  # in place of a scoreboard: what cp.async holds and DEPBAR waits for


class Instruction:
    """One line of a listing: what it is, the scoreboard that it holds, and those that it waits for."""

    def __init__(self, at: str, predicate: str, op: str, operands: str, encoding: str):
        self.at, self.op, self.name, self.operands = int(at, 16), op, op.split(".")[0], operands
        self.always, self.never = not predicate, predicate.strip() == "@!PT"
        self.is_weight = self.name == "LDG" and ".128" in op and ".CONSTANT" in op
        self.is_load = self.name in ("LDG", "LDGSTS", "ATOMG", "ATOM") and not self.is_weight
        bits = int(encoding, 16)
        self.holds = COPIED if self.name == "LDGSTS" else bits >> 46 & 7
        self.awaits = {number for number in range(6) if bits >> 52 + number & 1}
        if self.name == "DEPBAR":
            self.awaits.add(COPIED)


class Round(NamedTuple):
    """A wait at `at` for so many loads; `copies`: all of them are cp.async."""

    at: int
    loads: int
    copies: bool


class Kernel:
    """A function: its instructions, and its loops as ranges of them, each from a branch's target back to the branch."""

    def __init__(self, name: str, body: str):
        self.name, self.code = name, [Instruction(*found) for found in LINE.findall(body)]
        number, ends = {f"{line.at:#x}": index for index, line in enumerate(self.code)}, {}
        for index, line in enumerate(self.code):
            target = number.get(line.operands.split(", ")[-1], index) if line.name == "BRA" else index
            if target < index:
                ends[target] = index + 1
        self.loops = [range(first, end) for first, end in ends.items()]
        self.targets = [number.get(line.operands.split(", ")[-1].strip("`()")) if line.name in JUMPS else None
                        for line in self.code]
        acquired = {index for index, line in enumerate(self.code[:-1])
                    if line.name in ("LDG", "LDS") and self.code[index + 1].op == "CCTL.IVALL"}
        around = sorted((loop for loop in self.loops if acquired.intersection(loop)), key=len)
        self.poll_loops = [loop for loop in around if not any(within(other, loop) for other in around)]
        self.grid_barriers = sum(any(self.code[at].name == "LDG" for at in acquired.intersection(loop))
                                 for loop in self.poll_loops)
        self.polls = acquired | {at for loop in self.poll_loops for at in loop if self.code[at].is_load}
        # Branches back from code behind the exit, where threads of a warp part, make larger ones.
        outer = [loop for loop in around if all(within(poll, loop) for poll in self.poll_loops)]
        self.time_loop = outer[0] if outer else range(len(self.code))

    def products(self, part: range) -> int:
        return sum(self.code[at].name == "HMMA" for at in part)

    def rounds(self, part: range) -> list[Round]:
        """Of one pass; a pass of a loop begins with the loads that the pass before it left under way."""
        pending, products, polled = {}, 0, False  # loads under way, by scoreboard; products since
        for _ in range(1 + (part in self.loops)):
            found = []
            for index in part:
                line = self.code[index]
                awaited = [load for load, held in pending.items() if held in line.awaits]
                if self.polls.intersection(awaited) or (index in self.polls and line.name == "LDS"):
                    pending, polled = {}, True
                elif awaited:
                    if products < HIDING:
                        found.append(Round(line.at, len(pending), all(held == COPIED for held in pending.values())))
                    pending = {}
                elif polled and line.name in ("BAR", "BSYNC", "WARPSYNC"):
                    pending, polled = {}, False  # the rest of the block or warp has waited as well
                if line.is_load:
                    pending, products = pending | {index: line.holds}, 0
                products += line.name == "HMMA"
        return found

    def rolled(self) -> list[range]:
        """Loops in the time loop that wait for loads of theirs in each pass, the outer ones: passes are not counted."""
        found = [loop for loop in self.loops
                 if within(loop, self.time_loop) and loop not in self.poll_loops and self.rounds(loop)]
        return [loop for loop in found if not any(within(loop, other) for other in found)]

    def arrivals(self) -> list[int]:
        """The instructions that arrive at another block's barrier."""
        return [at for at, line in enumerate(self.code) if line.op.startswith("SYNCS.ARRIVE") and ".RED" in line.op]

    def reads_at_arrivals(self) -> list[int]:
        """Places of arrivals at another block's barrier that loads from shared memory may still be under way at.

        These loads end in order, so that one that holds no scoreboard has ended when a later one has.
        """
        before, left = {0: frozenset()}, [0]  # by instruction: scoreboards that such loads hold on some path to it
        while left:
            at = left.pop()
            line, held = self.code[at], before[at] - self.code[at].awaits
            if line.name in ("LDS", "LDSM") and not line.never:
                held = (held - {UNHELD} if line.always else held) | {line.holds}
            ends = line.always and (line.name == "EXIT" or (line.name == "BRA" and "," not in line.operands))
            for after in (self.targets[at], None if ends else at + 1):
                if after is not None and after < len(self.code) and not (after in before and held <= before[after]):
                    before[after] = before.get(after, frozenset()) | held
                    left.append(after)
        return [self.code[at].at for at in self.arrivals() if before.get(at, set()) - self.code[at].awaits]

    def problems(self) -> list[str]:
        found = [f"{line.op} at {line.at:#x}: local memory" for line in self.code if line.name in ("LDL", "STL")]
        found += [f"a shared load is under way at the arrival at {at:#x}" for at in self.reads_at_arrivals()]
        if HELD.search(self.name):
            rounds = [f"{wait.loads} at {wait.at:#x}" for wait in self.rounds(self.time_loop)]
            rolled = [f"from {self.code[loop.start].at:#x}" for loop in self.rolled()]
            found += [f"{len(places)} {what}, expected at most {most}: {', '.join(places)}" for places, what, most in (
                (rounds, "rounds of global loads a step", MOST_ROUNDS),
                (rolled, "loops wait for loads in each pass", MOST_WAITING)) if len(places) > most]
        if self.polls:  # exchanged values are STRONG
            found += [f"{line.op} at {line.at:#x}: a weight outside the streamed part"
                      for line in map(self.code.__getitem__, self.time_loop)
                      if re.fullmatch(r"LDG\.E(\.LTC\w+)?\.128", line.op)]
        return found

    def summary(self) -> str:
        loop, copies = self.time_loop, [found.copies for found in self.rounds(self.time_loop)]
        return (f"{len(loop)} instructions, {self.products(loop)} HMMA, {sum(self.code[at].is_weight for at in loop)} "
                f"streamed weights, {self.grid_barriers} grid barriers, {len(copies)} rounds of global loads, "
                f"{sum(copies)} of them copies, {len(self.rolled())} waiting loops")


def within(inner: range, outer: range) -> bool:
    return inner != outer and outer.start <= inner.start and inner.stop <= outer.stop


def tool(name: str) -> str:
    """A program of the triton package, which brings recent ones, or else of the CUDA toolkit."""
    triton = importlib.util.find_spec("triton")
    places = [str(Path(triton.origin).parent / "backends" / "nvidia" / "bin")] if triton else []
    path = os.pathsep.join([*places, os.environ.get("PATH", os.defpath), "/usr/local/cuda/bin"])
    if (found := shutil.which(name, path=path)) is None:
        raise FileNotFoundError(f"{name}: found neither in triton nor in the CUDA toolkit")
    return found


def disassembled(path: Path, target: str = "sm_90a") -> str:
    """The machine code of a cubin or object file; a source file is compiled first."""
    with tempfile.TemporaryDirectory() as folder:
        if path.suffix == ".cu":
            subprocess.run([tool("nvcc"), *COMPILE, path, "-o", f"{folder}/cubin"], check=True)
            path = Path(folder, "cubin")
        return listing(path, "-sass", "-arch", target)


def listing(path: Path, *flags: str) -> str:
    """What cuobjdump prints of a cubin or object file."""
    return subprocess.run([tool("cuobjdump"), *flags, path], capture_output=True, text=True, check=True).stdout


def usage(path: Path, *flags: str) -> dict[str, dict[str, int]]:
    """By kernel: registers of a thread (REG), bytes of SHARED memory and of that for spills (STACK, LOCAL)."""
    return {name: {kind: int(number) for kind, number in re.findall(r"\b([A-Z]+):(\d+)", line)}
            for name, line in re.findall(r"Function (\S+):\s+(.*)", listing(path, "-res-usage", *flags))}


def kernels(dump: str) -> list[Kernel]:
    """Of what `cuobjdump -sass` prints."""
    return [Kernel(name, body) for name, body in FUNCTION.findall(dump)]


def main() -> bool:
    """Whether something is wrong in the files named, sources or compiled kernels."""
    wrong = False
    for path in map(Path, sys.argv[1:] or SOURCES):
        for kernel in kernels(disassembled(path)):
            found = kernel.problems()
            wrong |= bool(found)
            print(kernel.name, kernel.summary(), *(f"WRONG: {problem}" for problem in found), sep="\n  ")
    return wrong


if __name__ == "__main__":
    sys.exit(main())
