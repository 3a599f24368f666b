"""Operands of 16 bits compute in fp32 from their rounded values, on every backend."""

import numpy as np
import pytest
import torch

from elmo_fast.ops.linear import highway, linear
from elmo_fast.ops.projected_lstm import projected_lstm
from elmo_fast.ops.schedule import make_schedule


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("backend, dtype", [("reference", torch.float16), ("torch", torch.bfloat16),
                                            ("native", torch.float16), ("native", torch.bfloat16)])
def test_16_bit_operands_compute_in_fp32(backend, dtype):
    x, w, b = normal(5, 7).to(dtype), normal(7, 7, seed=1), normal(7, seed=2)
    torch.testing.assert_close(linear(x, w, b, backend=backend), x.float() @ w + b, rtol=1e-6, atol=1e-6)
    gate = torch.sigmoid(x.float() @ w + b)
    expected = gate * torch.relu(x.float() @ w.t() + b) + (1 - gate) * x.float()
    torch.testing.assert_close(highway(x, w, b, w.t().contiguous(), b, backend=backend), expected, rtol=1e-6, atol=1e-6)

    schedule = make_schedule(np.array([3, 1]))
    weights = tuple((normal(9, 24, seed=k) / 3, normal(24, seed=k + 1), normal(6, 4, seed=k + 2)) for k in (3, 6))
    tensors = [each.to(dtype) for each in (normal(4, 5), normal(2, 8, seed=10), normal(2, 12, seed=11),
                                           normal(8, seed=12), normal(12, seed=13))]

    def run(inputs, h, c, initial_h, initial_c, backend):
        outputs, state = projected_lstm(inputs, torch.from_numpy(schedule.tokens), schedule, (h, c), weights,
                                        initial_state=(initial_h, initial_c), backend=backend)
        return outputs, *state

    expected = run(*(each.float() for each in tensors), "reference")
    torch.testing.assert_close(run(*tensors, backend), expected, rtol=1e-5, atol=1e-5)
