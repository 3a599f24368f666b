"""Reads the machine code of the CUDA kernels' loops: python -m benchmarks.gpu.read_sass [--object FILE ...].

Fails unless every time loop multiplies on tensor cores and nothing touches local memory; and, in the persistent
kernels, unless no weight is loaded from global memory after the loop began. There, exchanged values are loaded past
L1 (STRONG) and input products a word at a time, so a plain 16-byte load can only be a weight. Needs nvcc (or object
files) and cuobjdump: one of the CUDA toolkit's or triton's own.
"""

import argparse
import importlib.util
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCES = sorted((ROOT / "csrc" / "cuda").glob("*.cu"))
COMPILE = ["-std=c++17", "-O3", "-fmad=false", "-gencode", "arch=compute_90a,code=sm_90a", "-c"]
INSTRUCTION = re.compile(r"^\s*/\*([0-9a-f]{4,})\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_.]*)([^;]*);", re.M)
FUNCTION = re.compile(r"Function\s*:\s*(\S+)\n(.*?)(?=\n\s*Function\s*:|\Z)", re.S)
KINDS = ("persistent_kernel", "step_kernel", "replay_kernel", "sum_kernel")


def tool(name: str) -> str:
    """A program of the CUDA toolkit, or triton's copy of it."""
    found = shutil.which(name) or shutil.which(f"/usr/local/cuda/bin/{name}")
    spec = importlib.util.find_spec("triton")
    if found is None and spec is not None:
        found = shutil.which(str(Path(spec.origin).parent / "backends" / "nvidia" / "bin" / name))
    if found is None:
        raise SystemExit(f"{name}: found neither in the CUDA toolkit nor in triton")
    return found


def functions(sass: str) -> dict[str, list[tuple[int, str, str]]]:
    """Kernel name -> its instructions: address, operation, operands."""
    return {name: [(int(at, 16), operation, rest) for at, operation, rest in INSTRUCTION.findall(body)]
            for name, body in FUNCTION.findall(sass)}


def loops(code: list[tuple[int, str, str]]) -> list[tuple[int, int]]:
    """Address ranges that a branch jumps back over, the widest first."""
    found = set()
    for at, operation, rest in code:
        target = re.search(r"0x([0-9a-f]+)\s*$", rest) if operation.startswith("BRA") else None
        if target and int(target[1], 16) < at:
            found.add((int(target[1], 16), at))
    return sorted(found, key=lambda each: each[0] - each[1])


def time_loop(code: list[tuple[int, str, str]]) -> list[tuple[int, str, str]]:
    """The widest loop with a tensor-core instruction in it; empty when there is none."""
    for begin, end in loops(code):
        inside = [each for each in code if begin <= each[0] <= end]
        if any("MMA" in operation for _, operation, _ in inside):
            return inside
    return []


def problems(name: str, code: list[tuple[int, str, str]]) -> list[str]:
    """What is wrong with one kernel."""
    kind = next((each for each in KINDS if f"{len(each)}{each}" in name), None)  # as C++ mangles it
    found = [f"{operation} at {at:#x}" for at, operation, _ in code if operation.startswith(("LDL", "STL"))]
    if kind is None or kind == "sum_kernel":
        return found
    inside = time_loop(code)
    if not inside:
        found.append("no loop with tensor-core instructions")
    if kind == "persistent_kernel":
        begin = inside[0][0] if inside else 0
        found += [f"a weight is loaded from global memory: {operation} at {at:#x}" for at, operation, _ in code
                  if at >= begin and operation.startswith(("LDG", "LD.")) and ".128" in operation
                  and "STRONG" not in operation]
        if not any(operation.startswith("LDS.128") for _, operation, _ in inside):
            found.append("no weight is loaded from shared memory")
    return found


def summary(code: list[tuple[int, str, str]]) -> str:
    inside = [operation for _, operation, _ in time_loop(code)]
    count = {key: sum(each.startswith(key) for each in inside) for key in ("HMMA", "LDS", "LDG", "BAR")}
    return f"{len(code)} instructions, {len(inside)} in the loop: " + ", ".join(f"{n} {key}" for key, n in count.items())


def objects(folder: Path) -> list[Path]:
    made = []
    for source in SOURCES:
        made.append(folder / f"{source.stem}.o")
        subprocess.run([tool("nvcc"), *COMPILE, source, "-o", made[-1]], check=True)
    return made


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--object", type=Path, nargs="*", help="compiled kernels instead of compiling them")
    given = parser.parse_args().object
    failed = False
    with tempfile.TemporaryDirectory() as folder:
        for path in given or objects(Path(folder)):
            command = [tool("cuobjdump"), "-arch", "sm_90a", "-sass", path]
            dump = subprocess.run(command, capture_output=True, text=True, check=True).stdout
            for name, code in functions(dump).items():
                wrong = problems(name, code)
                failed = failed or bool(wrong)
                print(f"{name}\n  {summary(code)}", *(f"  WRONG: {each}" for each in wrong), sep="\n")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
