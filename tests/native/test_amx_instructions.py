"""AMX's own instructions on a CPU without AMX: a signal handler carries out what the compiled engine asks for."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from tests.support.native_lstm import native

SCRIPT = Path(__file__).parent / "run_amx_trapped.sh"
NEEDED = ("avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_bf16", "fma")


def compiles_amx(folder: Path) -> bool:
    source = folder / "empty.cpp"
    source.write_text("int main() { return 0; }")
    compiler = shutil.which(os.environ.get("CXX", "g++"))
    return compiler is not None and subprocess.run(
        [compiler, "-mamx-bf16", "-mamx-tile", source, "-o", folder / "empty"], capture_output=True).returncode == 0


def test_the_tile_instructions_give_the_bits_of_the_emulation(tmp_path):
    features = native.cpu_features()
    if features["amx_tile"]:
        pytest.skip("this CPU has AMX: nothing would be trapped, and the tests of the engine run on it")
    missing = [name for name in NEEDED if not features[name]]
    if missing or not compiles_amx(tmp_path):
        pytest.skip(f"the engine's AMX code needs {missing or 'a compiler that knows AMX'}")
    run = subprocess.run(["bash", SCRIPT, tmp_path / "build"], capture_output=True, text=True)
    assert run.returncode == 0, (run.stdout + run.stderr)[-3000:]
    assert "precision 1: the same bits" in run.stdout and "precision 2: the same bits" in run.stdout
