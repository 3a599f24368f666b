"""Tests on lower levels of this processor, and tests of the ops on other builds of the native module: with sanitizers,
and with emulated AVX-512 and AMX (tests/native/engines/any_processor.cmake)."""

import os
import subprocess

import pytest

from tests.support.engines import ISAS, native, needs_native
from tests.support.files import python
from tests.support.native_program import ANY_PROCESSOR, COMPILER, NINJA, ROOT, compiles, native_module

pytestmark = [pytest.mark.long, needs_native, pytest.mark.skipif(not (COMPILER and NINJA), reason="needs g++, ninja")]
HERE = [engine for engine, needed in (native.engines() if native else {}).items()
        if all(native.cpu_features()[name] for name in needed if needed[name])]
SANITIZERS = {  # flags, library, options, engines, tests; threads do not depend on the instruction set
    "address": ("-fsanitize=address,undefined -fno-sanitize-recover=all", "libasan.so", "detect_leaks=0", HERE, [
        "tests/ops/test_projected_lstm.py::test_agrees_with_float64",
        "tests/ops/test_gradients.py::test_any_number_of_threads_gives_the_same_bits",
        "tests/ops/test_char_cnn.py", "tests/ops/test_linear.py", "tests/ops/test_native_cpu.py"]),
    "thread": ("-fsanitize=thread", "libtsan.so", "halt_on_error=1 ignore_noninstrumented_modules=1", ["generic"], [
        "tests/ops/test_projected_lstm.py::test_same_bits_in_any_batch_for_threads_and_chunks",
        "tests/ops/test_gradients.py::test_any_number_of_threads_gives_the_same_bits",
        "tests/ops/test_linear.py::test_agrees_with_float64",
        "tests/ops/test_threads.py::test_every_choice_of_threads_gives_the_same_bits[own]"])}
IN_PLACE = """
import importlib.util
import sys

spec = importlib.util.spec_from_file_location("elmo_fast._native", {!r})
sys.modules["elmo_fast._native"] = module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
module.use_openmp_threads = lambda: False  # their synchronization is out of a sanitizer's sight
sys.modules["triton"] = None  # its kernels, interpreted as PTX, have no part of the module
"""


def run_tests(module, tests, folder, **environment):
    """Run tests in a process where, as in its children, elmo_fast._native is `module`."""
    (folder / "sitecustomize.py").write_text(IN_PLACE.format(str(module)))
    return python("-m", "pytest", "-xqs", "-p", "no:cacheprovider", *tests, timeout=None,
                  PYTHONPATH=f"{folder}{os.pathsep}{ROOT}", OMP_NUM_THREADS="2", **environment).stdout


@pytest.mark.parametrize("name", SANITIZERS)
def test_the_engine_passes_the_sanitizers(name, tmp_path):
    flags, library, options, engines, tests = SANITIZERS[name]
    if not compiles(*flags.split()):
        pytest.skip(f"no g++ with {flags}")
    left_out = [f"-DELMO_FAST_HAS_{engine.upper().replace('-', '_')}=OFF" for engine in native.engines()
                if engine not in engines]
    module = native_module(name, f"-DCMAKE_CXX_FLAGS=-O1 -g1 {flags}", "-DCMAKE_BUILD_TYPE=Checked", *left_out)
    # libstdc++ too: a sanitizer looks up its exception functions when the process starts
    preloaded = [subprocess.run([COMPILER, f"-print-file-name={name}"], capture_output=True, text=True).stdout.strip()
                 for name in (library, "libstdc++.so")]
    run_tests(module, tests, tmp_path, LD_PRELOAD=" ".join(preloaded), ASAN_OPTIONS=options, TSAN_OPTIONS=options)


@pytest.mark.parametrize("level", ISAS[:-1])
def test_numbers_on_a_lower_level(level):
    """Whole models, as tests of ops run on every level by themselves."""
    tests = ["tests/engine/test_model.py", "tests/model/test_fixtures.py", "tests/embed/test_precisions.py"]
    python("-m", "pytest", "-xq", "-p", "no:cacheprovider", *tests, timeout=None, ELMO_FAST_CPU_ISA=level)


def test_the_ops_on_the_engines_of_a_newer_processor(tmp_path):
    if missing := [name for name in ("avx2", "fma", "f16c") if not native.cpu_features()[name]]:
        pytest.skip(f"what stands in for AVX-512 needs {missing}")
    tests = "tests/ops/test_projected_lstm.py", "tests/ops/test_linear.py", "-k"
    chosen = "(one_by_one or bytes or infinit) and (amx or avx512)"
    text = run_tests(native_module(*ANY_PROCESSOR), [*tests, chosen], tmp_path)
    assert "passed" in text and "skipped" not in text
