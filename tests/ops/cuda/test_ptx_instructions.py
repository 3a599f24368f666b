"""The PTX interpreter: instructions against NumPy and Python integers, over random and special values.

Products of tiles and `ldmatrix` are compared with float64 in the kernels that use them (test_cuda_lstm_kernel,
test_ptx_triton).
"""

import numpy as np
import pytest
import torch

from tests.support.ptx_machine import Program

U16, U32, F16, F32 = np.uint16, np.uint32, np.float16, np.float32
TYPES = {"H": U16, "h": np.int16, "I": U32, "i": np.int32, "Q": np.uint64, "q": np.int64, "e": F16, "f": F32}
SPECIAL = {"f": [0.0, -0.0, np.nan, np.inf, -np.inf, 1e-40, -1e-40, 3e38, -3e38, 1, -1, 0.5, 2.5, -3.5, 65504, 65520],
           "e": [0.0, -0.0, np.nan, np.inf, -np.inf, 6e-8, 65504, 1]}
THREADS = 64


def values(kind, rng):
    """THREADS values of a type: special ones, and some of every size."""
    dtype = TYPES[kind]
    if kind in SPECIAL:
        sized = rng.standard_normal(THREADS) * 10.0 ** rng.integers(-6, 5, THREADS)
        sized[: len(SPECIAL[kind])] = SPECIAL[kind]
        with np.errstate(over="ignore"):
            return rng.permutation(sized.astype(dtype))
    info = np.iinfo(dtype)
    sized = rng.integers(info.min, info.max, THREADS, dtype, endpoint=True)
    sized >>= rng.integers(0, 8 * dtype().itemsize, THREADS).astype(dtype)
    sized[:6] = [0, 1, info.max, info.min, info.max - 1, 2]
    return rng.permutation(sized)


def compute(kinds, instruction, sources):
    """%d of each thread after `instruction` over %a, %b and %c, which are as wide as their types."""
    bits = {name: 8 * TYPES[kind]().itemsize for name, kind in zip("dabc", kinds.replace("=", ""))}
    lines = [f".reg .b{width} %{name};" for name, width in bits.items()]
    lines += [".reg .pred %p, %q; .reg .b32 %t; .reg .b64 %at, %from; mov.u32 %t, %tid.x;"]
    move = "ld.param.u64 %from, [at_{0}]; mad.wide.u32 %at, %t, {1}, %from;"
    for name in "abc"[: len(sources)]:
        lines += [move.format(name, bits[name] // 8), f"ld.global.b{bits[name]} %{name}, [%at];"]
    lines += [instruction, move.format("d", bits["d"] // 8), f"st.global.b{bits['d']} [%at], %d; ret;"]
    parameters = ", ".join(f".param .u64 at_{name}" for name in bits)
    out = np.zeros(THREADS, TYPES[kinds[0]])
    Program(f".version 8.0\n.target sm_90\n.entry test({parameters})\n{{\n" + "\n".join(lines) + "\n}\n").launch(
        out, *sources, block=(THREADS, 1, 1))
    return out


def of_integers(kind, f):
    """`f` over Python integers, thread by thread, wrapped around to a type."""
    size = TYPES[kind]().itemsize
    return lambda *columns: np.array([f(*map(int, row)) % 256**size for row in zip(*columns)], f"u{size}")


def inserted(a, b, c):
    field = ((1 << 9) - 1) << (c & 255) if c & 255 < 32 else 0
    return (a << (c & 255)) & field | b & ~field


def truncating(a, b):
    return (abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)) if b else -1


def half(x):
    with np.errstate(over="ignore"):
        return x.astype(F16)


def bfloat(x):
    patterns = torch.from_numpy(x).bfloat16().view(torch.int16).numpy().view(U16)
    return np.where(np.isnan(x), 0x7FFF, patterns).astype(U32)


def ftz(x):
    return np.where(np.abs(x) < np.finfo(F32).tiny, np.copysign(F32(0), x), x)


# The types of %d = %a %b %c, the instruction, and its model: over integers, thread by thread.
INTEGER = [
    *[(f"{kind}={kind}{kind}", f"{op}.{name} %d, %a, %b;", f) for name, kind in
      (("u32", "I"), ("s32", "i"), ("u64", "Q"), ("s64", "q")) for op, f in
      (("add", lambda a, b: a + b), ("sub", lambda a, b: a - b), ("mul.lo", lambda a, b: a * b), ("min", min),
       ("max", max))],
    *[(kinds, f"mul.wide.{name} %d, %a, %b;", lambda a, b: a * b)
      for name, kinds in (("s32", "q=ii"), ("u32", "Q=II"))],
    ("i=iii", "mad.lo.s32 %d, %a, %b, %c;", lambda a, b, c: a * b + c),
    ("q=iiq", "mad.wide.s32 %d, %a, %b, %c;", lambda a, b, c: a * b + c),
    ("i=ii", "div.s32 %d, %a, %b;", truncating),
    ("I=II", "rem.u32 %d, %a, %b;", lambda a, b: a % b if b else a),
    ("I=II", "and.b32 %d, %a, %b;", lambda a, b: a & b),
    ("Q=Q", "not.b64 %d, %a;", lambda a: ~a),
    ("Q=QQ", "xor.b64 %d, %a, %b;", lambda a, b: a ^ b),
    ("I=II", "shl.b32 %d, %a, %b;", lambda a, b: a << b if b < 32 else 0),
    ("i=iI", "shr.s32 %d, %a, %b;", lambda a, b: a >> min(b, 31)),
    ("Q=QI", "shr.u64 %d, %a, %b;", lambda a, b: a >> min(b, 64)),
    ("I=III", "bfe.u32 %d, %a, %b, %c;", lambda a, b, c: (a >> (b & 255)) & ((1 << (c & 255)) - 1)),
    ("i=i", "bfe.s32 %d, %a, 28, 1;", lambda a: -(a >> 28 & 1)),
    ("I=III", "bfi.b32 %d, %a, %b, %c, 9;", inserted),
    ("Q=QQ", "bfi.b64 %d, %a, %b, 1, 63;", lambda a, b: a << 1 | b & 1),
    ("i=i", "neg.s32 %d, %a;", lambda a: -a),
    ("I=II", "setp.lt.u32 %p, %a, %b; selp.b32 %d, 7, 9, %p;", lambda a, b: 7 if a < b else 9),
    ("I=qq", "setp.ge.s64 %p, %a, %b; not.pred %q, %p; @%q mov.u32 %d, 5; @!%q mov.u32 %d, 6;",
     lambda a, b: 5 + (a >= b)),
    ("H=HH", "setp.gt.u16 %p, %a, %b; selp.u16 %d, %a, %b, %p;", max),
    *[(kinds, f"cvt.{names} %d, %a;", int) for kinds, names in
      (("q=i", "s64.s32"), ("Q=I", "u64.u32"), ("I=Q", "u32.u64"), ("I=H", "u32.u16"))],
    ("Q=II", "mov.b64 %d, {%a, %b};", lambda a, b: b << 32 | a),
    ("I=I", ".reg .b16 %x, %y; mov.b32 {%x, %y}, %a; mov.b32 %d, {%y, %x};", lambda a: a >> 16 | a << 16),
    ("I=Q", ".reg .b32 %x; mov.b64 {_, %x}, %a; mov.b32 %d, %x;", lambda a: a >> 32),
]
# The same over arrays of all threads.
ARRAYS = [
    ("I=I", "shfl.sync.bfly.b32 %d, %a, 5, 31, -1;", lambda a: a[np.arange(THREADS) ^ 5]),
    ("I=I", "shfl.sync.idx.b32 %d, %a, 3, 31, -1;", lambda a: a[np.arange(THREADS) // 32 * 32 + 3]),
    ("i=i", "redux.sync.max.s32 %d, %a, -1;", lambda a: a.reshape(2, 32).max(1).repeat(32)),
    *[("f=ff", f"{op}.f32 %d, %a, %b;", f) for op, f in (
        ("add.rn", np.add), ("sub", np.subtract), ("mul.rn", np.multiply), ("div.rn", np.divide),
        ("div.full", np.divide), ("max.NaN", np.maximum))],
    ("f=fff", "fma.rn.f32 %d, %a, %b, %c;", lambda a, b, c: (a.astype(np.longdouble) * b + c).astype(F32)),
    *[("f=f", f"{op}.f32 %d, %a;", f) for op, f in (
        ("neg", np.negative), ("abs", np.abs), ("ex2.approx", np.exp2), ("ex2.approx.ftz", lambda a: ftz(np.exp2(a))),
        ("rcp.approx.ftz", lambda a: ftz(1 / ftz(a))))],
    *[("I=ff", f"setp.{op}.f32 %p, %a, %b; selp.b32 %d, 1, 0, %p;", f) for op, f in (
        ("lt", np.less), ("ge", np.greater_equal), ("eq", np.equal), ("ne", lambda a, b: (a < b) | (a > b)))],
    ("e=f", "cvt.rn.f16.f32 %d, %a;", half),
    ("f=e", "cvt.f32.f16 %d, %a;", lambda a: a.astype(F32)),
    ("I=ff", "cvt.rn.f16x2.f32 %d, %a, %b;", lambda a, b: half(a).view(U16).astype(U32) << 16 | half(b).view(U16)),
    ("I=ff", "cvt.rn.bf16x2.f32 %d, %a, %b;", lambda a, b: bfloat(a) << 16 | bfloat(b)),
]
CASES = [(kinds, instruction, of_integers(kinds[0], f)) for kinds, instruction, f in INTEGER] + ARRAYS


@pytest.mark.parametrize("kinds,instruction,model", CASES, ids=[case[1] for case in CASES])
def test_against_numpy(kinds, instruction, model):
    rng = np.random.default_rng(len(instruction))
    given = [values(kind, rng) for kind in kinds[2:]]
    with np.errstate(all="ignore"):
        expected = np.asarray(model(*given)).astype(TYPES[kinds[0]])
    found = compute(kinds, instruction, given)
    np.testing.assert_allclose(found, expected, rtol=2e-7 if "approx" in instruction else 0, atol=0)
    if kinds[0] in SPECIAL:
        assert (np.signbit(found) == np.signbit(expected))[expected == 0].all()
