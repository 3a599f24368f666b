"""The native module: there, right about the CPU, obedient to its cap, and free of libtorch."""

import os
import platform
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.files import python
from tests.support.native_program import COMPILER, ROOT, header_errors

HEADERS = sorted([*(ROOT / "csrc").glob("*.h"), *(ROOT / "csrc" / "cpu").rglob("*.h")])
ISAS = ["generic", "avx2", "avx512", "amx"]
NEEDS = {"avx2": {"avx2", "fma"}, "avx512": {"avx512f", "avx512bw", "avx512dq", "avx512vl"},
         "amx": {"avx512_bf16", "amx_tile", "amx_bf16"}}


@pytest.fixture(scope="module")
def native():
    if os.environ.get("ELMO_FAST_NO_NATIVE") == "1":
        pytest.skip("ELMO_FAST_NO_NATIVE=1")
    try:
        from elmo_fast import _native
    except ImportError as error:
        pytest.fail(f"expected the native module: run `make native`, or set ELMO_FAST_NO_NATIVE=1 ({error})")
    return _native


def best_isa(native):
    features = {name for name, present in native.cpu_features().items() if present}
    best = "generic"
    for isa in ISAS[1:]:
        if not NEEDS[isa] <= features or (isa == "amx" and not native.amx_permitted()):
            break
        best = isa
    return best


def test_features_are_named_booleans_and_agree_with_the_kernel(native):
    features, flags, first = native.cpu_features(), [], native.amx_permitted()
    assert {"sse4.2", "f16c"}.union(*NEEDS.values()) == features.keys()
    assert first == native.amx_permitted() and (not first or features["amx_tile"])
    assert all(type(present) is bool for present in features.values())
    if platform.machine() in ("x86_64", "i686", "AMD64"):
        if not Path("/proc/cpuinfo").exists():
            pytest.skip("needs /proc/cpuinfo")
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        flags = next(line for line in lines if line.startswith("flags")).split()
    for name, present in features.items():
        listed = name.replace("sse4.2", "sse4_2") in flags
        # Kernels before 5.16 list AMX without keeping its registers.
        assert present == listed or (name.startswith("amx") and not present), name


@pytest.mark.parametrize("cap", [None, "", *ISAS, "sse9"])
def test_a_cap_lowers_the_isa_and_never_raises_it(native, monkeypatch, cap):
    """`cpu_isa()` of a fresh process in which ELMO_FAST_CPU_ISA is `cap`."""
    monkeypatch.delenv("ELMO_FAST_CPU_ISA", raising=False)
    capped = {} if cap is None else {"ELMO_FAST_CPU_ISA": cap}
    run = python("-c", "from elmo_fast import _native; print(_native.cpu_isa())", status=int(cap == "sse9"), **capped)
    if cap == "sse9":
        expected = "expected one of generic, avx2, avx512, amx, amx-emulated, got 'sse9'"
        assert f"ValueError: ELMO_FAST_CPU_ISA: {expected}" in run.stderr
    else:
        assert run.stdout.strip() == min(cap or "amx", best_isa(native), key=ISAS.index)


def test_no_pytorch_library_is_linked(native):
    if not shutil.which("ldd"):
        pytest.skip("needs ldd")
    linked = subprocess.run(["ldd", native.__file__], capture_output=True, text=True, check=True).stdout
    assert "libstdc++" in linked
    assert "libtorch" not in linked and "libc10" not in linked


def test_the_module_says_why_it_has_no_cuda_kernels(native):
    assert (native.cuda_skipped is None) == native.has_cuda
    assert native.has_cuda or native.cuda_skipped


def test_an_old_setuptools_is_named_in_a_line():
    """Without isolation a build takes the environment's own: Python 3.11 brings version 65."""
    code = "import runpy, setuptools\nsetuptools.__version__ = '65.5.0'\nrunpy.run_path('setup.py')"
    run = python("-c", code, status=1)
    assert run.stdout == ""
    assert run.stderr == "elmo-fast: expected setuptools 77 or newer, got 65.5.0: pip install -U setuptools\n"


def test_without_a_compiler_the_build_goes_on_and_records_why(tmp_path, monkeypatch):
    pytest.importorskip("setuptools", "77")
    monkeypatch.delenv("ELMO_FAST_NO_NATIVE", raising=False)
    run = python("setup.py", "-q", "build_py", "--build-lib", tmp_path, CXX="/nowhere/c++")
    record = (tmp_path / "elmo_fast" / "_build_info.py").read_text()
    assert "no C++ compiler was found during installation (looked for /nowhere/c++)" in record
    assert "installing without the native module" in run.stderr
    assert (tmp_path / "elmo_fast" / "kernels" / "__init__.py").exists() and not (tmp_path / "kernels").exists()


@pytest.mark.long
@pytest.mark.skipif(COMPILER is None, reason="needs g++")
@pytest.mark.parametrize("header", HEADERS, ids=lambda path: path.relative_to(ROOT / "csrc").as_posix())
def test_a_header_stands_on_its_own(header):
    assert not header_errors(header)
