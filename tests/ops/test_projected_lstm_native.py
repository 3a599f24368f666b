"""The C++ LSTM (csrc/projected_lstm.h) in fp32 against a plain NumPy loop in float64, through raw pointers."""

import numpy as np
import pytest
from tests.support.native_lstm import INF, SIZES, Schedule, Weights, batch_schedule, check, isa, reachable_isas, reference, run, same
from tests.support.native_lstm import state


@pytest.fixture(params=reachable_isas())
def each_isa(request):
    with isa(request.param):
        yield request.param


@pytest.mark.parametrize("inputs,dim,projection", SIZES)
def test_sizes(each_isa, inputs, dim, projection):
    rng = np.random.default_rng(0)
    weights = Weights(rng, inputs, dim, projection)
    schedule = batch_schedule([9, 9, 7, 4, 4, 1, 1], 20, rng)
    x = rng.standard_normal((20, inputs)).astype(np.float32)
    check(weights, schedule, x, *state(rng, 7, weights))


@pytest.mark.parametrize("slots", [1, 2, 3, 14, 15, 17, 64])
@pytest.mark.parametrize("steps", [1, 6])
def test_slots(each_isa, slots, steps):
    rng = np.random.default_rng(slots)
    weights = Weights(rng, 24, 37, 11)
    lengths = np.sort(rng.integers(1, steps + 1, slots))[::-1]
    schedule = batch_schedule(lengths, 12, rng, resets=True)
    x = rng.standard_normal((12, 2 * 24)).astype(np.float32)
    h, c = state(rng, slots, weights)
    check(weights, schedule, x, h, c)
    check(weights, schedule, x, h, c, reset_state=tuple(s[0] for s in state(rng, 1, weights)), threads=2)


def test_original_size_with_both_clips(each_isa):
    rng = np.random.default_rng(1)
    weights = Weights(rng, 512, 4096 if each_isa == "avx512" else 1024, 512, scale=0.04)
    lengths = np.sort(rng.integers(1, 9, 9))[::-1]
    schedule = batch_schedule(lengths, 30, rng)
    x = rng.standard_normal((30, 512)).astype(np.float32)
    fired = check(weights, schedule, x, *state(rng, 9, weights), clips=(0.3, 0.05), threads=2)
    assert (fired > 0.1).all() and (fired < 0.99).all()


def test_poison_and_rows_left_alone(each_isa):
    rng = np.random.default_rng(2)
    weights = Weights(rng, 8, 19, 6)
    schedule = batch_schedule([4, 2], 5, rng)
    schedule.out_rows[:, 3] = -1
    x = rng.standard_normal((5, 8)).astype(np.float32)
    h, c = state(rng, 4, weights)
    output, h_end, c_end = run(weights, schedule, x, h, c, output_rows=9)
    for d in range(2):
        named = set(schedule.out_rows[d]) - {-1}
        written = ~np.isnan(output[:, d * 6 : (d + 1) * 6])
        assert [row.all() for row in written] == [k in named for k in range(9)]
        assert written.sum() == 6 * len(named)
    assert (h_end[2:] == h[2:]).all() and (c_end[2:] == c[2:]).all()


@pytest.mark.parametrize("dim,projection", [(96, 40), (48, 48)])
def test_same_bits_for_threads_and_chunks(each_isa, dim, projection):
    rng = np.random.default_rng(3)
    weights = Weights(rng, 300, dim, projection)
    packed = weights.pack()
    schedule = batch_schedule(np.sort(rng.integers(1, 12, 37))[::-1], 90, rng, resets=True)
    x = rng.standard_normal((90, 300)).astype(np.float32)
    h, c = state(rng, 37, weights)
    first = run(weights, schedule, x, h, c, packed=packed, clips=(0.3, 0.05))
    for threads in (1, 2, 3, 4, 6):
        for chunk in (1, 40, 0):
            assert same(first, run(weights, schedule, x, h, c, packed=packed, threads=threads, chunk=chunk,
                                   clips=(0.3, 0.05)))  # fmt: skip


def test_same_bits_alone_and_in_a_batch(each_isa):
    rng = np.random.default_rng(4)
    weights = Weights(rng, 270, 520, 24, scale=0.2)
    packed = weights.pack()
    lengths = np.sort(rng.integers(1, 8, 33))[::-1]
    schedule = batch_schedule(lengths, 60, rng)
    x = rng.standard_normal((60, 270)).astype(np.float32)
    h, c = state(rng, 33, weights)
    output, h_end, c_end = run(weights, schedule, x, h, c, packed=packed, threads=2)
    first = np.concatenate([[0], np.cumsum(lengths)])
    for k in range(33):
        mine = slice(first[k], first[k + 1])
        forward, n = schedule.rows[0][np.isin(schedule.out_rows[0], range(first[k], first[k + 1]))], lengths[k]
        alone = Schedule([1] * n, [forward, forward[::-1]], [range(n), range(n)[::-1]])
        got = run(weights, alone, x, h[k : k + 1], c[k : k + 1], packed=packed)
        assert same(got, (output[mine], h_end[k : k + 1], c_end[k : k + 1]))


def test_two_calls_are_one_long_call(each_isa):
    rng = np.random.default_rng(5)
    weights = Weights(rng, 10, 30, 9)
    packed = weights.pack()
    x = rng.standard_normal((24, 10)).astype(np.float32)
    rows = np.arange(24).reshape(8, 3)
    whole = Schedule([3] * 8, [rows.ravel()] * 2, [range(24)] * 2)
    h, c = state(rng, 3, weights)
    long = run(weights, whole, x, h, c, packed=packed)
    parts = []
    for part in (rows[:3], rows[3:]):
        schedule = Schedule([3] * len(part), [part.ravel()] * 2, [range(part.size)] * 2)
        output, h, c = run(weights, schedule, x, h, c, packed=packed)
        parts.append(output)
    assert same(long, (np.concatenate(parts), h, c))


def test_nan_and_infinity(each_isa):
    rng = np.random.default_rng(6)
    weights = Weights(rng, 6, 20, 7)
    x = rng.standard_normal((6, 6)).astype(np.float32)
    x[1, 2], x[3, 0] = np.nan, np.inf
    schedule = Schedule([6], [range(6)] * 2, [range(6)] * 2)
    h, c = state(rng, 6, weights)
    h[4, 3], c[5, 2], c[5, 21] = np.nan, np.inf, -np.inf
    for clips in ((INF, INF), (3.0, 3.0)):
        with np.errstate(invalid="ignore"):
            *expected, _ = reference(weights, schedule, x, h, c, clips=clips)
        got = run(weights, schedule, x, h, c, clips=clips)
        for g, e in zip(got, expected):
            assert (np.isnan(g) == np.isnan(e)).all()
            assert (np.isinf(g) == np.isinf(e)).all() and (np.sign(g[np.isinf(e)]) == np.sign(e[np.isinf(e)])).all()
            usual = np.isfinite(e)
            assert np.abs(g[usual] - e[usual]).max() < 1e-5
        assert np.isnan(got[0][[1, 4]]).any(1).all() and not np.isnan(got[0][[0, 2]]).any()
