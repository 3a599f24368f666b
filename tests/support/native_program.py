"""C++ test programs on the CPU engine, built once under build/ by the content of what they are compiled from."""

import functools
import hashlib
import os
import shutil
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).parents[2]
ENGINE = ROOT / "csrc" / "cpu"
BUILD = ROOT / "build" / "native-programs"
COMPILER = shutil.which(os.environ.get("CXX", "g++"))
_AVX2 = ("-mavx2", "-mfma")
_AVX512 = (*_AVX2, "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl")
ISA_FLAGS = {"engine_avx2": _AVX2, "engine_avx512": _AVX512, "engine_amx_emulated": _AVX512,
             "engine_amx": (*_AVX512, "-mavx512bf16", "-mamx-tile", "-mamx-bf16"),  # as in CMakeLists.txt
             "tile_trap": _AVX512}
FLAGS = ("-std=c++17", "-ffp-contract=off", f"-I{ROOT / 'csrc'}", "-DELMO_FAST_HAS_AVX2", "-DELMO_FAST_HAS_AVX512",
         "-DELMO_FAST_HAS_AMX")


def compiles(*flags: str) -> bool:
    """Whether an empty program can be compiled and linked with `flags`."""
    command = [COMPILER, *flags, "-x", "c++", "-", "-o", os.devnull]
    return COMPILER is not None and subprocess.run(command, input=b"int main() {}", capture_output=True).returncode == 0


def header_errors(header: Path) -> str:
    """What the compiler says of a file that includes nothing but `header`."""
    flags = [*FLAGS, *ISA_FLAGS["engine_amx"], "-Wall", "-Wextra", "-Werror", "-fsyntax-only"]
    run = subprocess.run([COMPILER, *flags, "-x", "c++", "-"], input=f'#include "{header}"\n', capture_output=True,
                         text=True)
    return run.stderr


def engine_program(name: str, sources: Sequence[Path], flags: Sequence[str], without: str = "") -> Path:
    """The CPU engine, but for the file named `without`, and `sources` as a program."""
    engine = [path for path in sorted(ENGINE.rglob("*.cpp")) if path.name != without]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        objects = list(pool.map(lambda path: _object(path, flags), [*engine, *sources]))
    program = BUILD / f"{name}-{digest(objects)}"
    return made(program, [COMPILER, *flags, *objects, "-lpthread"])


def _object(source: Path, flags: Sequence[str]) -> Path:
    command = [COMPILER, *FLAGS, *flags, *ISA_FLAGS.get(source.stem, ())]
    key = digest([command, source, source.read_text(), headers(ROOT / "csrc"), headers(ROOT / "tests" / "native")])
    return made(BUILD / f"{source.stem}-{key}.o", [*command, "-c", source])


def made(target: Path, command: list) -> Path:
    """`target`, which `command` makes where it is not there."""
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = target.with_name(f"{os.getpid()}-{target.name}")
        run = subprocess.run([*command, "-o", partial], capture_output=True, text=True)
        assert run.returncode == 0, run.stderr[-3000:]
        os.replace(partial, target)
    return target


def digest(parts) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


@functools.cache
def headers(folder: Path) -> str:
    return digest([path.read_text() for path in sorted(folder.rglob("*.*h"))])
