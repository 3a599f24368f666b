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
_AMX = (*_AVX512, "-mavx512bf16", "-mamx-tile", "-mamx-bf16")
# Compilations of engine_isa.cpp as in CMakeLists.txt: the function and the type it is made of, and flags.
ENGINES = {("generic", "VEC=GenericVec"): (), ("avx2", "VEC=Avx2Vec"): _AVX2, ("avx512", "VEC=Avx512Vec"): _AVX512,
           ("amx_emulated", "TILES=EmulatedTiles"): _AVX512, ("amx", "TILES=Tiles"): _AMX}
FLAGS = ("-std=c++17", "-ffp-contract=off", f"-I{ROOT / 'csrc'}", "-DELMO_FAST_HAS_AVX2", "-DELMO_FAST_HAS_AVX512",
         "-DELMO_FAST_HAS_AMX")


def compiles(*flags: str) -> bool:
    """Whether an empty program can be compiled and linked with `flags`."""
    command = [COMPILER, *flags, "-x", "c++", "-", "-o", os.devnull]
    return COMPILER is not None and subprocess.run(command, input=b"int main() {}", capture_output=True).returncode == 0


def header_errors(header: Path) -> str:
    """What the compiler says of a file that includes nothing but `header`."""
    flags = [*FLAGS, *_AMX, "-Wall", "-Wextra", "-Werror", "-fsyntax-only"]
    run = subprocess.run([COMPILER, *flags, "-x", "c++", "-"], input=f'#include "{header}"\n', capture_output=True,
                         text=True)
    return run.stderr


def engine_program(name: str, sources: Sequence[Path], flags: Sequence[str], without: str = "") -> Path:
    """The CPU engine, but for the file named `without`, and `sources` as a program."""
    engine = [path for path in sorted(ENGINE.rglob("*.cpp")) if path.name not in (without, "engine_isa.cpp")]
    jobs = [(path, ()) for path in [*engine, *sources]]
    jobs += [(ENGINE / "engine_isa.cpp", (f"-DELMO_FAST_ENGINE={name}_engine", f"-DELMO_FAST_{made_of}", *isa_flags))
             for (name, made_of), isa_flags in ENGINES.items()]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        objects = list(pool.map(lambda job: _object(job[0], [*flags, *job[1]]), jobs))
    program = BUILD / f"{name}-{digest(objects)}"
    return made(program, [COMPILER, *flags, *objects, "-lpthread"])


def _object(source: Path, flags: Sequence[str]) -> Path:
    command = [COMPILER, *FLAGS, *flags]
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
