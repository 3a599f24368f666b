"""The CPU engine as programs: under sanitizers, and AMX's own instructions on a CPU without AMX, where a signal handler
carries out what the compiled engine asks for."""

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.support.engines import native, needs_native
from tests.support.native_program import compiles, engine_program

pytestmark = [pytest.mark.long, needs_native]
SOURCE = Path(__file__).parent / "sanitize.cpp"
SANITIZERS = {"address": ("-fsanitize=address,undefined", "-fno-sanitize-recover=all"),
              "thread": ("-fsanitize=thread",)}
NEEDED = ("avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_bf16", "fma")


def digests(program, isa, *arguments):
    """Of each precision, from a clean run."""
    environment = {**os.environ, "ELMO_FAST_CPU_ISA": isa, "TSAN_OPTIONS": "halt_on_error=1"}
    run = subprocess.run([program, *arguments], env=environment, capture_output=True, text=True)
    assert run.returncode == 0, (isa, (run.stdout + run.stderr)[-3000:])
    return re.findall(r"precision \d on [\w-]+: clean, (\w+)", run.stdout)


@pytest.mark.parametrize("name", SANITIZERS)
def test_the_engine_is_clean(name):
    flags = SANITIZERS[name]
    if not compiles(*flags):
        pytest.skip(f"no g++ with {flags[0]}")
    program = engine_program(f"sanitize-{name}", [SOURCE], ("-O1", "-g", *flags))
    for isa in ("generic", "avx2", "avx512", "amx", "amx-emulated"):
        assert digests(program, isa, *(["--no-fork"] if name == "thread" else []))


def test_the_tile_instructions_give_the_bits_of_the_emulation():
    features = native.cpu_features()
    if features["amx_tile"]:
        pytest.skip("this CPU has AMX: nothing would be trapped, and the tests of the engine run on it")
    missing = [name for name in NEEDED if not features[name]]
    if missing or not compiles("-mamx-tile", "-mamx-bf16"):
        pytest.skip(f"the engine's AMX code needs {missing or 'a compiler that has AMX'}")
    program = engine_program("trapped", [SOURCE], ["-O2", "-DELMO_FAST_TRAPPED"], without="isa.cpp")
    trapped, emulated = (digests(program, isa) for isa in ("amx", "amx-emulated"))
    assert trapped == emulated and len(trapped) == 3
