"""The PTX interpreter: instructions against NumPy and Python integers, what it must refuse, and what it ran.

Products of tiles and `ldmatrix` are compared with float64 in the kernels that use them (test_cuda_lstm_kernel,
test_ptx_triton).
"""

import operator

import numpy as np
import pytest
import torch

from tests.support.ptx_machine import launch, lines, machine

U16, U32, F16, F32 = np.uint16, np.uint32, np.float16, np.float32
# Special values by type; types are NumPy's characters.
SPECIAL = {"f": [0.0, -0.0, np.nan, np.inf, -np.inf, 1e-40, -1e-40, 3e38, -3e38, 1, -1, 0.5, 2.5, -3.5, 65504, 65520],
           "e": [0.0, -0.0, np.nan, np.inf, -np.inf, 6e-8, 65504, 1]}
THREADS = 64
HEAD = """.version 8.0
.target sm_90a
.extern .shared .align 128 .b8 s[];
.entry test(.param .u64 data, .param .u64 at_a, .param .u64 at_b, .param .u64 at_c)
{
.reg .pred %p, %q; .reg .b32 %t, %w, %x, %y, %z, %r<9>; .reg .b64 %g, %at;
ld.param.u64 %g, [data]; mov.u32 %t, %tid.x; shr.u32 %w, %t, 5; mov.u32 %r0, %cluster_ctarank;
setp.eq.s32 %p, %w, 0;
"""


def run(body, *sources, data=None, threads=THREADS, grid=1, seed=0, **more):
    """`data` (what [%g] is) after a kernel of `body`, and the kernel."""
    data = np.arange(64, dtype=U32) if data is None else data
    given = [torch.from_numpy(array) for array in (data, *sources)]
    machine().set(seed=seed)
    return data, launch(HEAD + body + "\nret;\n}\n", *given, *[None] * (4 - len(given)), grid=(grid, 1, 1),
                        block=(threads, 1, 1), shared=2048, **more)


def values(kind, rng):
    """THREADS values of a type: special ones, and some of every size."""
    if kind in SPECIAL:
        special, sized = SPECIAL[kind], rng.standard_normal(THREADS) * 10.0 ** rng.integers(-6, 5, THREADS)
    else:
        info = np.iinfo(kind)
        special = [0, 1, info.max, info.min, info.max - 1, 2]
        sized = rng.integers(info.min, info.max, THREADS, kind, endpoint=True)
        sized >>= rng.integers(0, info.bits, THREADS).astype(kind)
    sized[: len(special)] = special
    with np.errstate(over="ignore"):
        return rng.permutation(sized.astype(kind))


def truncated(a, b):
    return (abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)) if b else -1


def bfloat(x):
    patterns = torch.from_numpy(x).bfloat16().view(torch.int16).numpy().view(U16)
    return np.where(np.isnan(x), 0x7FFF, patterns).astype(U32)


def ftz(x):
    return np.where(np.abs(x) < np.finfo(F32).tiny, np.copysign(F32(0), x), x)


WRAPPING = {"add": operator.add, "sub": operator.sub, "mul.lo": operator.mul, "min": min, "max": max}
COMPARED = [(f"setp.{name}.{{}} %p, %a, %b; selp.u32 %d, 1, 0, %p;", getattr(operator, name))
            for name in ("eq", "ne", "lt", "le", "gt", "ge")]
# The types of %d = %a %b %c: instruction (with these operands, where it names none) and its model over integers.
INTEGER = [
    *[(f"{kind}={kind}{kind}", {f"{op}.{name}": f for op, f in WRAPPING.items()})
      for kind, name in zip("IiLl", ("u32", "s32", "u64", "s64"))],
    *[(f"I={kind}{kind}", {text.format(name): f for text, f in COMPARED})
      for kind, name in zip("IiLl", ("b32", "s32", "u64", "s64"))],
    ("l=ii", {"mul.wide.s32": operator.mul}), ("L=II", {"mul.wide.u32": operator.mul}),
    ("i=iii", {"mad.lo.s32": lambda a, b, c: a * b + c}), ("l=iil", {"mad.wide.s32": lambda a, b, c: a * b + c}),
    ("i=ii", {"div.s32": truncated, "rem.s32": lambda a, b: a - b * truncated(a, b) if b else a}),
    ("I=II", {"and.b32": operator.and_, "or.b32": operator.or_, "shl.b32": lambda a, b: a << b if b < 32 else 0}),
    ("L=LL", {"xor.b64": operator.xor, "bfi.b64 %d, %a, %b, 1, 63;": lambda a, b: a << 1 | b & 1}),
    ("L=L", {"not.b64": operator.invert}), ("l=i", {"cvt.s64.s32": int}), ("L=I", {"cvt.u64.u32": int}),
    ("I=L", {"cvt.u32.u64": int, "mov.b64 {_, %x}, %a; mov.b32 %d, %x;": lambda a: a >> 32}),
    ("i=iI", {"shr.s32": lambda a, b: a >> min(b, 31)}), ("L=LI", {"shr.u64": lambda a, b: a >> min(b, 64)}),
    ("I=III", {"bfe.u32": lambda a, b, c: (a >> (b & 255)) & ((1 << (c & 255)) - 1),
               "bfi.b32 %d, %a, %b, %c, 9;": lambda a, b, c: ((a & 511) << (c & 255)) | b & ~(511 << (c & 255))}),
    ("i=i", {"neg.s32": operator.neg, "bfe.s32 %d, %a, 28, 1;": lambda a: -(a >> 28 & 1)}),
    ("I=ll", {"setp.ge.s64 %p, %a, %b; not.pred %q, %p; @%q mov.u32 %d, 5; @!%q mov.u32 %d, 6;":
              lambda a, b: 5 + (a >= b)}),
    ("I=H", {"cvt.u32.u16": int, "setp.eq.s16 %p, %a, 2; selp.u32 %d, 1, 0, %p;": lambda a: a == 2}),
    ("H=I", {"cvt.u16.u32": int}),
    ("H=HH", {"setp.eq.s16 %p, %a, 2; selp.u16 %d, %a, %b, %p;": lambda a, b: a if a == 2 else b}),
    ("L=II", {"mov.b64 %d, {%a, %b};": lambda a, b: b << 32 | a}),
    ("I=I", {".reg .b16 %l, %h; mov.b32 {%l, %h}, %a; mov.b32 %d, {%h, %l};": lambda a: a >> 16 | a << 16}),
]
# The same over arrays of all threads.
ARRAYS = [
    ("I=I", {"shfl.sync.bfly.b32 %d, %a, 5, 31, -1;": lambda a: a[np.arange(THREADS) ^ 5],
             "shfl.sync.idx.b32 %d, %a, 3, 31, -1;": lambda a: a[np.arange(THREADS) // 32 * 32 + 3]}),
    ("i=i", {"redux.sync.max.s32 %d, %a, -1;": lambda a: a.reshape(2, 32).max(1).repeat(32)}),
    ("f=ff", {"add.rn.f32": np.add, "sub.f32": np.subtract, "mul.rn.f32": np.multiply, "div.rn.f32": np.divide,
              "div.full.f32": np.divide, "max.NaN.f32": np.maximum}),
    ("f=fff", {"fma.rn.f32": lambda a, b, c: (a.astype(np.longdouble) * b + c).astype(F32)}),
    ("f=f", {"neg.f32": np.negative, "abs.f32": np.abs, "ex2.approx.f32": np.exp2,
             "ex2.approx.ftz.f32": lambda a: ftz(np.exp2(a)), "rcp.approx.ftz.f32": lambda a: ftz(1 / ftz(a))}),
    ("I=ff", {text.format("f32"): f for text, f in COMPARED} | {COMPARED[1][0].format("f32"): lambda a, b:
              (a < b) | (a > b)}),
    ("e=f", {"cvt.rn.f16.f32": lambda a: a.astype(F16)}), ("f=e", {"cvt.f32.f16": lambda a: a.astype(F32)}),
    ("I=ff", {"cvt.rn.f16x2.f32": lambda a, b: np.stack([b, a], 1).astype(F16).view(U32)[:, 0],
              "cvt.rn.bf16x2.f32": lambda a, b: bfloat(a) << 16 | bfloat(b)}), ("H=f", {"cvt.rn.bf16.f32": bfloat}),
]
CASES = [(kinds, text, f, table is INTEGER) for table in (INTEGER, ARRAYS) for kinds, rows in table
         for text, f in rows.items()]


@pytest.mark.parametrize("kinds,text,model,each", CASES, ids=[f"{kinds} {text}" for kinds, text, *_ in CASES])
def test_against_numpy(kinds, text, model, each):
    rng, dtype = np.random.default_rng(len(text)), np.dtype(kinds[0])
    given = [values(kind, rng) for kind in kinds[2:]]
    with np.errstate(all="ignore"):
        expected = np.array([model(*map(int, row)) % 256**dtype.itemsize for row in zip(*given)],
                            f"u{dtype.itemsize}") if each else np.asarray(model(*given))
    body = "".join(f"ld.param.u64 %at, [at_{name}]; mad.wide.u32 %at, %t, {array.itemsize}, %at; "
                   f".reg .b{8 * array.itemsize} %{name}; ld.global.b{8 * array.itemsize} %{name}, [%at];\n"
                   for name, array in zip("abc", given))
    operands = "" if "%" in text else " %d, %a, %b, %c"[: 4 * len(given) + 3] + ";"
    found, _ = run(f"{body}.reg .b{8 * dtype.itemsize} %d; {text}{operands} "
                   f"mad.wide.u32 %at, %t, {dtype.itemsize}, %g; st.global.b{8 * dtype.itemsize} [%at], %d;", *given,
                   data=np.zeros(THREADS, dtype))
    expected = expected.astype(dtype)
    np.testing.assert_allclose(found, expected, rtol=2e-7 if "approx" in text else 0, atol=0)
    if kinds[0] in SPECIAL:
        assert (np.signbit(found) == np.signbit(expected))[expected == 0].all()


PAIR = {"grid": 2, "cluster": 2, "threads": 32}
SECOND = "setp.eq.s32 %p, %r0, 1; @!%p "
SHOWN = "ld.shared.u32 %x, [s]; st.global.u32 [%g], %x; "
STORE_REMOTE = SECOND + "bra past; mapa.shared::cluster.u32 %x, s, 0; st.shared::cluster.u32 [%x], %r0; past:"
CLUSTER_BARRIER = "barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;"
INIT = "@%p st.shared.u32 [s], 0; bar.sync 0; "
PLACE = "shl.b32 %x, %t, 4; mov.b32 %y, s; add.s32 %x, %x, %y; "
COPY = PLACE + "cp.async.cg.shared.global [%x], [%g], 16, 16;"
FILL = PLACE + "st.shared.v2.u64 [%x], {0, 0}; bar.sync 0; mov.b64 %at, 0x1000080000; "
FENCES = "fence.proxy.async.shared::cta; wgmma.fence.sync.aligned; "
WGMMA = "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%r1, %r2, %r3, %r4}, %at, %at, 0, 1, 1, 0, 0; "
PHASES = "setp.eq.u32 %q, %t, 0; @%q mbarrier.init.shared::cta.b64 [s+16], 1; "
PUBLISHED = PHASES + "fence.mbarrier_init.release.cluster; " + CLUSTER_BARRIER
ARRIVE = "mbarrier.arrive.expect_tx.shared::cta.b64 _, [s+16], 16; "
AGAIN = ("again: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %q, [s+16], 0; "
         "@!%q bra again; ld.shared.u32 %x, [s+4]; st.global.u32 [%g], %x; ")
# Thread 0 of block 1 stores 5 in block 0, which waits for it; a block copies 4 to 7 to both.
PUSH = """sub.s32 %z, %r0, %t; setp.eq.s32 %p, %z, 1; @!%p bra past; mapa.shared::cluster.u32 %x, s, 0; mov.u32 %y, 5;
st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%x], {%y, %y, %y, %y}, [%x+16]; past: """
EXPECT = "add.s32 %z, %r0, %t; setp.eq.s32 %q, %z, 0; @%q " + ARRIVE
FIRST = "setp.eq.s32 %q, %r0, 1; @%q bra end; "
MULTICAST = """sub.s32 %z, %r0, %t; setp.eq.s32 %p, %z, 1; mov.b32 %y, s;
@%p cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%y], [%g+16], 16, [%y+16], 3;
"""
# Message: what must be refused, and how it is launched.
TRAPS = {
    "reading bytes that were never written": ("ld.shared.u32 %x, [s+16];", {}),
    "never written": ("ld.global.u32 %x, [%g];", {"written": False}),
    "shared address 2048 out of bounds": ("st.shared.u32 [s+2048], %t;", {}),
    "misaligned shared address": ("st.shared.u32 [s+2], %t;", {}),
    "global address .* out of bounds": ("ld.global.u32 %x, [%g+256];", {}),
    "misaligned global address": ("ld.global.v2.u32 {%x, %y}, [%g+4];", {}),
    "race: writing what was written": ("st.shared.u32 [s], %t;", {}),
    "race: (reading what was written|writing what is read)": (INIT
        + "@%p st.shared.u32 [s], 1; @!%p ld.shared.u32 %x, [s];", {}),
    "race: (writing what is read|reading)": (INIT + "ld.shared.u32 %x, [s]; @!%p st.shared.u32 [s], 2;", {}),
    "a wait of 10 s": ("@%p trap;", {}),
    "deadlock": ("@!%p bra past; bar.sync 1, 64; past:", {}),
    "deadlock: 2 warps": ("again: ld.acquire.gpu.global.u32 %x, [%g]; setp.ne.u32 %p, %x, 77; @%p bra again;", {}),
    "differs within the warp": ("setp.lt.u32 %p, %t, 7; @%p bar.sync 0;", {}),
    "threads missing": ("setp.lt.u32 %p, %t, 7; @%p bra past; shfl.sync.idx.b32 %x, %t, 0, 31, -1; past: bar.sync 0;",
                        {}),
    "race: reading what was written": (PLACE + "st.shared.u32 [%x], %t; ld.shared.u32 %y, [%x+16];", {"threads": 32}),
    "race: writing what is read": (PLACE + "st.shared.u32 [%x], %t; bar.warp.sync -1; ld.shared.u32 %y, [%x]; "
                                   "ld.shared.u32 %y, [s]; st.shared.u32 [%x], 1;", {"threads": 32}),
    "race: reading what was written by warp 0": (PLACE
        + "stmatrix.sync.aligned.m8n8.x4.shared.b16 [%x], {%t, %t, %t, %t}; "
        "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r1, %r2, %r3, %r4}, [%x];", {"threads": 32}),
    "a barrier of some threads": ("bar.warp.sync 7;", {}),
    "after some threads have left": ("setp.lt.u32 %p, %t, 7; @%p ret; bar.warp.sync -1;", {}),
    "bytes that are still being copied": (COPY + "ld.shared.u32 %y, [%x];", {}),
    "race: reading what was written by warp|never written|still being copied": (COPY
        + "cp.async.wait_all; ld.shared.u32 %y, [s+512];", {}),
    "may not have started": (STORE_REMOTE + CLUSTER_BARRIER, PAIR),
    "has left|may leave": (CLUSTER_BARRIER + STORE_REMOTE, PAIR),
    "an accumulator of a wgmma": (FILL + FENCES + WGMMA + "mov.b32 %x, %r1;", {"threads": 128}),
    "accumulator of a wgmma that is not": (FILL + FENCES + WGMMA + "mov.b32 %r1, %x;", {"threads": 128}),
    "no wgmma.fence since": (FILL + FENCES + "mov.b32 %r1, 0;" + WGMMA, {"threads": 128}),
    "no fence.proxy.async": (FILL + "wgmma.fence.sync.aligned;" + WGMMA, {"threads": 128}),
    "writing an operand of a wgmma": (FILL + FENCES + WGMMA + "st.shared.u64 [%x], 0;", {"threads": 128}),
    "wgmma not complete": (FILL + FENCES + WGMMA + "wgmma.wait_group.sync.aligned 0;", {"threads": 128}),
    "no mbarrier is there": ("@%p st.shared.u64 [s+16], 0; bar.sync 0; " + ARRIVE, {}),
    "may not have been initialized|never written": (PHASES + "@!%p " + ARRIVE, {}),
    "more arrivals at an mbarrier": (PHASES + "bar.sync 0; " + ARRIVE, {}),
    "in place of another": (PHASES + PHASES, {}),
    "counts 2.20 bytes": (PHASES + "@%q mbarrier.arrive.expect_tx.shared::cta.b64 _, [s+16], 1048576;", {}),
    "no fence.mbarrier_init": (PHASES + CLUSTER_BARRIER + PUSH + EXPECT + CLUSTER_BARRIER, PAIR),
    "deadlock: 1 warps": (PUBLISHED + EXPECT + FIRST + AGAIN + "end:", PAIR),
    "still being copied|never written": (PUBLISHED + PUSH + EXPECT + FIRST + SHOWN + "end:" + CLUSTER_BARRIER, PAIR),
    "a block leaves while": (PUBLISHED + PUSH + EXPECT + CLUSTER_BARRIER, PAIR),
    "no fence.proxy.async since": (PUBLISHED + "@%q st.shared.u32 [s], 0; " + CLUSTER_BARRIER + MULTICAST
                                 + CLUSTER_BARRIER, PAIR),
    "a bulk copy of 8 bytes": (PUBLISHED + MULTICAST.replace(", 16, [", ", 8, ["), PAIR),
    "not aligned to 16": (PUBLISHED + MULTICAST.replace("[%g+16]", "[%g+8]"), PAIR),
    r"line 9: unknown instruction frob.u32": ("frob.u32 %x, %t;", {}),
    r"unknown instruction add.odd.s32": ("add.odd.s32 %x, %t, %t;", {}),
    r"unknown modifier .odd": ("ld.odd.shared.u32 %x, [s];", {}),
}
# What is in order, and stores 5.
ORDERED = {
    "barrier": ("@%p st.shared.u32 [s], 5; bar.sync 0; ld.shared.u32 %x, [s]; @!%p st.global.u32 [%g], %x;", {}),
    "named barrier": ("@%p bra one; bar.sync 3, 64;" + SHOWN + "ret; one: st.shared.u32 [s], 5; bar.sync 3, 64;", {}),
    "barrier of a warp": (PLACE + """
st.shared.u32 [%x], %t; bar.warp.sync -1; ld.shared.u32 %y, [s+80]; bar.warp.sync -1;
st.shared.u32 [%x], %y; bar.warp.sync -1;""" + SHOWN, {"threads": 32}),
    "the same value": ("st.shared.u32 [s], 5; bar.sync 0;" + SHOWN, {}),
    "loops that end apart": ("""mov.u32 %x, 0; and.b32 %y, %t, 7;
again: add.s32 %x, %x, 1; setp.lt.u32 %p, %x, %y; @%p bra again;
redux.sync.max.s32 %x, %x, -1; sub.s32 %x, %x, 2; st.global.u32 [%g], %x;""", {}),
    "flag of the cluster": (SECOND + "st.shared.u32 [s+4], 0; " + CLUSTER_BARRIER + """@!%p bra wait;
mapa.shared::cluster.u32 %x, s, 0; st.shared::cluster.u32 [%x], 5;
st.release.cluster.shared::cluster.u32 [%x+4], 1; bra end;
wait: ld.acquire.cluster.shared::cta.u32 %y, [s+4]; setp.eq.u32 %p, %y, 0; @%p bra wait;
""" + SHOWN + "end:", PAIR),
    "a store that an mbarrier counts": (PUBLISHED + PUSH + EXPECT + FIRST + AGAIN + "end:" + CLUSTER_BARRIER, PAIR),
    "a copy to two blocks": (PUBLISHED + "@%q " + ARRIVE + MULTICAST + AGAIN + CLUSTER_BARRIER, PAIR),
    "a copy over what is fenced": (PUBLISHED + "@%q st.shared.u32 [s], 0; fence.proxy.async.shared::cta; "
                                   + CLUSTER_BARRIER + "@%q " + ARRIVE + MULTICAST + AGAIN + CLUSTER_BARRIER, PAIR),
}


@pytest.mark.parametrize("message", TRAPS)
def test_traps(message):
    body, options = TRAPS[message]
    for seed in (0, 1, 2):
        with pytest.raises(RuntimeError, match=message):
            run(body, seed=seed, **options)


@pytest.mark.parametrize("name", ORDERED)
def test_what_is_in_order_is_no_trap(name):
    body, options = ORDERED[name]
    for seed in range(10):
        assert run(body, seed=seed, **options)[0][0] == 5


@pytest.mark.parametrize("number", [1, 2, 4])
def test_stmatrix(number):
    """Thread t has the address of row t, here from the last row to the first."""
    registers = ", ".join(["%t", "%r1", "%r2", "%r3"][:number])
    found, _ = run(f"""add.u32 %r1, %t, 100; add.u32 %r2, %t, 200; add.u32 %r3, %t, 300;
mov.b32 %y, s; mad.lo.u32 %x, %t, -16, %y; add.u32 %x, %x, 496; mad.lo.u32 %y, %t, 16, %y; mov.u32 %z, 7;
st.shared.v4.u32 [%y], {{%z, %z, %z, %z}}; bar.warp.sync -1;
stmatrix.sync.aligned.m8n8.x{number}.shared.b16 [%x], {{{registers}}}; bar.warp.sync -1;
mad.wide.u32 %at, %t, 16, %g; ld.shared.v4.u32 {{%x, %y, %z, %r4}}, [%y];
st.global.v4.u32 [%at], {{%x, %y, %z, %r4}};""",
                   data=np.zeros(128, U32), threads=32)
    rows = (100 * np.arange(4)[:, None] + np.arange(32)).reshape(32, 4)  # 8 rows from each register
    rows[8 * number :] = 7
    assert (found.reshape(32, 4) == rows[::-1]).all()


def test_counts_and_coverage():
    _, kernel = run("""setp.lt.u32 %q, %t, 7; @%q st.global.u32 [%g], 5;
@%p bra past;
mov.u32 %x, 7;
past:""", threads=32)
    found = lines([kernel])
    assert [(line.executed, line.threads) for line in found if line.opcode == "st.global.u32"] == [(1, 7)]
    assert [line.text for line in found if not line.executed] == ["mov.u32 %x, 7"]
