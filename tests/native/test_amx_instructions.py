"""AMX's own instructions on a CPU without AMX: a signal handler carries out what the compiled engine asks for."""

import subprocess
from pathlib import Path

import pytest

from tests.support.engines import native, needs_native
from tests.support.native_program import compiles, engine_program

SOURCES = [Path(__file__).with_name(name) for name in ("amx_trapped.cpp", "tile_trap.cpp")]
NEEDED = ("avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_bf16", "fma")


@needs_native
@pytest.mark.long
def test_the_tile_instructions_give_the_bits_of_the_emulation():
    features = native.cpu_features()
    if features["amx_tile"]:
        pytest.skip("this CPU has AMX: nothing would be trapped, and the tests of the engine run on it")
    missing = [name for name in NEEDED if not features[name]]
    if missing or not compiles("-mamx-tile", "-mamx-bf16"):
        pytest.skip(f"the engine's AMX code needs {missing or 'a compiler that has AMX'}")
    program = engine_program("amx_trapped", SOURCES, ["-O2"], without="isa.cpp")
    run = subprocess.run([program], capture_output=True, text=True)
    assert run.returncode == 0, (run.stdout + run.stderr)[-3000:]
    assert "precision 1: the same bits" in run.stdout and "precision 2: the same bits" in run.stdout
