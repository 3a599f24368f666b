"""What the tests of the C++ LSTM share: layers, schedules, one native call, and the same in NumPy float64."""

import contextlib
import os

import numpy as np
import pytest

native = pytest.importorskip("elmo_fast._native", reason="the native module is not built")
if not hasattr(native, "lstm_forward"):
    pytest.skip("the native module has no CPU engine", allow_module_level=True)

HIGHEST, HIGH, MEDIUM = range(3)
TOLERANCE = {HIGHEST: 2e-6, HIGH: 4e-5, MEDIUM: 3e-2}  # relative Frobenius error against float64
INF = float("inf")
SIZES = [(37, 37, 11), (16, 64, 64), (11, 37, 37), (40, 33, 16), (512, 128, 512), (32, 256, 48), (1, 1, 1), (7, 5, 2)]


@contextlib.contextmanager
def isa(name):
    """Caps the instruction set inside a with block."""
    before = os.environ.get("ELMO_FAST_CPU_ISA")
    os.environ["ELMO_FAST_CPU_ISA"] = name
    try:
        yield
    finally:
        del os.environ["ELMO_FAST_CPU_ISA"]
        if before is not None:
            os.environ["ELMO_FAST_CPU_ISA"] = before


def _runs(name, precision):
    with isa(name):
        return native.lstm_isa(precision) == name


ISAS = [name for name in ("generic", "avx2", "avx512") if _runs(name, HIGHEST)]
TILE_ISAS = [name for name in ("amx", "amx-emulated") if _runs(name, MEDIUM)]  # the emulation needs AVX-512
ENGINES = [(name, HIGHEST) for name in ISAS] + [(name, precision) for name in TILE_ISAS for precision in (HIGH, MEDIUM)]


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
        self.w = [normal(rng, inputs + projection, 4 * dim, scale=scale) for _ in range(2)]
        self.b = [normal(rng, 4 * dim, scale=scale) for _ in range(2)]
        self.p = [normal(rng, dim, projection, scale=scale) if dim != projection else None for _ in range(2)]

    def pack(self, precision=HIGHEST, offset=0):
        size = native.lstm_packed_size(self.inputs, self.dim, self.projection, precision)
        packed = aligned_bytes(size, offset)
        native.lstm_pack(
            self.inputs, self.dim, self.projection, precision, [address(w) for w in self.w],
            [address(b) for b in self.b], [address(p) for p in self.p], address(packed), packed.size)
        return packed


class Schedule:
    """batch_sizes [T], rows [2, S], out_rows [2, S], sequence_start [S]."""

    def __init__(self, batch_sizes, rows, out_rows, sequence_start=None):
        self.batch_sizes = np.asarray(batch_sizes, np.int32)
        self.rows = np.ascontiguousarray(rows, np.int32)
        self.out_rows = np.ascontiguousarray(out_rows, np.int32)
        self.sequence_start = None if sequence_start is None else np.asarray(sequence_start, np.uint8)

    @property
    def size(self):
        return int(self.batch_sizes.sum())


def batch_schedule(lengths, unique, rng, starts=False):
    """Sentences of non-increasing lengths, one a slot; the backward direction reads each reversed."""
    lengths = np.asarray(lengths)
    sizes = [(lengths > t).sum() for t in range(lengths.max())]
    first = np.concatenate([[0], np.cumsum(lengths)])
    word = rng.integers(0, unique, first[-1])
    forward = [first[k] + t for t, n in enumerate(sizes) for k in range(n)]
    backward = [first[k] + lengths[k] - 1 - t for t, n in enumerate(sizes) for k in range(n)]
    sequence_start = rng.random(len(forward)) < 0.2 if starts else None
    return Schedule(sizes, [word[forward], word[backward]], [forward, backward], sequence_start)


def ragged(rng, slots, steps, unique, starts=False):
    """`batch_schedule` of random lengths from 1 to `steps`."""
    return batch_schedule(np.sort(rng.integers(1, steps + 1, slots))[::-1], unique, rng, starts)


def normal(rng, *shape, scale=1.0):
    return rng.standard_normal(shape).astype(np.float32) * np.float32(scale)


def run(weights, schedule, inputs, h, c, *, clips=(INF, INF), packed=None, precision=HIGHEST, threads=1, chunk=0,
        output_rows=None, initial_state=(None, None)):
    """(output [N, 2P] poisoned before, h, c) of one call."""
    packed = weights.pack(precision) if packed is None else packed
    rows = schedule.size if output_rows is None else output_rows
    output = np.full((rows, 2 * weights.projection), np.nan, np.float32)
    h, c = h.copy(), c.copy()
    native.lstm_forward(
        input=weights.inputs, dim=weights.dim, projection=weights.projection, precision=precision,
        packed=address(packed), packed_size=packed.size, inputs=address(inputs), input_rows=len(inputs),
        split_input=inputs.shape[1] == 2 * weights.inputs, steps=len(schedule.batch_sizes),
        batch_sizes=address(schedule.batch_sizes), packed_rows=schedule.size, rows=address(schedule.rows),
        out_rows=address(schedule.out_rows), sequence_start=address(schedule.sequence_start),
        initial_h=address(initial_state[0]), initial_c=address(initial_state[1]), output=address(output),
        output_rows=rows, slots=len(h), h=address(h), c=address(c), cell_clip=clips[0], proj_clip=clips[1],
        threads=threads, chunk_rows=chunk)
    return output, h, c


def sigmoid(x):
    with np.errstate(over="ignore"):
        return 1 / (1 + np.exp(-x))


def reference(weights, schedule, inputs, h, c, *, clips=(INF, INF), initial_state=(None, None)):
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
        for n in schedule.batch_sizes:
            part = slice(begin, begin + n)
            if schedule.sequence_start is not None:
                hit = np.flatnonzero(schedule.sequence_start[part])
                h[hit, hs] = 0 if initial_state[0] is None else initial_state[0][hs]
                c[hit, cs] = 0 if initial_state[1] is None else initial_state[1][cs]
            x = x_all[schedule.rows[d, part]].astype(np.float64)
            i, j, f, o = np.split(np.concatenate([x, h[:n, hs]], 1) @ w + b, 4, 1)
            free = sigmoid(f + 1) * c[:n, cs] + sigmoid(i) * np.tanh(j)
            c[:n, cs] = np.clip(free, -clips[0], clips[0])
            m = sigmoid(o) * np.tanh(c[:n, cs])
            free_h = m if p is None else m @ p
            h[:n, hs] = m if p is None else np.clip(free_h, -clips[1], clips[1])
            fired += (np.abs(free) > clips[0]).sum(), 0 if p is None else (np.abs(free_h) > clips[1]).sum()
            total += free.size, free_h.size
            output[schedule.out_rows[d, part], hs] = h[:n, hs]
            begin += n
    return output, h, c, fired / np.maximum(total, 1)


def error(got, expected):
    assert np.isfinite(got).all()
    return np.linalg.norm(got - expected) / max(np.linalg.norm(expected), 1e-300)


def state(rng, slots, weights):
    return normal(rng, slots, 2 * weights.projection, scale=0.1), normal(rng, slots, 2 * weights.dim, scale=0.1)


def check(weights, schedule, inputs, h, c, **options):
    got = run(weights, schedule, inputs, h, c, **options)
    limit = TOLERANCE[options.get("precision", HIGHEST)]
    for name in ("threads", "chunk", "packed", "precision"):
        options.pop(name, None)
    *expected, fired = reference(weights, schedule, inputs, h, c, **options)
    for g, e in zip(got, expected):
        assert error(g, e) <= limit
    return fired


def same(a, b):
    """To the bit."""
    return all((x.view(np.int32) == y.view(np.int32)).all() for x, y in zip(a, b))
