"""The native module: it exists, detects the CPU, respects the cap, and does not link libtorch."""

import os
import platform
import re
import runpy
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.support.files import program, python
from tests.support.native_program import CMAKE, COMPILER, NINJA, ROOT, printed

ISAS = ["generic", "neon", "neon-dotprod", "avx2", "avx-vnni", "avx512", "avx512-vnni", "avx512-bf16", "amx"]
KERNELS_NAMES = {"sse3": "pni", "sse4.1": "sse4_1", "sse4.2": "sse4_2", "lzcnt": "abm"}  # in /proc/cpuinfo


@pytest.fixture(scope="module")
def native():
    if os.environ.get("ELMO_FAST_NO_NATIVE") == "1":
        pytest.skip("ELMO_FAST_NO_NATIVE=1")
    try:
        from elmo_fast import _native
    except ImportError as error:
        pytest.fail(f"expected the native module: run `make native`, or set ELMO_FAST_NO_NATIVE=1 ({error})")
    return _native


def best_isa(native, cap):
    """The last engine of the build, up to `cap`, whose features the CPU has."""
    features, cpus = native.cpu_features(), Path("/proc/cpuinfo")
    runs = {isa for isa, needed in native.engines().items() if all(features[name] for name in needed if needed[name])}
    if cap != "avx512-bf16" and not (cpus.exists() and "AuthenticAMD" in cpus.read_text()):
        runs.discard("avx512-bf16")  # other processors run it only on request
    return [isa for isa in ISAS[:ISAS.index(cap) + 1] if isa in runs and (isa != "amx" or native.amx_permitted())][-1]


def test_features_are_named_booleans_and_agree_with_the_kernel(native):
    features, flags, first = native.cpu_features(), [], native.amx_permitted()
    assert all(needed.keys() == features.keys() for needed in native.engines().values())
    assert first == native.amx_permitted() and (not first or features["amx_tile"])
    assert all(type(present) is bool for present in features.values())
    if platform.machine() in ("x86_64", "i686", "AMD64", "aarch64"):
        if not Path("/proc/cpuinfo").exists():
            pytest.skip("needs /proc/cpuinfo")
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        flags = next(line for line in lines if line.startswith(("flags", "Features"))).split()
    for name, present in features.items():
        listed = KERNELS_NAMES.get(name, name) in flags
        # Kernels before 5.16 list AMX without saving its registers.
        assert present == listed or (name.startswith("amx") and not present), name


@pytest.mark.parametrize("cap", [None, "", *ISAS, "sse9"])
def test_a_cap_lowers_the_isa_and_never_raises_it(native, monkeypatch, cap):
    monkeypatch.delenv("ELMO_FAST_CPU_ISA", raising=False)
    if cap is not None:
        monkeypatch.setenv("ELMO_FAST_CPU_ISA", cap)
    if cap == "sse9":
        with pytest.raises(ValueError, match=f"^ELMO_FAST_CPU_ISA: expected one of {', '.join(ISAS)}, got 'sse9'$"):
            native.cpu_isa()
    else:
        assert native.cpu_isa() == best_isa(native, cap or "amx")


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
    """A build without isolation uses the environment's setuptools: Python 3.11 brings version 65."""
    code = "import runpy, setuptools\nsetuptools.__version__ = '65.5.0'\nrunpy.run_path('setup.py')"
    run = python("-c", code, status=1)
    assert run.stdout == ""
    assert run.stderr == "elmo-fast: expected setuptools 77 or newer, got 65.5.0: pip install -U setuptools\n"


def test_the_readme_of_a_release_links_to_the_repository_that_builds_it(monkeypatch):
    setuptools, settings = pytest.importorskip("setuptools", "77"), {}
    for name, value in {"SERVER_URL": "https://host", "REPOSITORY": "owner/name", "SHA": "abc"}.items():
        monkeypatch.setenv(f"GITHUB_{name}", value)
    monkeypatch.setattr(setuptools, "setup", lambda **values: settings.update(values))
    runpy.run_path(ROOT / "setup.py")
    links = [link.split("#")[0] for link in re.findall(r"\]\((.*?)\)", settings["long_description"])]
    assert all(not link or link.startswith("https://") for link in links)
    paths = [link.split("/abc/")[1] for link in links if link.startswith("https://host/owner/name/")]
    assert all((ROOT / path).is_file() for path in paths) and "docs/pictures/compare.png" in paths


def test_without_a_compiler_the_build_continues_and_records_why(tmp_path, monkeypatch):
    pytest.importorskip("setuptools", "77")
    monkeypatch.delenv("ELMO_FAST_NO_NATIVE", raising=False)
    run = python("setup.py", "-q", "build_py", "--build-lib", tmp_path, CXX="/nowhere/c++")
    record = (tmp_path / "elmo_fast" / "_build_info.py").read_text()
    assert "no C++ compiler was found during installation (looked for /nowhere/c++)" in record
    assert "installing without the native module" in run.stderr
    assert (tmp_path / "elmo_fast" / "kernels" / "__init__.py").exists() and not (tmp_path / "kernels").exists()


@pytest.mark.skipif(not shutil.which("make"), reason="needs make")
def test_make_compiles_once_in_a_folder_with_spaces(tmp_path):
    folder = tmp_path / "naïve folder"
    (folder / "csrc").mkdir(parents=True)
    for name in ("Makefile", "pyproject.toml", "setup.py", "CMakeLists.txt"):
        shutil.copy(ROOT / name, folder)
    assert printed(["make", "-n", "-C", folder, "embed"]).count("--no-build-isolation") == 1


@pytest.mark.long
@pytest.mark.skipif(not (COMPILER and CMAKE and NINJA), reason="needs g++, cmake and ninja")
def test_an_engine_that_the_compiler_cannot_build_is_omitted(tmp_path):
    """The compiler accepts the flags but fails, as with an assembler older than the compiler. Folders have spaces."""
    folder = tmp_path / "naïve folder"
    folder.mkdir()
    for name in ("setup.py", "CMakeLists.txt", "pyproject.toml", "README.md", "csrc", "elmo_fast", "kernels"):
        (shutil.copytree if (ROOT / name).is_dir() else shutil.copy)(ROOT / name, folder / name)
    (folder / "pybind11").symlink_to(find_spec("pybind11").submodule_search_locations[0])
    works = f'exec {COMPILER} "$@"\n'
    fails = f'case "$*" in *-mamx-tile*engine_isa*) echo no such instruction; exit 1;; esac\n{works}'

    # Without optimization, and without the levels between.
    settings = "-DELMO_FAST_CUDA=OFF -DCMAKE_BUILD_TYPE=Checked " + " ".join(
        f"-DELMO_FAST_HAS_{engine}=OFF" for engine in ("AVX2", "AVX_VNNI", "AVX512_VNNI", "AVX512_BF16"))

    def build(script):
        run = python(folder / "setup.py", "-q", "build_ext", "--build-lib", tmp_path / "out", timeout=None,
                     CXX=program(tmp_path / "c++", script), CMAKE_ARGS=settings, PYTHONPATH=folder,
                     CCACHE_DIR="/dev/null")  # as where the home directory is read-only
        code = "import _native; print(*_native.engines())"
        return run.stderr, python("-c", code, PYTHONPATH=tmp_path / "out" / "elmo_fast").stdout.split()

    left_out = "installing without the engines of AMX: this compiler failed with them"
    errors, built = build(fails)
    assert left_out in errors and built == ["generic", "avx512"]
    assert list((folder / "build").iterdir())  # not in the checkout
    errors, built = build(works)
    assert left_out not in errors and built == ["generic", "avx512", "amx"]
