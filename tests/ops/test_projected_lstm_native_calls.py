"""How the C++ LSTM is called: packed weights, the floating-point mode, refusals, random schedules."""

import multiprocessing
import os

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given, settings

from tests.support.native_lstm import (
    ISAS,
    Schedule,
    Weights,
    aligned_bytes,
    batch_schedule,
    check,
    isa,
    native,
    normal,
    run,
    same,
    state,
)


@pytest.fixture(params=ISAS)
def each_isa(request):
    with isa(request.param):
        yield request.param


@pytest.mark.parametrize("offset", [4, 20])
def test_packed_weights_anywhere(each_isa, offset):
    rng = np.random.default_rng(8)
    weights = Weights(rng, 30, 50, 20)
    schedule = batch_schedule([5, 3, 1], 7, rng)
    x = normal(rng, 7, 30)
    h, c = state(rng, 3, weights)
    assert same(run(weights, schedule, x, h, c), run(weights, schedule, x, h, c, packed=weights.pack(offset=offset)))


def denormal_cells(threads):
    """A cell that is denormal stays so: forget gate open, input gate shut."""
    rng = np.random.default_rng(7)
    weights = Weights(rng, 4, 8, 8, scale=0.0)
    for b in weights.b:
        b[:8], b[16:24] = -200.0, 50.0
    c_bits = np.full((2, 16), 214000, np.int32)  # about 3e-40; as bits, for this thread may flush as well
    c_bits[1] |= -(2**31)
    c = c_bits.view(np.float32)
    schedule, h = Schedule([2], [[0, 1]] * 2, [[0, 1]] * 2), np.zeros((2, 16), np.float32)
    output, _, c_end = run(weights, schedule, np.zeros((2, 4), np.float32), h, c, threads=threads)
    assert (c_end.view(np.int32) == c_bits).all()
    assert (np.abs((output.view(np.int32) & 0x7FFFFFFF) - 107000) <= 1).all()
    assert (np.signbit(output) == np.signbit(c)).all()


def test_denormals_are_kept(each_isa):
    denormal_cells(threads=1)


def four_threads():
    rng = np.random.default_rng(10)
    weights = Weights(rng, 16, 40, 8)
    return run(weights, batch_schedule([6, 3], 8, rng), normal(rng, 8, 16), *state(rng, 2, weights), threads=4)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this platform")
def test_a_forked_child_has_its_own_threads():
    expected = four_threads()
    with multiprocessing.get_context("fork").Pool(1) as pool:
        assert same(pool.apply_async(four_threads).get(timeout=60), expected)


def test_wrong_sizes_are_refused():
    rng = np.random.default_rng(11)
    weights = Weights(rng, 4, 8, 2)
    packed = weights.pack()
    x = normal(rng, 3, 4)
    h, c = state(rng, 2, weights)
    good = dict(batch_sizes=[2, 1], rows=[[0, 1, 2]] * 2, out_rows=[[0, 1, 2]] * 2)
    run(weights, Schedule(**good), x, h, c, packed=packed)
    for change, message in [
        (dict(batch_sizes=[1, 2]), "batch_sizes"), (dict(batch_sizes=[3, 0]), "batch_sizes"),
        (dict(batch_sizes=[2, 2, -1]), "batch_sizes"),
        (dict(rows=[[0, 1, 2], [0, 1, 3]]), "rows"), (dict(rows=[[0, -1, 2], [0, 1, 2]]), "rows"),
        (dict(out_rows=[[0, 1, 3], [0, 1, 2]]), "out_rows"), (dict(out_rows=[[0, 1, -2], [0, 1, 2]]), "out_rows"),
    ]:
        with pytest.raises(ValueError, match=message):
            run(weights, Schedule(**{**good, **change}), x, h, c, packed=packed)
    for options, message in [
        (dict(clips=(0.0, 1.0)), "clip"), (dict(clips=(1.0, float("nan"))), "clip"), (dict(threads=0), "threads"),
        (dict(chunk=-1), "chunk"), (dict(precision=3), "precision"), (dict(packed=packed[:-1]), "packed"),
        (dict(packed=np.zeros_like(packed)), "packed"),
    ]:
        with pytest.raises(ValueError, match=message):
            run(weights, Schedule(**good), x, h, c, **{"packed": packed, **options})
    with pytest.raises(ValueError, match="packed: expected lstm"):
        run(Weights(rng, 4, 7, 2), Schedule(**good), x, h, c, packed=packed)


def test_packed_for_another_instruction_set_is_refused():
    if len(ISAS) < 2:
        pytest.skip("one instruction set here")
    rng = np.random.default_rng(12)
    weights = Weights(rng, 4, 8, 2)
    with isa(ISAS[0]):
        packed = aligned_bytes(1 << 16)
        packed[: weights.pack().size] = weights.pack()
    with isa(ISAS[1]), pytest.raises(ValueError, match=f"packed.*{ISAS[1]}.*{ISAS[0]}"):
        run(weights, Schedule([1], [[0], [0]], [[0], [0]]), np.zeros((1, 4), np.float32), *state(rng, 1, weights),
            packed=packed)


def test_no_steps():
    weights = Weights(np.random.default_rng(13), 4, 8, 2)
    h, c = state(np.random.default_rng(0), 3, weights)
    for batch_sizes in ([], [0, 0]):
        schedule = Schedule(batch_sizes, np.zeros((2, 0)), np.zeros((2, 0)))
        _, h_end, c_end = run(weights, schedule, np.zeros((1, 4), np.float32), h, c)
        assert same((h, c), (h_end, c_end))


def test_the_callers_flush_mode_neither_matters_nor_changes():
    """Torch can flush denormals on its threads; ours start from them and still follow IEEE."""
    if not torch.set_flush_denormal(True):
        pytest.skip("this CPU does not flush denormals")
    try:
        for threads in (1, 3):
            denormal_cells(threads)
        assert (torch.full((1,), 3e-40) * 1 == 0).all()
    finally:
        torch.set_flush_denormal(False)


@settings(max_examples=150, deadline=None)
@given(
    sizes=st.tuples(*[st.integers(1, 40)] * 3), batch_sizes=st.lists(st.integers(0, 20), max_size=7),
    spare=st.integers(0, 2), threads=st.integers(1, 5), chunk=st.integers(0, 30), starts=st.booleans(),
    seed=st.integers(0, 99),
)
def test_random_schedules(sizes, batch_sizes, spare, threads, chunk, starts, seed):
    rng = np.random.default_rng(seed)
    weights = Weights(rng, *sizes)
    batch_sizes = sorted(batch_sizes, reverse=True)
    total = sum(batch_sizes)
    sequence_start = rng.random(total) < 0.3 if starts else None
    rows, out_rows = rng.integers(0, 6, (2, total)), [rng.permutation(total) for _ in range(2)]
    x = normal(rng, 6, sizes[0])
    h, c = state(rng, max(batch_sizes, default=0) + spare, weights)
    check(weights, Schedule(batch_sizes, rows, out_rows, sequence_start), x, h, c, clips=(0.4, 0.2), threads=threads,
          chunk=chunk)


@pytest.mark.parametrize("change, message", [
    (lambda a: a.pop("rows"), r"linear_forward\(\) misses the argument 'rows'"),
    (lambda a: a.update(row=1), r"linear_forward\(\) has no argument 'row'"),
    (lambda a: a.update(rows="x"), r"linear_forward\(\): rows: unexpected value 'x'"),
], ids=["missing", "unknown", "of another type"])
def test_wrong_names_are_refused(change, message):
    arguments = dict(input=4, output=3, epilogue=0, precision=0, packed=0, packed_size=0, x=0, rows=0, x_stride=4, y=0,
                     y_stride=3, threads=1)
    change(arguments)
    with pytest.raises(TypeError, match=message):
        native.linear_forward(**arguments)
