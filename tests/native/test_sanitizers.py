"""The CPU engine under AddressSanitizer, UndefinedBehaviorSanitizer and ThreadSanitizer."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.support.native_program import compiles, engine_program

SOURCE = Path(__file__).parent / "sanitize.cpp"
SANITIZERS = {"address": ("-fsanitize=address,undefined", "-fno-sanitize-recover=all"),
              "thread": ("-fsanitize=thread",)}


@pytest.mark.long
@pytest.mark.skipif(os.environ.get("ELMO_FAST_NO_NATIVE") == "1", reason="ELMO_FAST_NO_NATIVE=1 is set")
@pytest.mark.parametrize("name", SANITIZERS)
def test_the_engine_is_clean(name):
    flags = SANITIZERS[name]
    if not compiles(*flags):
        pytest.skip(f"no g++ with {flags[0]}")
    program = engine_program(f"sanitize-{name}", [SOURCE], ("-O1", "-g", *flags))
    for isa in ("generic", "avx2", "avx512", "amx", "amx-emulated"):
        environment = {**os.environ, "ELMO_FAST_CPU_ISA": isa, "TSAN_OPTIONS": "halt_on_error=1"}
        run = subprocess.run([program, *(["--no-fork"] if name == "thread" else [])], env=environment,
                             capture_output=True, text=True)
        assert run.returncode == 0, (isa, (run.stdout + run.stderr)[-3000:])
        assert "precision 0 on " in run.stdout
