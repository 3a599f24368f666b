"""The C++ LSTM in bf16 on AMX tiles, or on their emulation, against the NumPy loop in float64."""

import numpy as np
import pytest
from native_lstm import HIGH, MEDIUM, SIZES, Schedule, Weights, batch_schedule, check, isa, native, run, same, state
from native_lstm import tile_isas


@pytest.fixture(params=[(name, precision) for name in tile_isas() for precision in (HIGH, MEDIUM)])
def tile_precision(request):
    with isa(request.param[0]):
        yield request.param[1]


@pytest.mark.parametrize("inputs,dim,projection", SIZES)
def test_tile_sizes(tile_precision, inputs, dim, projection):
    rng = np.random.default_rng(0)
    weights = Weights(rng, inputs, dim, projection, scale=0.04)
    for lanes in (1, 7, 16, 17, 33):
        schedule = batch_schedule(np.sort(rng.integers(1, 6, lanes))[::-1], 20, rng, resets=True)
        x = rng.standard_normal((20, inputs)).astype(np.float32)
        check(weights, schedule, x, *state(rng, lanes, weights), precision=tile_precision, threads=2)


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


def test_tiles_pass_nan(tile_precision):
    rng = np.random.default_rng(6)
    weights = Weights(rng, 6, 20, 7)
    x = rng.standard_normal((3, 6)).astype(np.float32)
    x[1, 2] = np.nan
    h, c = state(rng, 3, weights)
    schedule = Schedule([3], [range(3)] * 2, [range(3)] * 2)
    output, _, _ = run(weights, schedule, x, h, c, clips=(3.0, 3.0), precision=tile_precision)
    assert np.isnan(output[1]).all() and np.isfinite(output[[0, 2]]).all()


def test_packed_size_of_tiles(tile_precision):
    plain = {HIGH: 4, MEDIUM: 2}[tile_precision] * 2 * (1024 * 16384 + 16384 + 4096 * 512)
    assert native.lstm_packed_size(512, 4096, 512, tile_precision) <= 1.1 * plain


def test_no_tiles_no_bf16():
    with isa("avx2"):
        assert native.lstm_isa(HIGH) == native.lstm_isa(MEDIUM) == ""
        with pytest.raises(ValueError, match="AMX"):
            native.lstm_packed_size(4, 8, 2, MEDIUM)
