"""Other versions of packages, in folders of their own; tests that need one which cannot be had are skipped."""

import os
import subprocess
import sys
import tempfile

import pytest

from tests.support.files import ROOT

_RUN = """import importlib, sys, pytest
assert importlib.import_module(sys.argv[1]).__version__.startswith(sys.argv[2])
sys.exit(pytest.main(sys.argv[3:]))"""


def install(program, folder, *packages):
    """What pip of a Python has of packages, and of what they need."""
    done = subprocess.run([program, "-m", "pip", "install", "-q", "--only-binary=:all:", "--target", folder, *packages],
                          capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"no {' and '.join(packages)} for {program}: {done.stderr.strip().splitlines()[-1]}")


def run_tests_with(package, version, *arguments):
    """Run pytest with a version of a package."""
    with tempfile.TemporaryDirectory() as folder:
        install(sys.executable, folder, f"{package}=={version}")
        paths = os.pathsep.join(filter(None, [folder, os.environ.get("PYTHONPATH")]))
        run = subprocess.run([sys.executable, "-c", _RUN, package, version, "-q", "-p", "no:cacheprovider", *arguments],
                             env=os.environ | {"PYTHONPATH": paths, "TRITON_CACHE_DIR": f"{folder}/cache",
                                               "OMP_WAIT_POLICY": "passive"},  # beside other tests
                             cwd=ROOT, capture_output=True, text=True)
    print(run.stdout)
    assert run.returncode == 0 and " passed" in run.stdout, (run.stdout + run.stderr)[-3000:]
