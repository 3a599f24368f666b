"""The C++ LSTM in bf16 on AMX tiles, or on their emulation, against the NumPy loop in float64."""

import numpy as np
import pytest
from tests.support.native_lstm import HIGH, MEDIUM, SIZES, Schedule, Weights, batch_schedule, check, isa, native, reference
from tests.support.native_lstm import run, same, state, tile_isas


@pytest.fixture(params=[(name, precision) for name in tile_isas() for precision in (HIGH, MEDIUM)])
def tile_precision(request):
    with isa(request.param[0]):
        yield request.param[1]


@pytest.mark.parametrize("inputs,dim,projection", SIZES)
def test_tile_sizes(tile_precision, inputs, dim, projection):
    rng = np.random.default_rng(0)
    weights = Weights(rng, inputs, dim, projection, scale=0.04)
    for slots in (1, 7, 16, 17, 33):
        schedule = batch_schedule(np.sort(rng.integers(1, 6, slots))[::-1], 20, rng, resets=True)
        x = rng.standard_normal((20, inputs)).astype(np.float32)
        check(weights, schedule, x, *state(rng, slots, weights), precision=tile_precision, threads=2)


def test_tiles_with_both_clips(tile_precision):
    rng = np.random.default_rng(1)
    weights = Weights(rng, 512, 1024, 512, scale=0.04)
    schedule = batch_schedule(np.sort(rng.integers(1, 9, 19))[::-1], 30, rng)
    x = rng.standard_normal((30, 512)).astype(np.float32)
    fired = check(weights, schedule, x, *state(rng, 19, weights), clips=(0.3, 0.05), precision=tile_precision)
    assert (fired > 0.1).all() and (fired < 0.99).all()


def test_tiles_same_bits(tile_precision):
    """For every thread count and chunk size, and for each sentence alone or beside others."""
    rng = np.random.default_rng(3)
    weights = Weights(rng, 70, 600, 40)
    packed = weights.pack(tile_precision)
    schedule = batch_schedule([5] * 35, 90, rng)
    x = rng.standard_normal((90, 70)).astype(np.float32)
    h, c = state(rng, 35, weights)
    options = dict(packed=packed, precision=tile_precision, clips=(0.3, 0.05))
    first = run(weights, schedule, x, h, c, **options)
    for threads, chunk in [(1, 17), (2, 0), (3, 1), (4, 50)]:
        assert same(first, run(weights, schedule, x, h, c, threads=threads, chunk=chunk, **options))
    rows = schedule.rows.reshape(2, 5, 35)
    for kept in (1, 2, 16, 20):
        part = Schedule([kept] * 5, rows[:, :, :kept].reshape(2, -1), [range(kept * 5)] * 2)
        output, h_end, c_end = run(weights, part, x, h[:kept], c[:kept], **options)
        assert same((h_end, c_end), (first[1][:kept], first[2][:kept]))


def test_tiles_pass_nan_and_infinity(tile_precision):
    rng = np.random.default_rng(6)
    weights = Weights(rng, 40, 20, 7)  # 40 inputs: sixteen put at a time, and one by one
    x = rng.standard_normal((6, 40)).astype(np.float32)
    x[1, 2], x[3, 0], x[3, 37], x[2, 5] = np.nan, np.inf, -np.inf, 3e38
    h, c = state(rng, 6, weights)
    h[4, 3], h[5, 0], c[5, 2] = np.nan, -np.inf, np.inf
    schedule = Schedule([6], [range(6)] * 2, [range(6)] * 2)
    for clips in ((np.inf, np.inf), (3.0, 3.0)):
        with np.errstate(invalid="ignore"):
            *expected, _ = reference(weights, schedule, x, h, c, clips=clips)
        for g, e in zip(run(weights, schedule, x, h, c, clips=clips, precision=tile_precision), expected):
            assert (np.isnan(g) == np.isnan(e)).all() and (g[np.isinf(e)] == e[np.isinf(e)]).all()
            usual = np.isfinite(e)
            assert usual[[0, 2]].all() and np.abs(g[usual] - e[usual]).max() < {HIGH: 1e-4, MEDIUM: 5e-2}[tile_precision]


def test_packed_size_of_tiles(tile_precision):
    plain = {HIGH: 4, MEDIUM: 2}[tile_precision] * 2 * (1024 * 16384 + 16384 + 4096 * 512)
    assert native.lstm_packed_size(512, 4096, 512, tile_precision) <= 1.1 * plain


def test_no_tiles_no_bf16():
    with isa("avx2"):
        assert native.lstm_isa(HIGH) == native.lstm_isa(MEDIUM) == ""
        with pytest.raises(ValueError, match="AMX"):
            native.lstm_packed_size(4, 8, 2, MEDIUM)
