"""What the PTX interpreter must refuse: accesses out of bounds or order, and waits that never end."""

import numpy as np
import pytest

from tests.support.lstm_kernel_case import make
from tests.support.lstm_kernel_case import run as run_lstm
from tests.support.ptx_machine import DEVICES, Program, device_memory, machine

HEAD = """.version 8.0
.target sm_90a
.extern .shared .align 128 .b8 s[];
.entry test(.param .u64 data)
{
.reg .pred %p; .reg .b32 %t, %w, %x, %y, %z, %r<9>; .reg .b64 %g, %d;
ld.param.u64 %g, [data]; mov.u32 %t, %tid.x; shr.u32 %w, %t, 5; mov.u32 %r0, %cluster_ctarank;
setp.eq.s32 %p, %w, 0;
"""
STORE_REMOTE = "mapa.shared::cluster.u32 %x, s, 0; st.shared::cluster.u32 [%x], %t;"
CLUSTER_BARRIER = "barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;"
COPY = "shl.b32 %x, %t, 4; mov.b32 %y, s; add.s32 %x, %x, %y; cp.async.cg.shared.global [%x], [%g], 16, 16;"
ACCUMULATORS = ", ".join(f"%r{i}" for i in range(1, 5))
WGMMA = f"wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {{{ACCUMULATORS}}}, %d, %d, 0, 1, 1, 0, 0;"
INIT = "@%p st.shared.u32 [s], 0; bar.sync 0; "
FILL = """shl.b32 %x, %t, 4; mov.b32 %y, s; add.s32 %x, %x, %y; st.shared.v2.u64 [%x], {0, 0}; bar.sync 0;
mov.b64 %d, 0x1000080000; """


def run(body, threads=64, grid=1, cluster=1, seed=0, data=None, **options):
    data = np.arange(64, dtype=np.uint32) if data is None else data
    program = Program(HEAD + body + "\nret;\n}\n")
    program.module.set(seed=seed)
    try:
        with device_memory(program.module, {"data": data}, **options):
            program.launch(data, grid=(grid, 1, 1), block=(threads, 1, 1), cluster=cluster, shared=2048)
    finally:
        program.module.set()
        program.unload()
    return data


SPIN = "again: ld.acquire.gpu.global.u32 %x, [%g]; setp.ne.u32 %p, %x, 77; @%p bra again;"
TRAPS = {
    "never written": ("ld.shared.u32 %x, [s+16];", {}),
    "shared address 2048 out of bounds": ("st.shared.u32 [s+2048], %t;", {}),
    "misaligned shared address": ("st.shared.u32 [s+2], %t;", {}),
    "global address .* out of bounds": ("ld.global.u32 %x, [%g+256];", {}),
    "misaligned global address": ("ld.global.v2.u32 {%x, %y}, [%g+4];", {}),
    "race: writing what was written": ("st.shared.u32 [s], %t;", {}),
    "race: (reading what was written|writing what is read)": (INIT
        + "@%p st.shared.u32 [s], 1; @!%p ld.shared.u32 %x, [s];", {}),
    "race: (writing what is read|reading)": (INIT + "ld.shared.u32 %x, [s]; @!%p st.shared.u32 [s], 2;", {}),
    "deadlock": ("@!%p bra past; bar.sync 1, 64; past:", {}),
    "deadlock: 2 warps": (SPIN, {}),
    "differs within the warp": ("setp.lt.u32 %p, %t, 7; @%p bar.sync 0;", {}),
    "threads missing": ("setp.lt.u32 %p, %t, 7; @%p bra past; shfl.sync.idx.b32 %x, %t, 0, 31, -1; past: bar.sync 0;",
        {}),
    "cp.async still copies": (COPY + "ld.shared.u32 %y, [%x];", {}),
    "race: reading what was written by warp|never written|still copies": (COPY
        + "cp.async.wait_all; ld.shared.u32 %y, [s+512];", {}),
    "may not have started": ("setp.eq.s32 %p, %r0, 1; @!%p bra past;" + STORE_REMOTE + "past:" + CLUSTER_BARRIER,
        {"grid": 2, "cluster": 2, "threads": 32}),
    "has left|may leave": (CLUSTER_BARRIER + "setp.eq.s32 %p, %r0, 1; @!%p bra past;" + STORE_REMOTE + "past:",
                           {"grid": 2, "cluster": 2, "threads": 32}),
    "an accumulator of a wgmma": (FILL + "fence.proxy.async.shared::cta; wgmma.fence.sync.aligned;" + WGMMA + "mov.b32 %x, %r1;",
        {"threads": 128}),
    "no wgmma.fence since": (FILL + "fence.proxy.async.shared::cta; wgmma.fence.sync.aligned; mov.b32 %r1, 0;" + WGMMA,
        {"threads": 128}),
    "no fence.proxy.async": (FILL + "wgmma.fence.sync.aligned;" + WGMMA, {"threads": 128}),
    "writing an operand of a wgmma": (FILL + "fence.proxy.async.shared::cta; wgmma.fence.sync.aligned;" + WGMMA
        + "st.shared.u64 [%x], 0;", {"threads": 128}),
    "wgmma not complete": (FILL + "fence.proxy.async.shared::cta; wgmma.fence.sync.aligned;" + WGMMA
        + "wgmma.wait_group.sync.aligned 0;", {"threads": 128}),
    r"line 9: unknown instruction frob.u32": ("frob.u32 %x, %t;", {}),
    r"unknown instruction add.odd.s32": ("add.odd.s32 %x, %t, %t;", {}),
    r"unknown modifier .odd": ("ld.odd.shared.u32 %x, [s];", {}),
}


@pytest.mark.parametrize("message", TRAPS)
def test_traps(message):
    body, options = TRAPS[message]
    for seed in (0, 1, 2):
        with pytest.raises(RuntimeError, match=message):
            run(body, seed=seed, **options)


ORDERED = {
    "barrier": "@%p st.shared.u32 [s], 5; bar.sync 0; ld.shared.u32 %x, [s]; @!%p st.global.u32 [%g], %x;",
    "named barriers": """@%p bra one; bar.sync 3, 64; ld.shared.u32 %x, [s]; st.global.u32 [%g], %x; bra end;
one: st.shared.u32 [s], 5; bar.sync 3, 64; end:""",
    "the same value": "st.shared.u32 [s], 5; bar.sync 0; ld.shared.u32 %x, [s]; st.global.u32 [%g], %x;",
    "loops that end apart": """mov.u32 %x, 0; and.b32 %y, %t, 7;
again: add.s32 %x, %x, 1; setp.lt.u32 %p, %x, %y; @%p bra again;
redux.sync.max.s32 %x, %x, -1; sub.s32 %x, %x, 2; st.global.u32 [%g], %x;""",
    "flag of the cluster": "setp.eq.s32 %p, %r0, 1; @!%p st.shared.u32 [s+4], 0; " + CLUSTER_BARRIER + """@!%p bra wait;
mapa.shared::cluster.u32 %x, s, 0; st.shared::cluster.u32 [%x], 5;
st.release.cluster.shared::cluster.u32 [%x+4], 1; bra end;
wait: ld.acquire.cluster.shared::cta.u32 %y, [s+4]; setp.eq.u32 %p, %y, 0; @%p bra wait;
ld.shared.u32 %x, [s]; st.global.u32 [%g], %x; end:""",
}


@pytest.mark.parametrize("name", ORDERED)
def test_what_is_in_order_is_no_trap(name):
    options = {"grid": 2, "cluster": 2, "threads": 32} if "cluster" in name else {}
    for seed in range(10):
        assert run(ORDERED[name], seed=seed, **options)[0] == 5


def test_global_memory_that_nobody_wrote():
    with pytest.raises(RuntimeError, match="never written"):
        data = np.zeros(64, np.uint32)
        program = Program(HEAD + "ld.global.u32 %x, [%g]; ret;\n}\n")
        with device_memory(program.module, unwritten={"data": data}):
            program.launch(data)


def test_the_device_refuses_more_blocks_than_it_has_room_for():
    module = machine()
    module.set_device(4, *DEVICES[90][1:])
    try:
        with pytest.raises(RuntimeError, match="8 blocks of a cooperative launch fit"):
            run_lstm(module, make(150, 40, [3]))
    finally:
        module.set_device(*DEVICES[90])


def test_counts_and_coverage():
    program = Program(HEAD + """mad.wide.u32 %d, %t, 4, %g; ld.global.u32 %x, [%d]; shl.b32 %y, %t, 7;
and.b32 %y, %y, 1023; mov.b32 %z, s; add.s32 %y, %y, %z; st.shared.u32 [%y], 0; @%p bra past;
mov.u32 %x, 7;
past: ret;\n}\n""")
    program.module.set(traffic=True)
    memory = np.zeros(72, np.uint32)
    program.launch(memory[-memory.ctypes.data % 32 // 4 :], block=(32, 1, 1), shared=2048)
    program.module.set()
    counts = program.counters()["test"]
    assert counts["ld.global.u32"] == dict(executed=1, threads=32, bytes=128, sectors=4, wavefronts=0, ideal=0)
    assert (counts["st.shared.u32"]["wavefronts"], counts["st.shared.u32"]["ideal"]) == (8, 1)
    assert [line for line, _ in program.coverage()["test"][1]] == [11]
