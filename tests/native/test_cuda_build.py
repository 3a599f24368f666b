"""nvcc for the CUDA kernels: with an old or broken nvcc, the module is built without kernels and names the reason."""

import re
from pathlib import Path

import pytest

from tests.support.files import program
from tests.support.native_program import CMAKE, NINJA, ROOT, configure

VERSION = 'if [ "$1" = --version ]; then echo "Cuda compilation tools, release {0}, V{0}.88"; exit 0; fi\n'
NEW = VERSION.format("12.4")
# The script of nvcc, and the reason, without the characters that a compile definition excludes.
FAKES = {
    "old": (VERSION.format("11.8") + "exit 0\n", "nvcc 12.1 or newer is needed, and NVCC is 11.8"),
    "refuses the host compiler": (
        NEW + "echo 'host_config.h:143:2: error: #error -- \"unsupported\"; GNU version!' >&2\nexit 1\n",
        "NVCC cannot compile a small kernel: host_config.h:143:2: error:  error --  unsupported , GNU version "),
    "no compiler at all": ("echo libc.so.6: cannot open shared object file\nexit 127\n",
                           "NVCC does not run: libc.so.6: cannot open shared object file"),
}
NOWHERE = [f"-DCMAKE_FIND_ROOT_PATH{rule}" for rule in ("=/nowhere", "_MODE_PROGRAM=ONLY")]
pytestmark = pytest.mark.skipif(not (CMAKE and NINJA), reason="needs cmake and ninja")


def reason(folder: Path, *arguments) -> str:
    """The reason from the check alone, without configuring the project."""
    (folder / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.18)\nproject(check LANGUAGES NONE)\n"
        f'include("{ROOT}/csrc/cuda/usable_nvcc.cmake")\nelmo_fast_usable_nvcc(why)\n'
        'message(STATUS "why: <${why}>")\n')
    return re.search("why: <(.*)>", configure(folder, folder / "build", *arguments))[1]


@pytest.mark.long
@pytest.mark.parametrize("script, expected", FAKES.values(), ids=FAKES)
def test_the_project_is_built_without_kernels_where_nvcc_is_unusable(script, expected, tmp_path):
    pytest.importorskip("pybind11")
    nvcc = program(tmp_path / "nvcc", script)
    output = configure(ROOT, tmp_path / "build", "-DELMO_FAST_CUDA=ON", f"-DELMO_FAST_NVCC={nvcc}",
                       *(f"-DELMO_FAST_HAS_{isa}=1" for isa in ("GENERIC", "AVX2", "AVX512", "AMX")))
    assert f"elmo-fast: no CUDA kernels: {expected.replace('NVCC', f'{tmp_path}/nvcc')}\n" in output
    definitions = (tmp_path / "build" / "build.ninja").read_text().replace(str(tmp_path), "")
    assert expected.replace("NVCC", "/nvcc") in definitions.replace("\\ ", " ")
    assert "ELMO_FAST_HAS_CUDA" not in definitions and "persistent" not in definitions


def test_a_missing_compiler_and_a_disabled_option_are_reasons(tmp_path):
    assert reason(tmp_path, "-DELMO_FAST_NVCC=ELMO_FAST_NVCC-NOTFOUND", "-DELMO_FAST_CUDA=ON", *NOWHERE) == (
        "nvcc was not found")
    assert "ELMO_FAST_CUDA=OFF" in reason(tmp_path, "-DELMO_FAST_CUDA=OFF")


def test_a_machine_without_a_driver_gets_kernels_only_on_request(tmp_path):
    nvcc = f"-DELMO_FAST_NVCC={program(tmp_path / 'nvcc', NEW)}"
    automatic = [nvcc, "-DELMO_FAST_CUDA=AUTO", *NOWHERE]
    assert "no NVIDIA driver (ELMO_FAST_CUDA=ON builds" in reason(tmp_path, *automatic)
    assert not reason(tmp_path, *automatic, f"-DELMO_FAST_NVIDIA_SMI={program(tmp_path / 'nvidia-smi', 'exit 0')}")
    assert not reason(tmp_path, nvcc, "-DELMO_FAST_CUDA=ON", *NOWHERE)
