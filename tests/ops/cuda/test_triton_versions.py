"""The Triton kernels, compiled by other versions of Triton that versions of torch bring.

Runs tests of test_ptx_triton and test_cuda_lstm_paths, in one process per version, with the operands fp16 and tf32,
whose tiles are those of all products on tensor cores; without gradients, batch mates and most sizes of an LSTM step.
"""

import pytest

from tests.support.ptx_machine import machine
from tests.support.versions import run_tests_with

pytest.importorskip("triton")

TESTS = [f"tests/ops/cuda/test_{name}.py" for name in ("ptx_triton", "cuda_lstm_paths")]
SELECTED = ("((every_configuration or newer_chips or nan_and_infinity) and (fp16 or tf32))"
            " or (kernels_of_a_step and 7-3 and sizes0 and not True)")


@pytest.mark.long
@pytest.mark.parametrize("version", ["3.4.0", "3.6.0"])
def test_kernels_of_another_triton(version):
    machine()
    run_tests_with("triton", version, "-m", "", "-k", SELECTED, *TESTS)
