"""Times one highway layer on the unique tokens of a batch of running text.

    python -m pytest benchmarks/bench_ops/test_highway.py --benchmark-only -k "b64"

All published sizes have the same layer, 2048 wide. It computes in fp32 in every precision on the CPU; the encoder of
test_char_cnn.py has it on a GPU. The yardstick that runs between the rounds is the reference.
"""

import functools

import pytest
import torch

from benchmarks import common
from benchmarks.bench_ops import cases
from elmo_fast.ops.linear import highway


@functools.lru_cache(maxsize=1)
def operands(batch: int):
    """x [unique tokens, D], W_carry, b_carry, W_transform, b_transform."""
    size = sum(count for _, count in common.FILTERS)
    generator = torch.Generator().manual_seed(cases.SEED)
    x = torch.randn(len(cases.numbered(batch)[0]), size, generator=generator)
    pairs = [(torch.randn(size, size, generator=generator) / size**0.5, torch.randn(size, generator=generator))
             for _ in range(2)]
    return x, *(part for pair in pairs for part in pair)


@pytest.mark.parametrize("backend, precision", cases.variants())
@pytest.mark.parametrize("batch", cases.batches())
def test_highway(request, benchmark, batch, backend, precision):
    cases.skip_absent(backend, precision)
    given = operands(batch)
    expected = highway(*cases.in_float64(*given), backend="reference")
    checked = cases.compare([highway(*given, backend=backend)], [expected], precision, exact=True)
    case = cases.Case("highway", "all", batch, backend, precision, len(given[0]), checked)
    cases.timed(request, benchmark, case, lambda: highway(*given, backend=backend),
                lambda: highway(*given, backend="reference"), "reference")
