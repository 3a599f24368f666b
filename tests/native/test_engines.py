"""check_engines (tests/native/engines): every op on every engine against the generic engine, without Python.

The quick tier runs on this processor. The long tier adds older and AArch64 processors under qemu; emulated AVX-512 and
AMX, so that every engine runs on every machine with AVX2; and builds by other compilers and for other systems.
"""

import functools
import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.engines import native, needs_native
from tests.support.files import python
from tests.support.native_program import ANY_PROCESSOR, CMAKE, COMPILER, NINJA, ROOT, built, printed

WITHOUT_MODULE = "-DELMO_FAST_MODULE=OFF"
X86 = platform.machine() in ("x86_64", "AMD64")
LEVELS = ("generic", "avx2", "avx-vnni", "avx512", "avx512-vnni", "avx512-bf16", "amx")
PROCESSORS = {"core2duo": "generic", "Nehalem": "generic", "IvyBridge": "generic", "Haswell,-fma": "generic",
              "Haswell": "avx2", "EPYC-Rome": "avx2"}  # of qemu, without AVX-512, with the best level


needs_qemu = pytest.mark.skipif(not (X86 and shutil.which("qemu-x86_64")), reason="needs x86-64 and qemu-x86_64")
pytestmark = pytest.mark.skipif(not (COMPILER and CMAKE and NINJA), reason="needs g++, cmake and ninja")


def check_engines(name: str, *definitions: str) -> Path:
    """check_engines, built in a separate folder."""
    return built(name, "check_engines", *definitions) / "check_engines"


@functools.cache
def program() -> Path:
    """check_engines from the objects of the native module, where the module was built in this checkout."""
    folder = ROOT / "build" / f"cmake-{sys.implementation.cache_tag}"
    if not (folder / "build.ninja").exists():
        return check_engines("native", WITHOUT_MODULE)
    printed([CMAKE, "--build", folder, "--target", "check_engines"])
    return folder / "check_engines"


def passed(*command, cases: int, **environment) -> subprocess.CompletedProcess:
    """Run a check_engines, which must pass at least `cases` cases."""
    run = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=600,
                         env={**os.environ, "MALLOC_PERTURB_": "1", **environment})
    match = re.search(r"^(\d+) passed, 0 failed$", run.stdout, re.MULTILINE)
    assert run.returncode == 0 and match, (run.returncode, run.stdout[-2000:], run.stderr[-2000:])
    assert int(match[1]) >= cases
    return run


def digests(run: subprocess.CompletedProcess) -> dict:
    """Digests of all results, by level and precision."""
    return dict(re.findall(r"^(\S+ \S+): digest (\w+)$", run.stdout, re.MULTILINE))


@functools.cache
def digests_here() -> dict:
    """Digests on this processor; Python tests compare its generic level with float64."""
    return digests(passed(program(), cases=280))


@needs_native
def test_every_engine_of_this_processor(monkeypatch):
    monkeypatch.delenv("ELMO_FAST_CPU_ISA", raising=False)
    run = passed(program(), native.cpu_isa(), cases=300)
    features = native.cpu_features()
    levels = LEVELS if X86 else ("generic", "neon", "neon-dotprod")
    for level in levels[: levels.index(native.cpu_isa()) + 1]:
        is_run = all(features[name] for name, needed in native.engines()[level].items() if needed)
        assert bool(re.search(rf"^{level} ", run.stdout, re.MULTILINE)) == is_run, level


@needs_native
def test_the_build_has_every_engine():
    x86, arm = [*LEVELS], ["generic", "neon", "neon-dotprod"]
    expected = {"x86_64": x86, "AMD64": x86, "aarch64": arm, "arm64": arm}
    assert list(native.engines()) == expected.get(platform.machine(), ["generic"])


@pytest.mark.long
@needs_qemu
def test_the_engines_of_an_old_processor(monkeypatch):
    """The first 64-bit processors' level; test_the_package_on_another_processor runs the next one."""
    monkeypatch.delenv("ELMO_FAST_CPU_ISA", raising=False)
    actual = digests(passed("qemu-x86_64", "-cpu", "core2duo", program(), "generic", cases=280))
    assert len(actual) == 3 and actual.items() <= digests_here().items()


@pytest.mark.long
@needs_qemu
@pytest.mark.parametrize("processor, best", PROCESSORS.items())
@pytest.mark.parametrize("cap", [None, *LEVELS])
def test_detection_on_another_processor(processor, best, cap, monkeypatch):
    monkeypatch.delenv("ELMO_FAST_CPU_ISA", raising=False)
    run = subprocess.run(["qemu-x86_64", "-cpu", processor, program(), "best"], capture_output=True, text=True,
                         env={**os.environ, **({"ELMO_FAST_CPU_ISA": cap} if cap else {})})
    expected = min(best, cap or best, key=LEVELS.index)
    assert (run.returncode, run.stdout) == (0, f"{expected}\n")


@pytest.mark.long
@pytest.mark.skipif(not (native and native.cpu_features()["avx2"] and native.cpu_features()["f16c"]),
                    reason="needs AVX2 and F16C")
def test_every_engine_of_x86():
    run = passed(check_engines(*ANY_PROCESSOR), "amx", cases=1400)
    assert all(re.search(rf"^{level} ", run.stdout, re.MULTILINE) for level in LEVELS)
    assert native.amx_permitted() or int(re.search(r"(\d+) dots", run.stderr)[1]) > 1000


@pytest.mark.long
@pytest.mark.skipif(not (shutil.which("aarch64-linux-gnu-g++") and shutil.which("qemu-aarch64")),
                    reason="needs aarch64-linux-gnu-g++ and qemu-aarch64")
def test_every_engine_of_aarch64():
    program = check_engines("aarch64", WITHOUT_MODULE, "-DCMAKE_SYSTEM_NAME=Linux", "-DCMAKE_SYSTEM_PROCESSOR=aarch64",
                            "-DCMAKE_CXX_COMPILER=aarch64-linux-gnu-g++", "-DCMAKE_EXE_LINKER_FLAGS=-static")
    assert printed(["qemu-aarch64", "-cpu", "cortex-a53", program, "best"]) == "neon\n"
    actual = digests(passed("qemu-aarch64", "-cpu", "cortex-a76", program, "neon-dotprod", cases=700))
    generic = {name: digest for name, digest in actual.items() if name.startswith("generic")}
    assert len(generic) == 3 and generic.items() <= digests_here().items()
    listing = printed(["aarch64-linux-gnu-objdump", "-dC", next((program.parent).rglob("engine_neon.dir/**/*.o"))])
    assert not re.search(r"\t[su]dot\t", listing)  # which an A53 lacks
    functions = re.split(r"^[0-9a-f]{16} (?=<)", listing, flags=re.MULTILINE)
    of_floats = "".join(code for code in functions if not re.match(r"<.*(Int8|Quantized|quantize)", code))
    fused, apart = (len(re.findall(rf"\t{name}\t", of_floats)) for name in ("fml[as]", "fmul"))
    assert fused > 1500 > 10 * apart  # products and sums are fused


@pytest.mark.long
@pytest.mark.skipif(not (X86 and shutil.which("clang++")), reason="needs x86-64 and clang++")
def test_another_compiler():
    program = check_engines("clang++", "-DCMAKE_CXX_COMPILER=clang++", "-DCMAKE_CXX_FLAGS=-Werror", WITHOUT_MODULE)
    engines = {path.name.removesuffix(".dir") for path in (program.parent / "CMakeFiles").glob("engine_*.dir")}
    assert engines == {f"engine_{name}" for name in (
        "generic", "avx2", "avx_vnni", "avx512", "avx512_vnni", "avx512_bf16", "amx")}
    passed(program, cases=280)


@pytest.mark.long
def test_the_engine_compiles_for_macos(tmp_path):
    pytest.importorskip("ziglang")
    engine = ["-DELMO_FAST_ENGINE=neon_engine", "-DELMO_FAST_VEC=NeonVec", '-DELMO_FAST_HEADER="vec/neon.h"']
    built = [f"-DELMO_FAST_HAS_{name}={int(name == 'neon')}" for name in (
        "generic", "neon", "neon_dotprod", "avx2", "avx_vnni", "avx512", "avx512_vnni", "avx512_bf16", "amx")]
    for path in (ROOT / "csrc" / "cpu").rglob("*.cpp"):
        printed([sys.executable, "-m", "ziglang", "c++", "-target", "aarch64-macos", "-std=c++17", f"-I{ROOT / 'csrc'}",
                 "-Wall", "-Wextra", "-Werror", *(engine if path.name == "engine_isa.cpp" else built), "-c", path, "-o",
                 tmp_path / "object.o"])


@pytest.mark.long
@needs_native
@needs_qemu
def test_the_package_on_another_processor():
    """`load().embed` in Python under qemu gives the bits of this processor at the same level."""
    if LEVELS.index(native.cpu_isa()) < LEVELS.index("avx2"):
        pytest.skip("needs a processor with AVX2")
    code = "import elmo_fast; print(elmo_fast.load().embed(['A naïve play .'])[0].tobytes().hex())"
    expected = python("-c", code, ELMO_FAST_CPU_ISA="avx2", OMP_NUM_THREADS="1").stdout
    run = subprocess.run(["qemu-x86_64", "-cpu", "Haswell", sys.executable, "-c", code], capture_output=True, text=True,
                         cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)})
    assert run.returncode == 0, run.stderr[-2000:]
    assert len(expected) > 1000 and run.stdout == expected
