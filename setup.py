"""Builds elmo_fast._native with CMake; where that cannot be, installs pure Python and records why."""
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
from importlib.util import find_spec
from pathlib import Path

import setuptools
from setuptools import Extension, find_packages, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

if int(setuptools.__version__.split(".")[0]) < 77:
    sys.exit(f"elmo-fast: expected setuptools 77 or newer, got {setuptools.__version__}: pip install -U setuptools")

ROOT = Path(__file__).parent.resolve()
RECORD = '"""Written by setup.py: why this installation has no native module, or None."""\n\nNATIVE_SKIPPED = {!r}\n'
# The scripts folder comes first: an environment that is used without being activated is not on PATH.
PATH = os.pathsep.join([sysconfig.get_path("scripts"), os.environ.get("PATH", os.defpath)])
CXX = shlex.split(os.environ.get("CXX", ""))[:1] or ["c++", "g++", "clang++"]
FOUND = next(filter(None, (shutil.which(name, path=PATH) for name in CXX)), None)


def runs(compiler: str) -> bool:
    """Whether a compiler runs: macOS has stand-ins for those that are not installed."""
    try:
        return subprocess.run([compiler, "--version"], capture_output=True).returncode == 0
    except OSError:
        return False


COMPILER = FOUND if FOUND and runs(FOUND) else None
# The script of the package names an interpreter, which is gone when its environment has moved.
CMAKE = [sys.executable, "-m", "cmake"] if find_spec("cmake") else [
    *filter(None, [shutil.which("cmake", path=PATH)])]
NINJA = shutil.which("ninja", path=PATH)
# Engines to do without, one after the other, where the build fails.
_NEWEST = ("AMX", "AVX_VNNI", "AVX512_VNNI", "AVX512_BF16", "NEON_DOTPROD")
LEFT_OUT = (), ("AMX",), _NEWEST, (*_NEWEST, "AVX512"), (*_NEWEST, "AVX512", "AVX2", "NEON")


def why_no_native() -> str | None:
    """None when the native module can be built here. A compiler that is there and fails with every engine is an error,
    not a reason."""
    include, switch = sysconfig.get_path("include"), os.environ.get("ELMO_FAST_NO_NATIVE") or "0"
    if switch not in ("0", "1"):
        sys.exit(f"ELMO_FAST_NO_NATIVE: expected 0 or 1, got {switch!r}")
    reasons = {
        "ELMO_FAST_NO_NATIVE=1 was set during installation": switch == "1",
        "it is not built on Windows, whose compilers lack the vector types or align the stack too little":
            os.name == "nt",
        f"no C++ compiler was found during installation (looked for {', '.join(CXX)})": not FOUND,
        f"{FOUND} was found during installation but does not run": not COMPILER,
        f"Python.h was not found in {include} during installation": not Path(include, "Python.h").exists(),
        "cmake, ninja or pybind11 was missing during installation": not (CMAKE and NINJA and find_spec("pybind11")),
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


class BuildPython(build_py):
    def run(self):
        if not self.editable_mode:  # modules that an earlier version had
            shutil.rmtree(Path(self.build_lib, "elmo_fast"), ignore_errors=True)
        super().run()
        package = (ROOT if self.editable_mode else Path(self.build_lib)) / "elmo_fast"
        (package / "_build_info.py").write_text(RECORD.format(SKIPPED))
        if SKIPPED:
            print(f"elmo-fast: installing without the native module: {SKIPPED}", file=sys.stderr)
            # A module left from an earlier build may not match these sources.
            (package / f"_native{sysconfig.get_config_var('EXT_SUFFIX')}").unlink(missing_ok=True)


class BuildNative(build_ext):
    def build_extension(self, ext):
        build = ROOT / "build" / f"cmake-{sys.implementation.cache_tag}"
        configure = [*CMAKE, "-S", ROOT, "-B", build, "-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={NINJA}",
                     f"-DPython_EXECUTABLE={sys.executable}", *shlex.split(os.environ.get("CMAKE_ARGS", ""))]
        # CMake keeps the compiler, tools and flags of its first run, so a different call starts over.
        call = repr([configure, COMPILER, *map(os.environ.get, ["CXX", "CXXFLAGS", "LDFLAGS"])])
        last_call = build / "last_call.txt"
        if not last_call.exists() or last_call.read_text() != call:
            shutil.rmtree(build, ignore_errors=True)
        last_call.unlink(missing_ok=True)
        for left_out in LEFT_OUT:
            subprocess.run([*configure, *(f"-DELMO_FAST_HAS_{isa}=OFF" for isa in left_out)], check=True)
            if subprocess.run([*CMAKE, "--build", build], check=left_out == LEFT_OUT[-1]).returncode == 0:
                break
        if left_out:
            print(f"elmo-fast: installing without the engines of {', '.join(left_out)}: this compiler failed with them",
                  file=sys.stderr)
        else:  # CMake also keeps what was left out
            last_call.write_text(call)
        package = Path(self.get_ext_fullpath(ext.name)).parent
        subprocess.run([*CMAKE, "--install", build, "--prefix", package], check=True)


def published() -> dict:
    """README and addresses for a package index, where relative links lead nowhere: those of the repository that builds.

    The variables are set in GitHub's workflows; without them links stay as they are, and there is no address.
    """
    readme, urls = (ROOT / "README.md").read_text(encoding="utf-8"), {}
    if repository := os.environ.get("GITHUB_REPOSITORY"):
        home, commit = f"{os.environ['GITHUB_SERVER_URL']}/{repository}", os.environ["GITHUB_SHA"]
        readme = re.sub(r"(!?)\[[^]]*\]\((?!https?:|#)",
                        lambda link: f"{link[0]}{home}/{'raw' if link[1] else 'blob'}/{commit}/", readme)
        urls = {"Repository": home, "Documentation": f"{home}/tree/{commit}/docs", "Issues": f"{home}/issues",
                "Changelog": f"{home}/blob/{commit}/CHANGELOG.md"}
    return {"long_description": readme, "long_description_content_type": "text/markdown", "project_urls": urls}


SKIPPED = why_no_native()
setup(packages=[*find_packages(include=["elmo_fast", "elmo_fast.*"]), "elmo_fast.kernels"],
      package_dir={"elmo_fast.kernels": "kernels"},
      package_data={"elmo_fast": ["pretrained/**", "**/*.html", "**/*.css", "**/*.js", "py.typed"]},
      ext_modules=[] if SKIPPED else [Extension("elmo_fast._native", [])],
      cmdclass={"build_py": BuildPython, "build_ext": BuildNative}, include_package_data=False,
      **published())
