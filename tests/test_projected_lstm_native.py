"""The C++ LSTM (csrc/projected_lstm.h) against a plain NumPy loop in float64, through raw pointers."""

import concurrent.futures
import os
import threading

import numpy as np
import pytest

native = pytest.importorskip("elmo_fast._native", reason="the native module is not built")
if not hasattr(native, "lstm_forward"):
    pytest.skip("the native module has no CPU engine", allow_module_level=True)

HIGHEST, HIGH, MEDIUM = range(3)
TOLERANCE = {HIGHEST: 2e-6, HIGH: 4e-5, MEDIUM: 3e-2}  # relative Frobenius error against float64
INF = float("inf")


def reachable_isas():
    """Every instruction set that this machine runs `highest` on."""
    found = []
    for name in ("generic", "avx2", "avx512"):
        with isa(name):
            if native.lstm_isa(HIGHEST) == name:
                found.append(name)
    return found


class isa:
    """Caps the instruction set inside a with block."""

    def __init__(self, name):
        self.name = name

    def __enter__(self):
        self.before = os.environ.get("ELMO_FAST_CPU_ISA")
        os.environ["ELMO_FAST_CPU_ISA"] = self.name

    def __exit__(self, *_):
        if self.before is None:
            del os.environ["ELMO_FAST_CPU_ISA"]
        else:
            os.environ["ELMO_FAST_CPU_ISA"] = self.before


@pytest.fixture(params=reachable_isas())
def each_isa(request):
    with isa(request.param):
        yield request.param


def tile_isas():
    """The instruction sets here that run bf16 tiles: the emulation needs AVX-512."""
    found = []
    for name in ("amx", "amx-emulated"):
        with isa(name):
            if native.lstm_isa(MEDIUM) == name:
                found.append(name)
    return found


@pytest.fixture(params=[(name, precision) for name in tile_isas() for precision in (HIGH, MEDIUM)])
def tile_precision(request):
    with isa(request.param[0]):
        yield request.param[1]


def address(array):
    return 0 if array is None else array.ctypes.data


def aligned_bytes(size, offset=0):
    """A uint8 array that begins `offset` bytes after a multiple of 64, filled with 0xff."""
    raw = np.full(size + 128, 255, np.uint8)
    begin = -raw.ctypes.data % 64 + offset
    return raw[begin : begin + size]


class Weights:
    """Both directions of one layer, bilm-tf's layout, packed on demand."""

    def __init__(self, rng, inputs, dim, projection, scale=0.1):
        self.inputs, self.dim, self.projection = inputs, dim, projection
        shape = (inputs + projection, 4 * dim)
        self.w = [rng.standard_normal(shape).astype(np.float32) * np.float32(scale) for _ in range(2)]
        self.b = [rng.standard_normal(4 * dim).astype(np.float32) * np.float32(scale) for _ in range(2)]
        self.p = [None, None]
        if dim != projection:
            self.p = [rng.standard_normal((dim, projection)).astype(np.float32) * np.float32(scale) for _ in range(2)]

    def pack(self, precision=HIGHEST, offset=0):
        size = native.lstm_packed_size(self.inputs, self.dim, self.projection, precision)
        packed = aligned_bytes(size, offset)
        native.lstm_pack(
            self.inputs, self.dim, self.projection, precision, [address(w) for w in self.w],
            [address(b) for b in self.b], [address(p) for p in self.p], address(packed), packed.size,
        )  # fmt: skip
        return packed


class Schedule:
    """live [T], rows [2, S], out_rows [2, S], reset [S]."""

    def __init__(self, live, rows, out_rows, reset=None):
        self.live = np.asarray(live, np.int32)
        self.rows = np.ascontiguousarray(rows, np.int32)
        self.out_rows = np.ascontiguousarray(out_rows, np.int32)
        self.reset = None if reset is None else np.asarray(reset, np.uint8)

    @property
    def size(self):
        return int(self.live.sum())


def batch_schedule(lengths, distinct, rng, resets=False):
    """Sentences of non-increasing lengths, one a lane; the backward direction reads each reversed."""
    lengths = np.asarray(lengths)
    live = [(lengths > t).sum() for t in range(lengths.max())]
    first = np.concatenate([[0], np.cumsum(lengths)])
    word = rng.integers(0, distinct, first[-1])
    forward = [first[k] + t for t, n in enumerate(live) for k in range(n)]
    backward = [first[k] + lengths[k] - 1 - t for t, n in enumerate(live) for k in range(n)]
    reset = rng.random(len(forward)) < 0.2 if resets else None
    return Schedule(live, [word[forward], word[backward]], [forward, backward], reset)


def run(weights, schedule, inputs, h, c, *, clips=(INF, INF), packed=None, precision=HIGHEST, threads=1, chunk=0,
        output_rows=None, reset_state=(None, None)):  # fmt: skip
    """(output [N, 2P] poisoned before, h, c) of one call."""
    packed = weights.pack(precision) if packed is None else packed
    rows = schedule.size if output_rows is None else output_rows
    output = np.full((rows, 2 * weights.projection), np.nan, np.float32)
    h, c = h.copy(), c.copy()
    native.lstm_forward(
        input=weights.inputs, dim=weights.dim, projection=weights.projection, precision=precision,
        packed=address(packed), packed_size=packed.size, inputs=address(inputs), input_rows=len(inputs),
        split_input=inputs.shape[1] == 2 * weights.inputs, steps=len(schedule.live), live=address(schedule.live),
        step_rows=schedule.size, rows=address(schedule.rows), out_rows=address(schedule.out_rows),
        reset=address(schedule.reset), reset_h=address(reset_state[0]), reset_c=address(reset_state[1]),
        output=address(output), output_rows=rows, lanes=len(h), h=address(h), c=address(c), cell_clip=clips[0],
        proj_clip=clips[1], threads=threads, chunk_rows=chunk,
    )  # fmt: skip
    return output, h, c


def sigmoid(x):
    with np.errstate(over="ignore"):
        return 1 / (1 + np.exp(-x))


def clamp(x, limit):
    return np.minimum(np.maximum(x, -limit), limit)


def reference(weights, schedule, inputs, h, c, *, clips=(INF, INF), reset_state=(None, None)):
    """The same in float64, step by step. Also how often each clip changed a value."""
    p_size, dim = weights.projection, weights.dim
    output = np.full((schedule.size, 2 * p_size), np.nan)
    h, c = h.astype(np.float64), c.astype(np.float64)
    fired, total = np.zeros(2), np.zeros(2)
    for d in range(2):
        w, b = weights.w[d].astype(np.float64), weights.b[d].astype(np.float64)
        p = None if weights.p[d] is None else weights.p[d].astype(np.float64)
        hs, cs = slice(d * p_size, (d + 1) * p_size), slice(d * dim, (d + 1) * dim)
        begin = 0
        half = inputs.shape[1] == 2 * weights.inputs
        x_all = inputs[:, d * weights.inputs : (d + 1) * weights.inputs] if half else inputs
        for n in schedule.live:
            part = slice(begin, begin + n)
            if schedule.reset is not None:
                hit = np.flatnonzero(schedule.reset[part])
                h[hit, hs] = 0 if reset_state[0] is None else reset_state[0][hs]
                c[hit, cs] = 0 if reset_state[1] is None else reset_state[1][cs]
            x = x_all[schedule.rows[d, part]].astype(np.float64)
            i, j, f, o = np.split(np.concatenate([x, h[:n, hs]], 1) @ w + b, 4, 1)
            free = sigmoid(f + 1) * c[:n, cs] + sigmoid(i) * np.tanh(j)
            c[:n, cs] = clamp(free, clips[0])
            m = sigmoid(o) * np.tanh(c[:n, cs])
            free_h = m if p is None else m @ p
            h[:n, hs] = m if p is None else clamp(free_h, clips[1])
            fired += (np.abs(free) > clips[0]).sum(), 0 if p is None else (np.abs(free_h) > clips[1]).sum()
            total += free.size, free_h.size
            output[schedule.out_rows[d, part], hs] = h[:n, hs]
            begin += n
    return output, h, c, fired / np.maximum(total, 1)


def error(got, expected):
    assert np.isfinite(got).all()
    return np.linalg.norm(got - expected) / max(np.linalg.norm(expected), 1e-300)


def state(rng, lanes, weights, scale=0.1):
    return (
        rng.standard_normal((lanes, 2 * weights.projection)).astype(np.float32) * np.float32(scale),
        rng.standard_normal((lanes, 2 * weights.dim)).astype(np.float32) * np.float32(scale),
    )


def check(weights, schedule, inputs, h, c, **options):
    got = run(weights, schedule, inputs, h, c, **options)
    limit = TOLERANCE[options.get("precision", HIGHEST)]
    for name in ("threads", "chunk", "packed", "precision"):
        options.pop(name, None)
    *expected, fired = reference(weights, schedule, inputs, h, c, **options)
    for g, e in zip(got, expected):
        assert error(g, e) <= limit
    return fired


SIZES = [(37, 37, 11), (16, 64, 64), (11, 37, 37), (40, 33, 16), (512, 128, 512), (32, 256, 48), (1, 1, 1), (7, 5, 2)]


@pytest.mark.parametrize("inputs,dim,projection", SIZES)
def test_sizes(each_isa, inputs, dim, projection):
    rng = np.random.default_rng(0)
    weights = Weights(rng, inputs, dim, projection)
    schedule = batch_schedule([9, 9, 7, 4, 4, 1, 1], 20, rng)
    x = rng.standard_normal((20, inputs)).astype(np.float32)
    check(weights, schedule, x, *state(rng, 7, weights))


@pytest.mark.parametrize("lanes", [1, 2, 3, 14, 15, 17, 64])
@pytest.mark.parametrize("steps", [1, 6])
def test_lanes(each_isa, lanes, steps):
    rng = np.random.default_rng(lanes)
    weights = Weights(rng, 24, 37, 11)
    lengths = np.sort(rng.integers(1, steps + 1, lanes))[::-1]
    schedule = batch_schedule(lengths, 12, rng, resets=True)
    x = rng.standard_normal((12, 2 * 24)).astype(np.float32)
    h, c = state(rng, lanes, weights)
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


def bits(arrays):
    return [a.view(np.int32).copy() for a in arrays]


def same(a, b):
    return all((x == y).all() for x, y in zip(bits(a), bits(b)))


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


def test_denormals_are_kept(each_isa):
    """A cell that is denormal stays so: forget gate open, input gate shut."""
    rng = np.random.default_rng(7)
    weights = Weights(rng, 4, 8, 8, scale=0.0)
    for b in weights.b:
        b[:8], b[16:24] = -200.0, 50.0
    c = np.full((2, 16), 3e-40, np.float32)
    c[1] *= -1
    schedule = Schedule([2], [[0, 1]] * 2, [[0, 1]] * 2)
    output, _, c_end = run(weights, schedule, np.zeros((2, 4), np.float32), np.zeros((2, 16), np.float32), c)
    assert (c_end == c).all()
    np.testing.assert_allclose(output, c / 2, rtol=0, atol=1.5e-45)


@pytest.mark.parametrize("offset", [4, 20])
def test_packed_weights_anywhere(each_isa, offset):
    rng = np.random.default_rng(8)
    weights = Weights(rng, 30, 50, 20)
    schedule = batch_schedule([5, 3, 1], 7, rng)
    x = rng.standard_normal((7, 30)).astype(np.float32)
    h, c = state(rng, 3, weights)
    assert same(run(weights, schedule, x, h, c), run(weights, schedule, x, h, c, packed=weights.pack(offset=offset)))


def test_packed_size_is_within_a_tenth(each_isa):
    plain = 4 * 2 * (1024 * 16384 + 16384 + 4096 * 512)
    assert native.lstm_packed_size(512, 4096, 512, HIGHEST) <= 1.1 * plain


def test_concurrent_calls():
    rng = np.random.default_rng(9)
    weights = Weights(rng, 64, 160, 32)
    packed = weights.pack()
    schedule = batch_schedule([12, 9, 9, 2], 30, rng)
    x = rng.standard_normal((30, 64)).astype(np.float32)
    h, c = state(rng, 4, weights)
    expected = run(weights, schedule, x, h, c, packed=packed)
    with concurrent.futures.ThreadPoolExecutor(5) as pool:
        jobs = [pool.submit(run, weights, schedule, x, h, c, packed=packed, threads=1 + k % 5) for k in range(40)]
        assert all(same(expected, job.result()) for job in jobs)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this platform")
def test_a_forked_child_has_its_own_threads():
    rng = np.random.default_rng(10)
    weights = Weights(rng, 16, 40, 8)
    schedule = batch_schedule([6, 3], 8, rng)
    x = rng.standard_normal((8, 16)).astype(np.float32)
    h, c = state(rng, 2, weights)
    expected = run(weights, schedule, x, h, c, threads=4)
    child = os.fork()
    if child == 0:
        good = False
        try:
            good = same(expected, run(weights, schedule, x, h, c, threads=4))
        finally:
            os._exit(0 if good else 1)
    timer = threading.Timer(60, os.kill, (child, 9))
    timer.start()
    _, status = os.waitpid(child, 0)
    timer.cancel()
    assert status == 0


def test_wrong_sizes_are_refused():
    rng = np.random.default_rng(11)
    weights = Weights(rng, 4, 8, 2)
    packed = weights.pack()
    x = rng.standard_normal((3, 4)).astype(np.float32)
    h, c = state(rng, 2, weights)
    good = dict(live=[2, 1], rows=[[0, 1, 2]] * 2, out_rows=[[0, 1, 2]] * 2)
    run(weights, Schedule(**good), x, h, c, packed=packed)
    for change, message in [
        (dict(live=[1, 2]), "live"), (dict(live=[3, 0]), "live"), (dict(live=[2, 2, -1]), "live"),
        (dict(rows=[[0, 1, 2], [0, 1, 3]]), "rows"), (dict(rows=[[0, -1, 2], [0, 1, 2]]), "rows"),
        (dict(out_rows=[[0, 1, 3], [0, 1, 2]]), "out_rows"), (dict(out_rows=[[0, 1, -2], [0, 1, 2]]), "out_rows"),
    ]:  # fmt: skip
        with pytest.raises(ValueError, match=message):
            run(weights, Schedule(**{**good, **change}), x, h, c, packed=packed)
    for options, message in [
        (dict(clips=(0.0, 1.0)), "clip"), (dict(clips=(1.0, float("nan"))), "clip"), (dict(threads=0), "threads"),
        (dict(chunk=-1), "chunk"), (dict(precision=3), "precision"), (dict(packed=packed[:-1]), "packed"),
        (dict(packed=np.zeros_like(packed)), "packed"),
    ]:  # fmt: skip
        with pytest.raises(ValueError, match=message):
            run(weights, Schedule(**good), x, h, c, **{"packed": packed, **options})
    with pytest.raises(ValueError, match="packed: expected lstm"):
        run(Weights(rng, 4, 7, 2), Schedule(**good), x, h, c, packed=packed)


def test_packed_for_another_instruction_set_is_refused():
    isas = reachable_isas()
    if len(isas) < 2:
        pytest.skip("one instruction set here")
    rng = np.random.default_rng(12)
    weights = Weights(rng, 4, 8, 2)
    with isa(isas[0]):
        packed = aligned_bytes(1 << 16)
        packed[: weights.pack().size] = weights.pack()
    with isa(isas[1]), pytest.raises(ValueError, match=f"packed.*{isas[1]}.*{isas[0]}"):
        run(weights, Schedule([1], [[0], [0]], [[0], [0]]), np.zeros((1, 4), np.float32), *state(rng, 1, weights),
            packed=packed)  # fmt: skip


def test_no_steps():
    weights = Weights(np.random.default_rng(13), 4, 8, 2)
    h, c = state(np.random.default_rng(0), 3, weights)
    for live in ([], [0, 0]):
        schedule = Schedule(live, np.zeros((2, 0)), np.zeros((2, 0)))
        _, h_end, c_end = run(weights, schedule, np.zeros((1, 4), np.float32), h, c)
        assert same((h, c), (h_end, c_end))
