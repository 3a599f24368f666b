"""Snapshots of weights: the sampled numbers, and edits of an op's operands."""

import pytest
import torch

from elmo_fast.ops.linear import highway, linear
from elmo_fast.ops.weight_snapshot import _samples_of, check_in_full, one_call, snapshot_of
from elmo_fast.testing import SIZES
from tests.support.engines import needs_native


def sampled(rows, columns, dtype=torch.float32):
    """Mask of the numbers of a matrix that are sampled, bool [rows, columns]."""
    bits = {4: torch.int32, 2: torch.int16, 8: torch.int64}[dtype.itemsize]
    numbers = torch.zeros(rows, columns, dtype=bits)
    _samples_of(numbers.view(dtype)).fill_(-1)
    return numbers != 0


MATRICES = [shape for dim, projection, _ in SIZES.values() for shape in ((2 * projection, 4 * dim), (dim, projection))]


@pytest.mark.parametrize("rows, columns", [
    *dict.fromkeys(MATRICES), (2048, 2048), (512, 512), (2048, 512), (112, 1024)])
def test_samples_are_in_every_row_and_column(rows, columns):
    mask = sampled(rows, columns)
    assert mask.any(1).all() and mask.any(0).all()
    if columns > 4096:
        assert mask.view(rows, 2, -1).any(2).all()
    assert mask.float().mean() < 0.1 or rows * columns <= 1 << 13


@pytest.mark.parametrize("rows, columns, dtype", [
    (1, 1, torch.float32), (37, 11, torch.float32), (301, 33, torch.float32), (333, 101, torch.float16),
    (128, 1004, torch.bfloat16), (99, 100, torch.float64), (8_000, 50, torch.float32)])
def test_samples_of_odd_sizes(rows, columns, dtype):
    mask = sampled(rows, columns, dtype)
    assert mask.any(1).all()
    assert mask.any(0).all()


def test_a_very_large_table_has_a_bounded_number_of_samples():
    assert 8 << 12 < sampled(1 << 18, 32).sum() < 8 << 14


@needs_native
@pytest.mark.parametrize("edit", [
    lambda w: w.data.mul_(0.5), lambda w: w.numpy().__imul__(0.5), lambda w: w.mul_(0.5),
    lambda w: setattr(w, "data", w.data.t().contiguous().t()), lambda w: setattr(w, "data", w.data.flip(1))])
def test_operands_of_an_op(edit):
    torch.manual_seed(0)
    x, weights, biases = torch.randn(3, 200), [torch.randn(200, 200) / 14 for _ in range(2)], torch.randn(2, 200)
    calls = (lambda backend: linear(x, weights[0], biases[0], backend=backend),
             lambda backend: highway(x, weights[0], biases[0], weights[1], biases[1], backend=backend))
    for tensor in (weights[0], weights[0], weights[1]):
        for call in calls:
            call("native")
        edit(tensor)
        for call in calls:
            torch.testing.assert_close(call("native"), call("torch"), atol=1e-5, rtol=1e-5)


def test_a_snapshot_identifies_its_tensors():
    torch.manual_seed(0)
    w, b, unrelated = torch.randn(300, 200), torch.zeros(200), torch.randn(300, 200)
    first = snapshot_of([w, None, b])
    assert snapshot_of([w, None, b]) is first is not snapshot_of([w, b])
    with one_call():
        assert snapshot_of([w, None, b]) is first
        w.data[3, 7] += 1  # compared once per call
        assert snapshot_of([w, None, b]) is first
        w[3, 7] -= 1  # increases the version counter
        assert (second := snapshot_of([w, None, b])) is not first
    check_in_full([w])
    assert snapshot_of([w, None, b]) is second
    assert snapshot_of([unrelated, None, b]) is not second
    gaps = torch.randn(300, 400)[:, ::2]
    assert snapshot_of([gaps, None, b]) is not snapshot_of([gaps, None, b])
