"""C++ test programs, built once under build/ by the content of their sources, and other builds of the native module."""

import fcntl
import functools
import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).parents[2]
BUILD = ROOT / "build" / "native-programs"
COMPILER = shutil.which(os.environ.get("CXX", "g++"))
PATH = os.pathsep.join([sysconfig.get_path("scripts"), os.environ.get("PATH", os.defpath)])
# The name and the definitions of a build that runs every engine of x86 with AVX2; -O3 would compile four times as long.
ANY_PROCESSOR = ("any-processor", "-DCMAKE_BUILD_TYPE=Checked", "-DCMAKE_CXX_FLAGS=-O1",
                 f"-DCMAKE_PROJECT_elmo_fast_INCLUDE={ROOT}/tests/native/engines/any_processor.cmake")
CMAKE, NINJA = (shutil.which(name, path=PATH) for name in ("cmake", "ninja"))


def compiles(*flags: str) -> bool:
    """Whether an empty program can be compiled and linked with `flags`."""
    command = [COMPILER, *flags, "-x", "c++", "-", "-o", os.devnull]
    return COMPILER is not None and subprocess.run(command, input=b"int main() {}", capture_output=True).returncode == 0


def native_module(name: str, *definitions: str) -> Path:
    """elmo_fast._native without CUDA, built by CMake with more `definitions`."""
    return next(built(name, "_native", *definitions).glob("_native*"))


def built(name: str, target: str, *definitions: str) -> Path:
    """The folder where CMake has built a target with `definitions`; targets of one name share its objects."""
    folder = BUILD / name
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # the tests of another process may need the same build
        configure(ROOT, folder, f"-DCMAKE_CXX_COMPILER={COMPILER}", "-DELMO_FAST_CUDA=OFF", *definitions)
        printed(["nice", CMAKE, "--build", folder, "--target", target])  # on all cores, beside other tests
    return folder


def configure(source: Path, folder: Path, *definitions: str) -> str:
    """Configure the project in `source` for this Python, to be built in `folder`: CMake's output."""
    return printed([CMAKE, "-S", source, "-B", folder, "-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={NINJA}",
                    f"-DPython_EXECUTABLE={sys.executable}", *definitions])


def printed(command: list) -> str:
    """The output of a command, which must succeed."""
    run = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PATH": PATH})
    assert run.returncode == 0, (run.stdout + run.stderr)[-3000:]
    return run.stdout


def made(target: Path, command: list) -> Path:
    """`target`, built by `command` if it does not exist."""
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = target.with_name(f"{os.getpid()}-{target.name}")
        printed([*command, "-o", partial])
        os.replace(partial, target)
    return target


def digest(parts) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


@functools.cache
def headers(folder: Path) -> str:
    return digest([path.read_text() for path in sorted(folder.rglob("*.*h"))])
