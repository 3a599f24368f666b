"""A lint over the machine code of the CUDA kernels: python -m benchmarks.gpu.read_sass [FILE ...]  (needs no GPU)

A warp's instructions are issued in order, so it waits where it first reads what a load brings. A *round* is such a
wait: all loads issued since the last one complete in it together. The lint follows the worst path through a kernel's
time loop (the loop around the grid barrier's poll; without one, the kernel from end to end) in the steady state. No
round are the wait at a barrier, since what was loaded before it arrives meanwhile, and a wait that HIDING products came
before. cp.async is waited for at DEPBAR. Plain LD reads another block of the cluster, 128-bit loads through the
read-only path are streamed weights: both are counted apart.
"""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

SOURCES = sorted((Path(__file__).resolve().parents[2] / "csrc" / "cuda").glob("*.cu"))
COMPILE = ["-std=c++17", "-O3", "-fmad=false", "-arch=sm_90a", "-cubin"]
HELD = re.compile(r"17persistent_kernelI[A-Z0-9_]*[BF][fp]16ELi8E")  # kernels for 64 slots: they are held to
MOST_ROUNDS = 4  # rounds of global loads in a step
MOST_WAITING = 3  # loops that wait for loads in each of their few passes: gather_m, twice, and finish_h
HIDING = 16  # tensor-core instructions of a warp that outlast a load: 8 warps' take 200 cycles and more
FUNCTION = re.compile(r"Function\s*:\s*(\S+)\n(.*?)(?=\n\s*Function\s*:|\Z)", re.S)
LINE = re.compile(r"^\s*/\*([0-9a-f]{4,})\*/\s+(?:@(!?U?P\w+)\s+)?([A-Z][A-Z0-9_.]*)\s*([^;]*?)\s*;", re.M)
REGISTER = re.compile(r"\b(U?[RP])(\d+)(\.64)?\b")
NO_RESULT = ("ST", "RED", "BRA", "EXIT", "BAR", "BS", "CCTL", "MEMBAR", "CALL", "RET", "NOP", "WARPSYNC", "DEPBAR",
             "YIELD", "LDGDEPBAR", "LDGSTS", "ERRBAR", "CGAERRBAR", "UCGABAR", "BMOV", "PREEXIT", "ACQBULK",
             "NANOSLEEP")
PREDICATE_FIRST = ("SHFL", "ATOMG", "ATOM", "ATOMS", "VOTE", "MATCH")  # the value comes behind it
ASYNC = "async"  # what cp.async is said to write, until DEPBAR


class Instruction:
    """One line of a listing: what it is, the registers that it reads and writes."""

    def __init__(self, at: str, guard: str, op: str, operands: str):
        self.at, self.guard, self.op = int(at, 16), guard, op
        self.operands = [each.strip() for each in operands.split(",")] if operands else []
        self.is_weight = self.is_a("LDG") and ".128" in op and ".CONSTANT" in op
        self.is_load = self.is_a("LDG", "LDGSTS", "LD", "ATOMG", "ATOM") and not self.is_weight
        results = 0 if op.startswith(NO_RESULT) or not self.operands else 1
        if results and len(self.operands) > 1:  # a predicate beside the value, or the value behind a predicate
            results += bool(re.fullmatch(r"U?P[\dT]", self.operands[1])
                            or self.operands[0].startswith(("P", "UP")) and self.is_a(*PREDICATE_FIRST))
        names = [self._registers(index) for index in range(len(self.operands))]
        self.writes = set().union(*names[:results])
        self.reads = set().union(*names[results:], {guard.lstrip("!")} if guard else ())

    def is_a(self, *names: str) -> bool:
        return self.op.split(".")[0] in names

    def _registers(self, index: int) -> set[str]:
        """Of one operand, which names the first of a group; inside an address groups are marked."""
        found = set()
        for kind, number, pair in REGISTER.findall(self.operands[index]):
            width = 2 if pair else 1 if "P" in kind or "[" in self.operands[index] else self._width(index)
            found |= {f"{kind}{int(number) + more}" for more in range(width)}
        return found

    def _width(self, index: int) -> int:
        if self.is_a("HMMA"):
            return 2 if index == 2 else 4
        if self.is_a("LDSM"):
            return int(self.op[-1]) if index == 0 and self.op[-1] in "24" else 1
        if self.is_a("IMAD", "UIMAD") and index in (1, 2):
            return 1
        return 4 if ".128" in self.op else 2 if ".64" in self.op or "WIDE" in self.op or self.op == "CS2R" else 1


class Round(NamedTuple):
    """A wait at `at` for so many loads; `remote`: all of them from other blocks of the cluster."""

    at: int
    loads: int
    remote: bool


@dataclass(frozen=True)
class State:
    """The worst path so far: rounds, loads under way (register -> address), products since, if a poll has ended."""

    rounds: tuple[Round, ...] = ()
    pending: dict[str, int] = field(default_factory=dict)
    products: int = 0
    polled: bool = False

    def joined(self, other: "State | None") -> "State":
        """Loads under way cost one round at most: a path with a round more is the worse one."""
        if other is None or other is self or len(self.rounds) > len(other.rounds):
            return self
        if len(self.rounds) < len(other.rounds):
            return other
        products = min((each.products for each in (self, other) if each.pending), default=0)
        return State(self.rounds, other.pending | self.pending, products, self.polled or other.polled)


class Kernel:
    """A function: its instructions by address, the edges between them, its loops as sets of addresses."""

    def __init__(self, name: str, body: str):
        listed = [Instruction(*found) for found in LINE.findall(body)]
        self.name, self.code = name, {each.at: each for each in listed}
        self.after, self.before = {}, {at: [] for at in self.code}
        for each, following in zip(listed, [*listed[1:], None]):
            target = re.fullmatch(r"0x([0-9a-f]+)", each.operands[-1]) if each.is_a("BRA") else None
            falls = each.guard or not each.is_a("BRA", "EXIT", "RET") or len(each.operands) > 1
            self.after[each.at] = [following.at] if falls and following else []
            self.after[each.at] += [int(target[1], 16)] if target else []
            for to in self.after[each.at]:
                self.before[to].append(each.at)
        acquired = {each.at for each, following in zip(listed, listed[1:])
                    if each.is_a("LDG", "LDS", "LD") and following.op == "CCTL.IVALL"}
        self.loops = self._loops(set(self.code))
        around = [loop for loop in self.loops if loop & acquired]
        self.poll_loops = [loop for loop in around if not any(other < loop for other in around)]
        self.grid_barriers = sum(any(self.code[at].is_a("LDG") for at in loop & acquired) for loop in self.poll_loops)
        self.polls = acquired | {at for loop in self.poll_loops for at in loop if self.code[at].is_load}
        widest = [loop for loop in around if loop not in self.poll_loops and not any(loop < other for other in around)]
        self.time_loops = widest or [set(self.code)]

    def products(self, loop: set[int]) -> int:
        return sum(self.code[at].is_a("HMMA") for at in loop)

    def _reached(self, start: int, edges: dict, within: set[int]) -> set[int]:
        found, todo = {start}, [start]
        while todo:
            new = [each for each in edges[todo.pop()] if each in within and each not in found]
            found.update(new)
            todo += new
        return found

    def _loops(self, within: set[int]) -> list[set[int]]:
        """All loops, outer ones first: what can reach each other; inside, what still can without the loop's head."""
        found: list[set[int]] = []
        for at in sorted(within):
            backwards = [source for source in self.before[at] if source >= at and source in within]
            if backwards and not any(at in each for each in found):
                loop = self._reached(at, self.after, within) & self._reached(at, self.before, within)
                found += [loop] if loop.intersection(backwards) else []
        return found + [inner for each in found for inner in self._loops(each - {self._head(each)})]

    def _head(self, loop: set[int]) -> int:
        return min((at for at in loop if any(each not in loop for each in self.before[at])), default=min(loop))

    def rounds(self, loop: set[int]) -> tuple[Round, ...]:
        """Of the worst path of a pass; one of a loop begins with the loads that the pass before it left under way."""
        before = self._walk(loop, State()) if loop in self.loops else State()
        return self._walk(loop, replace(before, rounds=())).rounds

    def _walk(self, loop: set[int], start: State) -> State:
        head, last = self._head(loop), None
        states = {head: start}
        for at in self._in_order(head, loop):
            state = self._step(self.code[at], states.pop(at))
            inside = [each for each in self.after[at] if each in loop and each != head]
            last = state.joined(last) if len(inside) < len(self.after[at]) or not inside else last
            for each in inside:
                states[each] = state.joined(states.get(each))
        return last

    def _in_order(self, head: int, loop: set[int]) -> list[int]:
        """Every instruction behind those that lead to it, branches backwards left out."""
        order, seen, todo = [], {head}, [(head, iter(self.after[head]))]
        while todo:
            at, targets = todo[-1]
            new = next((each for each in targets if each in loop and each not in seen), None)
            if new is None:
                order.append(at)
                todo.pop()
            else:
                seen.add(new)
                todo.append((new, iter(self.after[new])))
        return order[::-1]

    def _step(self, each: Instruction, state: State) -> State:
        rounds, pending, products, polled = state.rounds, state.pending, state.products, state.polled
        awaited = [name for name in pending if name in each.reads or name in each.writes
                   or each.is_a("DEPBAR") and name.startswith(ASYNC)]
        if any(pending[name] in self.polls for name in awaited) or each.at in self.polls and each.is_a("LDS"):
            pending, polled = {}, True
        elif awaited:
            loads = set(pending.values())
            if products < HIDING:
                rounds += (Round(each.at, len(loads), all(self.code[at].is_a("LD") for at in loads)),)
            pending = {}
        elif polled and each.is_a("BAR", "BSYNC", "WARPSYNC"):
            pending, polled = {}, False  # the rest of the block or warp has waited as well
        if each.is_load:
            names = [f"{ASYNC}{each.at}"] if each.is_a("LDGSTS") else each.writes
            pending, products = pending | dict.fromkeys(names, each.at), 0
        elif pending and each.is_a("HMMA"):
            products += 1
        unchanged = pending is state.pending and products == state.products and polled == state.polled
        return state if unchanged else State(rounds, pending, products, polled)

    def rolled(self, loop: set[int]) -> list[set[int]]:
        """Loops in a time loop that wait for loads of theirs in each pass, the outer ones: passes are not counted."""
        found = [inner for inner in self.loops if inner < loop and inner not in self.poll_loops and self.rounds(inner)]
        return [each for each in found if not any(each < other for other in found)]

    def problems(self) -> list[str]:
        found = [f"{each.op} at {each.at:#x}: local memory" for each in self.code.values() if each.is_a("LDL", "STL")]
        for loop in self.time_loops:
            rounds, rolled = [each for each in self.rounds(loop) if not each.remote], self.rolled(loop)
            waits, places = [f"{each.loads} at {each.at:#x}" for each in rounds], [f"{min(each):#x}" for each in rolled]
            if len(rounds) > MOST_ROUNDS and HELD.search(self.name):
                found.append(f"{len(rounds)} rounds of global loads a step, expected at most {MOST_ROUNDS}: "
                             f"{', '.join(waits)}")
            if len(rolled) > MOST_WAITING and HELD.search(self.name):
                found.append(f"{len(rolled)} loops wait for loads in each pass, expected at most {MOST_WAITING}: "
                             f"from {', '.join(places)}")
            if self.polls:  # exchanged values are STRONG
                found += [f"{self.code[at].op} at {at:#x}: a weight outside the streamed part" for at in sorted(loop)
                          if re.fullmatch(r"LDG\.E(\.LTC\w+)?\.128", self.code[at].op)]
        return found

    def summary(self) -> str:
        """A line for each time loop."""
        lines = []
        for loop in self.time_loops:
            weights, remote = sum(self.code[at].is_weight for at in loop), [each.remote for each in self.rounds(loop)]
            lines.append(f"{len(loop)} instructions, {self.products(loop)} HMMA, {weights} streamed weights, "
                         f"{self.grid_barriers} grid barriers, {remote.count(False)} rounds of global loads, "
                         f"{remote.count(True)} in the cluster, {len(self.rolled(loop))} waiting loops")
        return "\n  ".join(lines)


def tool(name: str) -> str:
    """A program of the triton package, which brings recent ones, or else of the CUDA toolkit."""
    triton = importlib.util.find_spec("triton")
    places = [str(Path(triton.origin).parent / "backends" / "nvidia" / "bin")] if triton else []
    path = os.pathsep.join([*places, os.environ.get("PATH", os.defpath), "/usr/local/cuda/bin"])
    if (found := shutil.which(name, path=path)) is None:
        raise FileNotFoundError(f"{name}: found neither in triton nor in the CUDA toolkit")
    return found


def disassembled(path: Path) -> str:
    """The machine code of a cubin or object file; a source file is compiled first."""
    with tempfile.TemporaryDirectory() as folder:
        if path.suffix == ".cu":
            subprocess.run([tool("nvcc"), *COMPILE, path, "-o", f"{folder}/cubin"], check=True)
            path = Path(folder, "cubin")
        command = [tool("cuobjdump"), "-arch", "sm_90a", "-sass", path]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout


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
            print(kernel.name, kernel.summary(), *(f"WRONG: {each}" for each in found), sep="\n  ")
    return wrong


if __name__ == "__main__":
    sys.exit(main())
