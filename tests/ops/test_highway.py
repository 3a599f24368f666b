import pytest
import torch

from elmo_fast.ops.linear import highway
from elmo_fast.testing import AGAINST_FLOAT64, relative_error
from tests.support.op_cases import highway_arguments as arguments


@pytest.mark.parametrize("backend", ["reference", "torch", "auto"])
def test_against_the_equation(backend):
    x, w_c, b_c, w_t, b_t = arguments(torch.float64)
    carry = 1 / (1 + torch.exp(-(x @ w_c + b_c)))
    expected = carry * (x @ w_t + b_t).clamp(min=0) + (1 - carry) * x
    found = highway(*arguments(torch.float32), backend=backend)
    assert relative_error(found, expected) < AGAINST_FLOAT64["highest"]


def test_gate_shut_keeps_the_input():
    x, w_c, b_c, w_t, b_t = arguments(torch.float64)
    assert torch.equal(highway(x, w_c * 0, b_c * 0 - 800, w_t, b_t), x)
