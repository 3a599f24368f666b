"""Programs that the PTX interpreter must refuse, and programs that it must run.

The results of its instructions are compared with float64 in the kernels (test_cuda_lstm_kernel, test_ptx_triton).
"""

import numpy as np
import pytest
import torch

from tests.support.ptx_machine import launch, machine

pytestmark = pytest.mark.long  # building the PTX interpreter takes minutes

HEAD = """.version 8.0
.target sm_90a
.extern .shared .align 128 .b8 s[];
.entry test(.param .u64 data)
{
.reg .pred %p, %q; .reg .b32 %t, %w, %x, %y, %z, %r<9>; .reg .b64 %g, %at;
ld.param.u64 %g, [data]; mov.u32 %t, %tid.x; shr.u32 %w, %t, 5; mov.u32 %r0, %cluster_ctarank;
setp.eq.s32 %p, %w, 0;
"""


def run(body, threads=64, grid=1, seed=0, **options):
    """The values at [%g], initially 0 to 63, after a kernel of `body`."""
    data = np.arange(64, dtype=np.uint32)
    machine().set(seed=seed)
    launch(HEAD + body + "\nret;\n}\n", torch.from_numpy(data), grid=(grid, 1, 1), block=(threads, 1, 1), shared=2048,
           **options)
    return data


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
# Thread 0 of block 1 stores 5 in block 0, which waits for the store; a block copies 4 to 7 to both blocks.
PUSH = """sub.s32 %z, %r0, %t; setp.eq.s32 %p, %z, 1; @!%p bra past; mapa.shared::cluster.u32 %x, s, 0; mov.u32 %y, 5;
st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%x], {%y, %y, %y, %y}, [%x+16]; past: """
EXPECT = "add.s32 %z, %r0, %t; setp.eq.s32 %q, %z, 0; @%q " + ARRIVE
FIRST = "setp.eq.s32 %q, %r0, 1; @%q bra end; "
MULTICAST = """sub.s32 %z, %r0, %t; setp.eq.s32 %p, %z, 1; mov.b32 %y, s;
@%p cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%y], [%g+16], 16, [%y+16], 3;
"""
# Thread 0 of each block reads what a copy will overwrite, and may arrive at a barrier of the cluster.
READ = (PHASES + "@%q mbarrier.init.shared::cta.b64 [s+32], 1; fence.mbarrier_init.release.cluster; " + CLUSTER_BARRIER
        + "@%q st.shared.u32 [s], 0; fence.proxy.async.shared::cta; @%q ld.shared.u32 %x, [s]; ")
ARRIVE_REMOTE = "mapa.shared::cluster.u32 %y, s, %r0; @%q mbarrier.arrive.shared::cluster.b64 _, [%y+32]; "
# Message: the program that must be refused, and launch options.
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
    "written with no fence.proxy.async since": (PUBLISHED + "@%q st.shared.u32 [s], 0; " + CLUSTER_BARRIER + MULTICAST
                                 + CLUSTER_BARRIER, PAIR),
    "read with no fence.proxy.async since": (READ + "add.u32 %z, %x, 1; " + CLUSTER_BARRIER + MULTICAST
                                             + CLUSTER_BARRIER, PAIR),
    "what was read with no fence.proxy.async": (READ + ARRIVE_REMOTE + "add.u32 %z, %x, 1; " + CLUSTER_BARRIER
                                                + MULTICAST + CLUSTER_BARRIER, PAIR),
    "a wait of block scope": (PUBLISHED + PUSH + EXPECT + FIRST + AGAIN.replace(".acquire.cluster", "") + "end:"
                              + CLUSTER_BARRIER, PAIR),
    "a bulk copy of 8 bytes": (PUBLISHED + MULTICAST.replace(", 16, [", ", 8, ["), PAIR),
    "not aligned to 16": (PUBLISHED + MULTICAST.replace("[%g+16]", "[%g+8]"), PAIR),
    r"line 9: unknown instruction frob.u32": ("frob.u32 %x, %t;", {}),
    r"unknown instruction add.odd.s32": ("add.odd.s32 %x, %t, %t;", {}),
    r"unknown modifier .odd": ("ld.odd.shared.u32 %x, [s];", {}),
}
# Correct programs, which store 5.
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
    "a block that one of its warps says has started": ("""shl.b32 %z, %r0, 6; add.s32 %z, %z, %t;
setp.eq.u32 %p, %z, 32; @%p st.release.gpu.global.u32 [%g+4], 7; setp.eq.u32 %q, %z, 64; @!%q bra past;
begun: ld.acquire.gpu.global.u32 %x, [%g+4]; setp.ne.u32 %p, %x, 7; @%p bra begun;
mapa.shared::cluster.u32 %x, s, 0; st.shared::cluster.u32 [%x], 5; st.release.gpu.global.u32 [%g+8], 7;
past: setp.lt.u32 %p, %z, 64; @!%p bra end;
done: ld.acquire.gpu.global.u32 %x, [%g+8]; setp.ne.u32 %p, %x, 7; @%p bra done; """ + SHOWN + "end:",
                                                       {"grid": 2, "cluster": 2}),
    "a store that an mbarrier counts": (PUBLISHED + PUSH + EXPECT + FIRST + AGAIN + "end:" + CLUSTER_BARRIER, PAIR),
    "a copy to two blocks": (PUBLISHED + "@%q " + ARRIVE + MULTICAST + AGAIN + CLUSTER_BARRIER, PAIR),
    "a copy over what was read and used before an arrival": (
        READ + "add.u32 %z, %x, 1; " + ARRIVE_REMOTE + CLUSTER_BARRIER + "@%q " + ARRIVE + MULTICAST + AGAIN
        + CLUSTER_BARRIER, PAIR),
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
def test_ordered_programs_do_not_trap(name):
    body, options = ORDERED[name]
    for seed in range(10):
        assert run(body, seed=seed, **options)[0] == 5
