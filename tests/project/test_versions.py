"""The core on other versions of Python, NumPy and h5py, and the modules on others of torch, where they can be had."""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch

from elmo_fast.testing import AGAINST_FLOAT64, relative_error
from tests.support.files import ROOT, python, read_hdf5
from tests.support.versions import install, run_tests_with

pytestmark = pytest.mark.long
# The oldest NumPy 1.26 and the oldest h5py with wheels for each Python, and the newest of both.
VERSIONS = [("3.11", "numpy==1.26.0", "h5py==3.8.0"), ("3.12", "numpy==1.26.0", "h5py==3.10.0"),
            ("3.13", "numpy", "h5py"), ("3.14", "numpy", "h5py")]
THIS = f"{sys.version_info.major}.{sys.version_info.minor}"
# With a tokenizer, since `re` has differed: possessive groups match wrongly in Python 3.11.0 to 3.11.4.
EMBED = "-m", "elmo_fast.cli", "embed", str(ROOT / "examples" / "sentences.txt"), "--tokenizer", "penn"


def interpreter(version: str) -> str:
    """A Python of a version, with pip: this one, one on PATH, or one of pyenv."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"), "versions")
    others = [f"python{version}", *map(str, sorted(pyenv.glob(f"{version}.*/bin/python{version}")))]
    for name in [sys.executable] if version == THIS else others:
        try:
            if subprocess.run([name, "-m", "pip", "--version"], capture_output=True).returncode == 0:
                return name
        except OSError:
            continue
    pytest.skip(f"no Python {version} with pip")


@pytest.mark.parametrize("version, numpy, h5py", VERSIONS)
def test_the_core_embeds(version, numpy, h5py, tmp_path):
    program, packages = interpreter(version), tmp_path / "packages"
    install(program, packages, numpy, h5py, "tqdm", "filelock>=4")
    without_native = {} if version == THIS else {"ELMO_FAST_NO_NATIVE": "1"}  # the module is of this Python
    run = subprocess.run([program, *EMBED, tmp_path / "actual.hdf5", "--all"], capture_output=True, text=True, cwd=ROOT,
                         env={**os.environ, **without_native, "PYTHONPATH": f"{packages}{os.pathsep}{ROOT}"})
    assert run.returncode == 0, run.stderr[-2000:]
    python(*EMBED, tmp_path / "expected.hdf5", "--all")
    actual, expected = read_hdf5(tmp_path / "actual.hdf5"), read_hdf5(tmp_path / "expected.hdf5")
    assert actual.keys() == expected.keys()
    arrays = [key for key in expected if expected[key].dtype == np.float32]
    layers = [layer for key in arrays for layer in zip(actual[key], expected[key])]
    assert layers
    for layer in layers:  # NumPy's products differ between processors
        assert relative_error(*map(torch.from_numpy, layer)) <= (AGAINST_FLOAT64["ieee"] if without_native else 0)


@pytest.mark.parametrize("version", ["2.6.0", "2.9.1", "2.14.1"])  # the oldest, one between, the newest that was run
def test_models_with_another_torch(version):
    """The quick tests of modules, drop-ins and training. The public index has a torch of 3 GB for Linux."""
    if shutil.disk_usage(tempfile.gettempdir()).free < 24e9:  # pip unpacks, and two versions may run at a time
        pytest.skip(f"expected 24 GB of temporary files for torch {version}")
    run_tests_with("torch", version, "tests/model", "tests/compat", "tests/train")
