"""Which nvcc builds the CUDA kernels: an old or broken one is a reason, and the rest of the module is built."""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PATH = os.pathsep.join([sysconfig.get_path("scripts"), os.environ.get("PATH", os.defpath)])
VERSION = 'if [ "$1" = --version ]; then echo "Cuda compilation tools, release {}, V{}.88"; exit 0; fi\n'
FAKES = {
    "old": (VERSION.format("11.8", "11.8") + "exit 0\n", "nvcc 12.0 or newer is needed, and NVCC is 11.8"),
    "refuses the host compiler": (
        VERSION.format("12.4", "12.4")
        + "echo 'host_config.h:143:2: error: #error -- \"unsupported\"; GNU version!' >&2\nexit 1\n",
        "NVCC cannot compile a small kernel: host_config.h:143:2: error:  error --  unsupported , GNU version "),
    "crashes without a word": (VERSION.format("12.4", "12.4") + "kill -9 $$\n",
                               "NVCC cannot compile a small kernel: it printed nothing"),
    "no compiler at all": ("echo libc.so.6: cannot open shared object file\nexit 127\n",
                           "NVCC does not run: libc.so.6: cannot open shared object file"),
    "says nothing of its version": ("exit 0\n", "NVCC --version names no release"),
}


@pytest.fixture(scope="module")
def cmake():
    if not shutil.which("cmake", path=PATH) or not shutil.which("ninja", path=PATH):
        pytest.skip("needs cmake and ninja")
    return shutil.which("cmake", path=PATH)


def fake(folder: Path, script: str) -> Path:
    nvcc = folder / "nvcc"
    nvcc.write_text("#!/bin/sh\n" + script)
    nvcc.chmod(0o755)
    return nvcc


def configure(cmake: str, source: Path, build: Path, *arguments) -> str:
    """What CMake prints."""
    command = [cmake, "-S", source, "-B", build, "-G", "Ninja", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PATH": PATH})
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def reason(cmake: str, folder: Path, *arguments) -> str:
    """What the check says by itself, without configuring the project."""
    (folder / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.18)\nproject(check LANGUAGES NONE)\noption(ELMO_FAST_CUDA \"\" ON)\n"
        f'include("{ROOT}/csrc/cuda/usable_nvcc.cmake")\nelmo_fast_usable_nvcc(why)\n'
        'message(STATUS "why: <${why}>")\n')
    ninja = f"-DCMAKE_MAKE_PROGRAM={shutil.which('ninja', path=PATH)}"
    return re.search("why: <(.*)>", configure(cmake, folder, folder / "build", ninja, *arguments))[1]


@pytest.mark.parametrize("script, expected", FAKES.values(), ids=FAKES)
def test_a_compiler_that_will_not_do_is_a_reason(script, expected, cmake, tmp_path):
    nvcc = fake(tmp_path, script)
    assert reason(cmake, tmp_path, f"-DELMO_FAST_NVCC={nvcc}") == expected.replace("NVCC", str(nvcc))


def test_no_compiler_and_no_wish_are_reasons(cmake, tmp_path):
    assert reason(cmake, tmp_path, "-DELMO_FAST_NVCC=ELMO_FAST_NVCC-NOTFOUND",
                  "-DCMAKE_FIND_ROOT_PATH=/nowhere", "-DCMAKE_FIND_ROOT_PATH_MODE_PROGRAM=ONLY") == "nvcc was not found"
    assert "ELMO_FAST_CUDA=OFF" in reason(cmake, tmp_path, "-DELMO_FAST_CUDA=OFF")


def test_a_compiler_that_will_do_is_tried_once(cmake, tmp_path):
    """With the flags of the kernels and of the environment."""
    nvcc = fake(tmp_path, VERSION.format("12.4", "12.4") + f'echo "$@" >>{tmp_path}/calls\n')
    for _ in range(2):
        assert not reason(cmake, tmp_path, f"-DELMO_FAST_NVCC={nvcc}", "-DCMAKE_CUDA_FLAGS=-allow-unsupported-compiler")
    (call,) = (tmp_path / "calls").read_text().splitlines()
    assert "-allow-unsupported-compiler" in call and "arch=compute_90a,code=sm_90a" in call and "trial.cu" in call


def test_the_project_configures_with_a_broken_compiler(cmake, tmp_path):
    pytest.importorskip("pybind11")
    nvcc = fake(tmp_path, FAKES["refuses the host compiler"][0])
    said = configure(cmake, ROOT, tmp_path / "build", f"-DPython_EXECUTABLE={sys.executable}",
                     f"-DELMO_FAST_NVCC={nvcc}", *(f"-DELMO_FAST_HAS_{isa}=1" for isa in ("AVX2", "AVX512", "AMX")))
    expected = FAKES["refuses the host compiler"][1].replace("NVCC", str(nvcc))
    assert f"elmo-fast: no CUDA kernels: {expected}" in said
    definitions = (tmp_path / "build" / "build.ninja").read_text().replace(str(tmp_path), "")
    assert expected.replace(str(tmp_path), "") in definitions.replace("\\ ", " ")
    assert "ELMO_FAST_HAS_CUDA" not in definitions and "persistent" not in definitions


@pytest.mark.skipif(os.environ.get("ELMO_FAST_NO_NATIVE") == "1", reason="ELMO_FAST_NO_NATIVE=1")
def test_the_module_says_why_it_has_no_cuda_kernels():
    from elmo_fast import _native

    assert (_native.cuda_skipped is None) == _native.has_cuda
    assert _native.has_cuda or _native.cuda_skipped
