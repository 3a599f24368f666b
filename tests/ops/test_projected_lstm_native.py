"""The C++ LSTM (csrc/projected_lstm.h) on every instruction set and precision of this machine, through raw pointers,
against a plain NumPy loop in float64. bf16 runs on AMX tiles, or on their emulation."""

import numpy as np
import pytest

from tests.support.native_lstm import (
    ENGINES,
    HIGH,
    HIGHEST,
    INF,
    ISAS,
    MEDIUM,
    SIZES,
    Schedule,
    Weights,
    batch_schedule,
    check,
    isa,
    native,
    normal,
    ragged,
    reference,
    run,
    same,
    state,
)


@pytest.fixture(params=ENGINES, ids=lambda engine: f"{engine[0]}-{engine[1]}")
def precision(request):
    with isa(request.param[0]):
        yield request.param[1]


@pytest.fixture(params=ISAS)
def each_isa(request):
    with isa(request.param):
        yield request.param


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_sizes(precision, sizes):
    rng = np.random.default_rng(0)
    weights = Weights(rng, *sizes, scale=0.1 if precision == HIGHEST else 0.04)
    schedules = [batch_schedule([9, 9, 7, 4, 4, 1, 1], 20, rng)]
    if precision != HIGHEST:
        schedules = [ragged(rng, slots, 5, 20, starts=True) for slots in (1, 7, 16, 17, 33)]
    for schedule in schedules:
        check(weights, schedule, normal(rng, 20, sizes[0]), *state(rng, schedule.batch_sizes[0], weights),
              precision=precision, threads=1 if precision == HIGHEST else 2)


@pytest.mark.parametrize("slots", [1, 2, 3, 14, 15, 17, 64])
@pytest.mark.parametrize("steps", [1, 6])
def test_slots(each_isa, slots, steps):
    rng = np.random.default_rng(slots)
    weights = Weights(rng, 24, 37, 11)
    schedule, x = ragged(rng, slots, steps, 12, starts=True), normal(rng, 12, 2 * 24)
    h, c = state(rng, slots, weights)
    check(weights, schedule, x, h, c)
    check(weights, schedule, x, h, c, initial_state=tuple(s[0] for s in state(rng, 1, weights)), threads=2)


def test_original_size_with_both_clips(precision):
    rng = np.random.default_rng(1)
    full = precision == HIGHEST and native.lstm_isa(HIGHEST) == "avx512"
    weights = Weights(rng, 512, 4096 if full else 1024, 512, scale=0.04)
    slots = 9 if precision == HIGHEST else 19
    fired = check(weights, ragged(rng, slots, 8, 30), normal(rng, 30, 512), *state(rng, slots, weights),
                  clips=(0.3, 0.05), threads=2 if precision == HIGHEST else 1, precision=precision)
    assert (fired > 0.1).all() and (fired < 0.99).all()


def test_poison_and_rows_left_alone(each_isa):
    rng = np.random.default_rng(2)
    weights = Weights(rng, 8, 19, 6)
    schedule = batch_schedule([4, 2], 5, rng)
    schedule.out_rows[:, 3] = -1
    h, c = state(rng, 4, weights)
    output, h_end, c_end = run(weights, schedule, normal(rng, 5, 8), h, c, output_rows=9)
    for d in range(2):
        named = set(schedule.out_rows[d]) - {-1}
        written = ~np.isnan(output[:, d * 6 : (d + 1) * 6])
        assert [row.all() for row in written] == [k in named for k in range(9)]
        assert written.sum() == 6 * len(named)
    assert (h_end[2:] == h[2:]).all() and (c_end[2:] == c[2:]).all()


@pytest.mark.parametrize("sizes", [(300, 96, 40), (300, 48, 48), (70, 600, 40)], ids=str)
def test_same_bits_for_threads_and_chunks(precision, sizes):
    rng = np.random.default_rng(3)
    weights = Weights(rng, *sizes)
    schedule, x = ragged(rng, 37, 11, 90, starts=True), normal(rng, 90, sizes[0])
    h, c = state(rng, 37, weights)
    options = dict(packed=weights.pack(precision), precision=precision, clips=(0.3, 0.05))
    first = run(weights, schedule, x, h, c, **options)
    for threads, chunk in [(1, 1), (1, 17), (2, 0), (2, 40), (3, 1), (4, 50), (6, 40), (6, 0)]:
        assert same(first, run(weights, schedule, x, h, c, threads=threads, chunk=chunk, **options))


def test_same_bits_alone_and_in_a_batch(precision):
    rng = np.random.default_rng(4)
    sizes = (270, 520, 24) if precision == HIGHEST else (70, 600, 40)
    weights = Weights(rng, *sizes, scale=0.2 if precision == HIGHEST else 0.1)
    options = dict(packed=weights.pack(precision), precision=precision)
    lengths = np.sort(rng.integers(1, 8, 33))[::-1]
    schedule, x = batch_schedule(lengths, 60, rng), normal(rng, 60, sizes[0])
    h, c = state(rng, 33, weights)
    output, h_end, c_end = run(weights, schedule, x, h, c, threads=2, **options)
    first = np.concatenate([[0], np.cumsum(lengths)])
    for k in range(33):
        mine = slice(first[k], first[k + 1])
        forward, n = schedule.rows[0][np.isin(schedule.out_rows[0], range(first[k], first[k + 1]))], lengths[k]
        alone = Schedule([1] * n, [forward, forward[::-1]], [range(n), range(n)[::-1]])
        got = run(weights, alone, x, h[k : k + 1], c[k : k + 1], **options)
        assert same(got, (output[mine], h_end[k : k + 1], c_end[k : k + 1]))


@pytest.mark.parametrize("slots", [1, 2, 16, 20])
def test_same_bits_beside_more_slots(precision, slots):
    rng = np.random.default_rng(3)
    weights = Weights(rng, 70, 600, 40)
    schedule, x = batch_schedule([5] * 35, 90, rng), normal(rng, 90, 70)
    h, c = state(rng, 35, weights)
    options = dict(packed=weights.pack(precision), precision=precision, clips=(0.3, 0.05))
    _, h_all, c_all = run(weights, schedule, x, h, c, **options)
    rows = schedule.rows.reshape(2, 5, 35)[:, :, :slots].reshape(2, -1)
    part = Schedule([slots] * 5, rows, [range(slots * 5)] * 2)
    _, h_end, c_end = run(weights, part, x, h[:slots], c[:slots], **options)
    assert same((h_end, c_end), (h_all[:slots], c_all[:slots]))


def test_two_calls_are_one_long_call(each_isa):
    rng = np.random.default_rng(5)
    weights = Weights(rng, 10, 30, 9)
    packed, x, rows = weights.pack(), normal(rng, 24, 10), np.arange(24).reshape(8, 3)
    h, c = state(rng, 3, weights)
    long = run(weights, Schedule([3] * 8, [rows.ravel()] * 2, [range(24)] * 2), x, h, c, packed=packed)
    outputs = []
    for part in (rows[:3], rows[3:]):
        schedule = Schedule([3] * len(part), [part.ravel()] * 2, [range(part.size)] * 2)
        output, h, c = run(weights, schedule, x, h, c, packed=packed)
        outputs.append(output)
    assert same(long, (np.concatenate(outputs), h, c))


def test_nan_and_infinity(precision):
    rng = np.random.default_rng(6)
    weights = Weights(rng, 40, 20, 7)  # 40 inputs: tiles take sixteen at a time, and the rest one by one
    x = normal(rng, 6, 40)
    x[1, 2], x[3, 0], x[3, 37], x[2, 5] = np.nan, np.inf, -np.inf, 3.0 if precision == HIGHEST else 3e38
    schedule = Schedule([6], [range(6)] * 2, [range(6)] * 2)
    h, c = state(rng, 6, weights)
    h[4, 3], h[5, 0], c[5, 2], c[5, 21] = np.nan, -np.inf, np.inf, -np.inf
    for clips in ((INF, INF), (3.0, 3.0)):
        with np.errstate(invalid="ignore"):
            *expected, _ = reference(weights, schedule, x, h, c, clips=clips)
        got = run(weights, schedule, x, h, c, clips=clips, precision=precision)
        for g, e in zip(got, expected):
            assert (np.isnan(g) == np.isnan(e)).all() and (np.isinf(g) == np.isinf(e)).all()
            assert (g[np.isinf(e)] == e[np.isinf(e)]).all()
            usual = np.isfinite(e)
            assert usual[[0, 2]].all()
            assert np.abs(g[usual] - e[usual]).max() < {HIGHEST: 1e-5, HIGH: 1e-4, MEDIUM: 5e-2}[precision]
        assert np.isnan(got[0][[1, 4]]).any(1).all() and not np.isnan(got[0][[0, 2]]).any()


def test_packed_size_is_within_a_tenth(precision):
    plain = {HIGHEST: 4, HIGH: 4, MEDIUM: 2}[precision] * 2 * (1024 * 16384 + 16384 + 4096 * 512)
    assert native.lstm_packed_size(512, 4096, 512, precision) <= 1.1 * plain


def test_no_tiles_no_bf16():
    with isa("avx2"):
        assert native.lstm_isa(HIGH) == native.lstm_isa(MEDIUM) == ""
        with pytest.raises(ValueError, match="AMX"):
            native.lstm_packed_size(4, 8, 2, MEDIUM)
