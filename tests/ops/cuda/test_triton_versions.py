"""The Triton kernels, compiled by other versions of Triton that versions of torch bring.

Runs tests of test_ptx_triton and test_cuda_lstm_paths, in one process per version, with the operands fp16 and tf32,
whose tiles are those of all products on tensor cores; without gradients, batch mates and most sizes of an LSTM step.
"""

import os
import subprocess
import sys
import tempfile

import pytest

from tests.support.native_program import ROOT
from tests.support.ptx_machine import machine

pytest.importorskip("triton")

VERSIONS = "3.4.0", "3.6.0"
TESTS = [f"tests/ops/cuda/test_{name}.py" for name in ("ptx_triton", "cuda_lstm_paths")]
SELECTED = ("((every_configuration or newer_chips or nan_and_infinity) and (fp16 or tf32))"
            " or (kernels_of_a_step and 7-3 and sizes0 and not True)")
RUN = """import sys, pytest, triton
assert triton.__version__ == sys.argv[1], triton.__file__
sys.exit(pytest.main(sys.argv[2:]))"""


@pytest.mark.long
@pytest.mark.parametrize("version", VERSIONS)
def test_kernels_of_another_triton(version):
    machine()
    with tempfile.TemporaryDirectory() as folder:
        pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", folder, f"triton=={version}"]
        installed = subprocess.run(pip, capture_output=True, text=True)
        if installed.returncode:
            pytest.skip(f"Triton {version} cannot be installed: {installed.stderr[-300:]}")
        paths = [folder, *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths), "TRITON_CACHE_DIR": f"{folder}/cache"}
        tests = [sys.executable, "-c", RUN, version, "-q", "-m", "", "-k", SELECTED, "-p", "no:cacheprovider", *TESTS]
        run = subprocess.run(tests, cwd=ROOT, env=environment, capture_output=True, text=True)
    print(run.stdout)
    assert run.returncode == 0 and " passed" in run.stdout, (run.stdout + run.stderr)[-3000:]
