"""Operands of 16 bits compute in fp32 from their rounded values, on every backend."""

import numpy as np
import pytest
import torch

from elmo_fast.ops.highway import highway
from elmo_fast.ops.linear import linear
from elmo_fast.ops.projected_lstm import projected_lstm
from elmo_fast.ops.schedule import make_schedule

BACKENDS = ("reference", "torch", "native")
HALVES = (torch.float16, torch.bfloat16)


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", HALVES)
def test_products_and_highways(backend, dtype):
    x, w, b = normal(5, 7).to(dtype), normal(7, 7, seed=1), normal(7, seed=2)
    torch.testing.assert_close(linear(x, w, b, backend=backend), x.float() @ w + b, rtol=1e-6, atol=1e-6)
    gate = torch.sigmoid(x.float() @ w + b)
    wanted = gate * torch.relu(x.float() @ w.t() + b) + (1 - gate) * x.float()
    torch.testing.assert_close(highway(x, w, b, w.t().contiguous(), b, backend=backend), wanted, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", HALVES)
def test_the_lstm(backend, dtype):
    schedule = make_schedule(np.array([3, 1]))
    weights = tuple((normal(9, 24, seed=k) / 3, normal(24, seed=k + 1), normal(6, 4, seed=k + 2)) for k in (3, 6))
    inputs, rows = normal(4, 5).to(dtype), torch.from_numpy(schedule.tokens)
    state, initial_state = ((normal(2, 8, seed=10).to(dtype), normal(2, 12, seed=11).to(dtype)),
                      (normal(8, seed=12).to(dtype), normal(12, seed=13).to(dtype)))
    found, final = projected_lstm(inputs, rows, schedule, state, weights, initial_state=initial_state, backend=backend)
    wanted, end = projected_lstm(inputs.float(), rows, schedule, tuple(map(torch.Tensor.float, state)), weights,
                                 initial_state=tuple(map(torch.Tensor.float, initial_state)), backend="reference")
    torch.testing.assert_close((found, *final), (wanted, *end), rtol=1e-5, atol=1e-5)
