"""Gradients of the CUDA LSTM, computed on the CPU with both kinds of pointwise kernels, against float64.

Tests shared with the C++ engine are in tests/ops/test_projected_lstm and test_gradients.
"""

import dataclasses

import pytest
import torch

from elmo_fast.testing import AGAINST_FLOAT64
from tests.support import cuda_ops
from tests.support.engines import REFERENCE, Engine
from tests.support.gpu_lstm import check_gradients
from tests.support.grid import mostly_long
from tests.support.op_cases import SLOTS, TIGHT, lstm_case

pytestmark = pytest.mark.skipif(not cuda_ops.MAY_BE_REGISTERED, reason="this torch does not replace an implementation")
TORCH, *TRITON = (Engine("cuda", kernels) for kernels in (None, "triton sm_90", "triton sm_80"))
STARTS = lstm_case(slots=SLOTS, starts=True, clips=TIGHT)


@pytest.mark.parametrize("engine", mostly_long(TRITON, quick=0), ids=str)
@pytest.mark.parametrize("case", [STARTS, lstm_case((9, 600, 20), [2, 3], clips=TIGHT), lstm_case((5, 11, 11))],
                         ids=["starts", "two blocks of cells", "no projection"])
def test_triton_kernels_agree_with_float64(engine, case):
    case.check(engine)


@pytest.mark.parametrize("engine", mostly_long([TORCH, *TRITON]), ids=str)
@pytest.mark.parametrize("sizes", [(11, 37, 11), (11, 24, 24)])
def test_gradients_in_medium(engine, sizes):
    """No clips fire: a cell that rounding moves across its limit has another gradient."""
    with engine.active():
        check_gradients(lstm_case(sizes, slots=SLOTS, starts=True), "medium", AGAINST_FLOAT64["bf16"])


@pytest.mark.parametrize("kernels", mostly_long([None, "triton sm_80"]))
def test_nan_and_infinity_propagate(kernels):
    case = dataclasses.replace(STARTS, operands={name: values.clone() for name, values in STARTS.operands.items()})
    case.operands["c"][0, 3], case.operands["b_1"][5] = torch.nan, torch.inf
    with torch.no_grad():
        expected = case.run(REFERENCE)
    actual = case.gradients(Engine("cuda", kernels))
    for number, truth in enumerate(expected):
        assert torch.equal(actual[number].isnan(), truth.isnan())
