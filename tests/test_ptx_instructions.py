"""The PTX interpreter: every instruction against a NumPy model, over random and special values."""

import numpy as np
import pytest
from ptx_machine import Program, counters, coverage, device_memory
from cuda_simulator import to_bf16

U16, S16, U32, S32, U64, S64 = np.uint16, np.int16, np.uint32, np.int32, np.uint64, np.int64
F16, F32, F64 = np.float16, np.float32, np.float64
SPECIAL = {F32: [0.0, -0.0, np.nan, np.inf, -np.inf, 1e-40, -1e-40, 3e38, -3e38, 1.0, -1.0, 0.5, 2.5, -3.5, 65504.0, 65520.0],
           F16: [0.0, -0.0, np.nan, np.inf, -np.inf, 6e-8, 65504.0, 1.0]}
THREADS = 64


def values(dtype, rng):
    """THREADS values: special ones, then of every size."""
    if dtype in SPECIAL:
        sized = rng.standard_normal(THREADS) * 10.0 ** rng.integers(-6, 5, THREADS)
        sized[: len(SPECIAL[dtype])] = rng.permutation(SPECIAL[dtype])
        with np.errstate(over="ignore"):
            return sized.astype(dtype)
    info = np.iinfo(dtype)
    sized = rng.integers(info.min, info.max, THREADS, dtype, endpoint=True) >> rng.integers(0, 8 * dtype().itemsize, THREADS).astype(dtype)
    sized[:6] = [0, 1, info.max, info.min, info.max - 1, 2]
    return rng.permutation(sized)


def compute(instruction, result, *sources):
    """`instruction` over {d} and {a} {b} {c} of 64 threads; the registers are as wide as the types."""
    names = "abc"[: len(sources)]
    bits = {name: 8 * of.itemsize for name, of in zip(names, sources)} | {"d": 8 * np.dtype(result).itemsize}
    lines = [f".reg .b{width} %{name};" for name, width in bits.items()]
    lines += [".reg .pred %p, %q; .reg .b32 %t; .reg .b64 %at, %from;", "mov.u32 %t, %tid.x;"]
    for name, of in zip(names, sources):
        lines += [f"ld.param.u64 %from, [from_{name}];", f"mad.wide.u32 %at, %t, {of.itemsize}, %from;",
                  f"ld.global.b{bits[name]} %{name}, [%at];"]
    lines += [instruction.format(**{name: f"%{name}" for name in bits}),
              "ld.param.u64 %from, [to];", f"mad.wide.u32 %at, %t, {bits['d'] // 8}, %from;", f"st.global.b{bits['d']} [%at], %d;"]
    parameters = ", ".join(f".param .u64 {name}" for name in ["to", *(f"from_{name}" for name in names)])
    out = np.zeros(THREADS, result)
    Program(f".version 8.0\n.target sm_90\n.entry test({parameters})\n{{\n" + "\n".join(lines) + "\nret;\n}\n").launch(
        out, *sources, block=(THREADS, 1, 1))
    return out


def wide(f, dtype):
    """`f` over Python integers, wrapped around to `dtype`."""
    modulus = 256 ** dtype().itemsize
    return lambda *columns: np.array([f(*map(int, row)) % modulus for row in zip(*columns)], f"u{dtype().itemsize}").view(dtype)


def bits(f):
    return wide(f, U32)


def lop3(a, b, c):
    return (a & b) | (~a & c)


def permuted(a, b, c):
    both = (b << 32 | a).to_bytes(8, "little")
    picked = [both[c >> 4 * i & 7] for i in range(4)]
    return int.from_bytes(bytes((255 if x & 128 else 0) if c >> 4 * i & 8 else x for i, x in enumerate(picked)), "little")


def extracted(a, b, c):
    b, c = b & 255, c & 255
    return (a >> b) & ((1 << c) - 1) & 0xFFFFFFFF


def inserted(a, b, c):
    field = ((1 << 9) - 1) << (c & 255) if c & 255 < 32 else 0
    return ((a << (c & 255)) & field | b & ~field) & 0xFFFFFFFF


def truncating(a, b):
    return (abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)) if b else -1


def half(x):
    with np.errstate(over="ignore"):
        return x.astype(F16)


def to_integer(rounded, dtype):
    info = np.iinfo(dtype)
    return lambda a: np.array([0 if np.isnan(x) else int(min(max(rounded(x), info.min), info.max)) for x in a.astype(F64)], dtype)


def ftz(x):
    return np.where(np.abs(x) < np.finfo(F32).tiny, np.copysign(F32(0), x), x)


def down(a, b, c):
    exact = a.astype(np.longdouble) * b + c
    near = exact.astype(F32)
    return np.where(near > exact, np.nextafter(near, F32(-np.inf)), near)


INTEGER = [
    *[(f"{op}.{t} {{d}}, {{a}}, {{b}};", d, (d, d), wide(f, d)) for t, d in
      (("u16", U16), ("s16", S16), ("u32", U32), ("s32", S32), ("u64", U64), ("s64", S64))
      for op, f in (("add", lambda a, b: a + b), ("sub", lambda a, b: a - b), ("mul.lo", lambda a, b: a * b),
                    ("min", min), ("max", max))],
    *[(f"mul.wide.{t} {{d}}, {{a}}, {{b}};", d, (s, s), wide(lambda a, b: a * b, d)) for t, d, s in (("s32", S64, S32), ("u32", U64, U32), ("u16", U32, U16))],
    ("mul.hi.s32 {d}, {a}, {b};", S32, (S32, S32), wide(lambda a, b: a * b >> 32, S32)),
    ("mul.hi.u32 {d}, {a}, {b};", U32, (U32, U32), wide(lambda a, b: a * b >> 32, U32)),
    ("mad.lo.s32 {d}, {a}, {b}, {c};", S32, (S32, S32, S32), wide(lambda a, b, c: a * b + c, S32)),
    ("mad.wide.s32 {d}, {a}, {b}, {c};", S64, (S32, S32, S64), wide(lambda a, b, c: a * b + c, S64)),
    ("sad.s32 {d}, {a}, {b}, {c};", U32, (S32, S32, U32), bits(lambda a, b, c: abs(a - b) + c)),
    ("div.s32 {d}, {a}, {b};", S32, (S32, S32), wide(truncating, S32)),
    ("rem.u32 {d}, {a}, {b};", U32, (U32, U32), wide(lambda a, b: a % b if b else a, U32)),
    ("and.b32 {d}, {a}, {b};", U32, (U32, U32), bits(lambda a, b: a & b)), ("not.b64 {d}, {a};", U64, (U64,), wide(lambda a: ~a, U64)),
    ("xor.b64 {d}, {a}, {b};", U64, (U64, U64), wide(lambda a, b: a ^ b, U64)),
    ("shl.b32 {d}, {a}, {b};", U32, (U32, U32), bits(lambda a, b: a << b if b < 32 else 0)),
    ("shr.s32 {d}, {a}, {b};", S32, (S32, U32), wide(lambda a, b: a >> min(b, 31), S32)),
    ("shr.u64 {d}, {a}, {b};", U64, (U64, U32), wide(lambda a, b: a >> min(b, 64), U64)),
    ("shf.l.wrap.b32 {d}, {a}, {b}, {c};", U32, (U32,) * 3, bits(lambda a, b, c: ((b << 32 | a) << (c & 31)) >> 32)),
    ("shf.r.clamp.b32 {d}, {a}, {b}, {c};", U32, (U32,) * 3, bits(lambda a, b, c: (b << 32 | a) >> min(c, 32))),
    ("bfe.u32 {d}, {a}, {b}, {c};", U32, (U32,) * 3, bits(extracted)),
    ("bfe.s32 {d}, {a}, 28, 1;", S32, (S32,), wide(lambda a: -(a >> 28 & 1), S32)),
    ("bfi.b32 {d}, {a}, {b}, {c}, 9;", U32, (U32,) * 3, bits(inserted)),
    ("bfi.b64 {d}, {a}, {b}, 1, 63;", U64, (U64, U64), wide(lambda a, b: a << 1 | b & 1, U64)),
    ("prmt.b32 {d}, {a}, {b}, {c};", U32, (U32,) * 3, bits(permuted)), ("lop3.b32 {d}, {a}, {b}, {c}, 0xCA;", U32, (U32,) * 3, bits(lop3)),
    ("popc.b32 {d}, {a};", U32, (U32,), bits(lambda a: bin(a).count("1"))), ("clz.b32 {d}, {a};", U32, (U32,), bits(lambda a: 32 - a.bit_length())),
    ("neg.s32 {d}, {a};", S32, (S32,), wide(lambda a: -a, S32)), ("abs.s64 {d}, {a};", S64, (S64,), wide(abs, S64)),
    ("setp.lt.u32 %p, {a}, {b}; selp.b32 {d}, 7, 9, %p;", U32, (U32, U32), bits(lambda a, b: 7 if a < b else 9)),
    ("setp.ge.s64 %p, {a}, {b}; not.pred %q, %p; @%q mov.u32 {d}, 5; @!%q mov.u32 {d}, 6;", U32, (S64, S64), bits(lambda a, b: 6 if a >= b else 5)),
    ("setp.hi.u16 %p, {a}, {b}; selp.u16 {d}, {a}, {b}, %p;", U16, (U16, U16), wide(max, U16)),
    ("cvt.s64.s32 {d}, {a};", S64, (S32,), wide(int, S64)), ("cvt.u64.u32 {d}, {a};", U64, (U32,), wide(int, U64)),
    ("cvt.u32.u64 {d}, {a};", U32, (U64,), bits(int)), ("cvt.s32.s16 {d}, {a};", S32, (S16,), wide(int, S32)),
    ("cvt.u16.u32 {d}, {a};", U16, (U32,), wide(int, U16)), ("cvt.s32.s8 {d}, {a};", S32, (S32,), wide(lambda a: (a + 128 & 255) - 128, S32)),
    ("mov.b64 {d}, {{{a}, {b}}};", U64, (U32, U32), wide(lambda a, b: b << 32 | a, U64)),
    ("{{ .reg .b16 %x, %y; mov.b32 {{%x, %y}}, {a}; mov.b32 {d}, {{%y, %x}}; }}", U32, (U32,), bits(lambda a: a >> 16 | a << 16)),
    ("{{ .reg .b32 %x; mov.b64 {{_, %x}}, {a}; mov.b32 {d}, %x; }}", U32, (U64,), bits(lambda a: a >> 32)),
    ("shfl.sync.bfly.b32 {d}, {a}, 5, 31, -1;", U32, (U32,), lambda a: a[np.arange(THREADS) ^ 5]),
    ("shfl.sync.idx.b32 {d}, {a}, 3, 31, -1;", U32, (U32,), lambda a: a[np.arange(THREADS) // 32 * 32 + 3]),
    ("shfl.sync.down.b32 {d}|%p, {a}, 4, 31, -1; @!%p mov.b32 {d}, 0;", U32, (U32,), lambda a: np.where(np.arange(THREADS) % 32 < 28, np.roll(a, -4), 0)),
    ("shfl.sync.up.b32 {d}|%p, {a}, 1, 0, -1; @!%p mov.b32 {d}, 1;", U32, (U32,), lambda a: np.where(np.arange(THREADS) % 32 > 0, np.roll(a, 1), 1)),
    ("redux.sync.max.s32 {d}, {a}, -1;", S32, (S32,), lambda a: np.repeat(a.reshape(2, 32).max(1), 32)),
    ("redux.sync.add.u32 {d}, {a}, -1;", U32, (U32,), lambda a: np.repeat(a.reshape(2, 32).sum(1, U32), 32)),
    ("setp.gt.s32 %p, {a}, 0; vote.sync.ballot.b32 {d}, %p, -1;", U32, (S32,), lambda a: np.repeat((a > 0).reshape(2, 32) @ (1 << np.arange(32)), 32)),
]
FLOAT = [
    *[(f"{op}.f32 {{d}}, {{a}}, {{b}};", F32, (F32, F32), f) for op, f in (
        ("add.rn", np.add), ("sub", np.subtract), ("mul.rn", np.multiply), ("div.rn", np.divide), ("div.full", np.divide),
        ("min", np.fmin), ("max", np.fmax), ("max.NaN", np.maximum), ("copysign", lambda a, b: np.copysign(b, a)))],
    ("add.ftz.f32 {d}, {a}, {b};", F32, (F32, F32), lambda a, b: ftz(ftz(a) + ftz(b))),
    ("fma.rn.f32 {d}, {a}, {b}, {c};", F32, (F32,) * 3, lambda a, b, c: (a.astype(np.longdouble) * b + c).astype(F32)),
    ("fma.rm.f32 {d}, {a}, {b}, {c};", F32, (F32,) * 3, down),
    ("neg.f32 {d}, {a};", F32, (F32,), np.negative), ("abs.f32 {d}, {a};", F32, (F32,), np.abs),
    ("cvt.sat.f32.f32 {d}, {a};", F32, (F32,), lambda a: np.where(a > 0, np.minimum(a, 1), 0).astype(F32)),
    *[(f"{op}.f32 {{d}}, {{a}};", F32, (F32,), f) for op, f in (
        ("ex2.approx", np.exp2), ("ex2.approx.ftz", lambda a: ftz(np.exp2(a))), ("lg2.approx", np.log2), ("sqrt.rn", np.sqrt),
        ("rcp.approx.ftz", lambda a: ftz(1 / ftz(a))), ("rsqrt.approx", lambda a: 1 / np.sqrt(a)), ("tanh.approx", np.tanh))],
    *[(f"setp.{op}.f32 %p, {{a}}, {{b}}; selp.f32 {{d}}, 0f3F800000, 0f00000000, %p;", F32, (F32, F32), f) for op, f in (
        ("lt", np.less), ("ge", np.greater_equal), ("eq", np.equal), ("neu", np.not_equal), ("ltu", lambda a, b: ~(a >= b)),
        ("ne", lambda a, b: (a != b) & ~np.isnan(a + b) | np.isinf(a) & np.isinf(b) & (a != b)), ("nan", lambda a, b: np.isnan(a) | np.isnan(b)))],
    ("cvt.rn.f16.f32 {d}, {a};", F16, (F32,), half), ("cvt.f32.f16 {d}, {a};", F32, (F16,), lambda a: a.astype(F32)),
    ("cvt.rn.f32.s32 {d}, {a};", F32, (S32,), lambda a: a.astype(F32)), ("cvt.rn.f32.u64 {d}, {a};", F32, (U64,), lambda a: a.astype(F32)),
    *[(f"cvt.{mode}.s32.f32 {{d}}, {{a}};", S32, (F32,), to_integer(f, S32)) for mode, f in
      (("rni", np.rint), ("rzi", np.trunc), ("rmi", np.floor), ("rpi", np.ceil))],
    ("cvt.rzi.u32.f32 {d}, {a};", U32, (F32,), to_integer(np.trunc, U32)),
    ("cvt.rna.tf32.f32 {d}, {a};", U32, (F32,), lambda a: np.where(np.isfinite(a), a.view(U32) + 0x1000, a.view(U32)) & 0xFFFFE000),
    ("cvt.rn.f16x2.f32 {d}, {a}, {b};", U32, (F32, F32), lambda a, b: half(a).view(U16).astype(U32) << 16 | half(b).view(U16)),
    ("cvt.rn.bf16x2.f32 {d}, {a}, {b};", U32, (F32, F32), lambda a, b: bf16(a) << 16 | bf16(b)),
]


def bf16(x):
    return np.where(np.isnan(x), 0x7FFF, to_bf16(x).view(U32) >> 16).astype(U32)


@pytest.mark.parametrize("instruction,result,sources,model", INTEGER + FLOAT, ids=lambda of: of if isinstance(of, str) else "")
def test_against_numpy(instruction, result, sources, model):
    rng = np.random.default_rng(len(instruction))
    given = [values(dtype, rng) for dtype in sources]
    with np.errstate(all="ignore"):
        expected = np.asarray(model(*given)).astype(result)
    found = compute(instruction, result, *given)
    if result in (F32, F16):
        limit = 2e-7 if "approx" in instruction else 0
        np.testing.assert_allclose(found, expected, rtol=limit, atol=0)
        assert (np.signbit(found) == np.signbit(expected))[expected == 0].all()
    else:
        np.testing.assert_array_equal(found, expected)
