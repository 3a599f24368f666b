"""The lint over machine code, on short listings of it: what a round is, what ends one, and what is reported."""

import re

import pytest

from benchmarks.gpu import read_sass

POLL = """
W:  LDG.E.STRONG.GPU R0, desc[UR4][R2.64]
    CCTL.IVALL
    ISETP.NE.AND P0, PT, R0, R1, PT
    @P0 BRA W
    BAR.SYNC.DEFER_BLOCKING 0x0
"""
LOOP = "MOV R1, 0x1\nT: NOP\n{before}\n" + POLL + "{body}\nHMMA.16816.F32 R80, R84, R88, R80\n@P1 BRA T\nEXIT"


def kernel(text: str) -> read_sass.Kernel:
    """Of lines as `cuobjdump -sass` prints them, with labels in place of addresses."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    labels = {}
    for number, line in enumerate(lines):
        if label := re.match(r"(\w+):\s*", line):
            labels[label[1]], lines[number] = f"{16 * number:#x}", line[label.end():]
    lines = [re.sub(rf"\b({'|'.join(labels) or 'NONE'})$", lambda found: labels[found[1]], line) for line in lines]
    listing = "".join(f"        /*{16 * number:04x}*/    {line} ;   /* 0x01 */\n" for number, line in enumerate(lines))
    (found,) = read_sass.kernels(f"\t\tFunction : _Z17persistent_kernelINS0_4Fp16ELi8ELi3E\n\t.headerflags @\"\"\n{listing}\t\t.....\n")
    assert len(found.code) == len(lines)
    return found


def rounds(body: str, before: str = "") -> list[int]:
    """Loads in each round of a time loop."""
    found = kernel(LOOP.format(before=before, body=body))
    (loop,) = found.time_loops
    return [each.loads for each in found.rounds(loop)]


def test_a_chain_is_as_many_rounds_as_it_has_loads():
    assert rounds("LDG.E.64 R4, desc[UR4][R2.64]\nLDG.E.64 R6, desc[UR4][R4.64]\nLDG.E R8, desc[UR4][R6.64+0x4]\n"
                  "FADD R9, R8, R8") == [1, 1, 1]


def test_independent_loads_are_one_round():
    loads = [f"LDG.E R{number}, desc[UR4][R2.64+{number:#x}]" for number in range(10, 26)]
    uses = [f"FADD R{number}, R{number}, R1" for number in range(10, 26)]
    assert rounds("\n".join(loads + uses)) == [16]
    mixed = [line for pair in zip(loads, uses) for line in pair]
    assert rounds("\n".join(mixed)) == [1] * 16  # in order, each use waits before the next load is issued


@pytest.mark.parametrize("use", [
    "STG.E.128 desc[UR4][R2.64], R8", "ISETP.NE.AND P3, PT, R8, RZ, PT", "IMAD.WIDE R30, R1, 0x4, R10", "MOV R11, RZ",
    "HMMA.16816.F32 R80, R8, R88, R80", "LDS R1, [R11+UR5]", "SHFL.BFLY PT, R40, R11, 0x1, 0x1f"])
def test_every_kind_of_use_is_seen(use):
    load = "LDG.E.128 R8, desc[UR4][R2.64]"
    assert rounds(f"{load}\n{use}\nLDG.E R8, desc[UR4][R2.64]\nMOV R9, R8") == [1, 1]


@pytest.mark.parametrize("no_use", [
    "STG.E desc[UR4][R2.64], R7", "IMAD.WIDE R30, R1, 0x4, R12", "IADD3 R13, P2, R6, R7, RZ"])
def test_registers_beside_the_loaded_ones_are_no_use(no_use):
    assert rounds(f"LDG.E.128 R8, desc[UR4][R2.64]\n{no_use}\nLDG.E R20, desc[UR4][R2.64]\nFADD R1, R11, R20") == [2]


def test_what_is_loaded_before_a_wait_at_the_barrier_costs_no_round():
    assert rounds("FADD R9, R8, R8", before="LDG.E R8, desc[UR4][R2.64]") == []
    # loaded in one step, used in the next
    assert rounds("FADD R9, R8, R8\nLDG.E R8, desc[UR4][R2.64]") == []
    assert rounds("", before="FADD R9, R8, R8\nLDG.E R8, desc[UR4][R2.64]\nMOV R1, R8") == [1]
    # nor does the thread that does not poll
    skipped = LOOP.replace("W:", "@P4 BRA A\nW:").replace("BAR.SYNC", "A: BAR.SYNC")
    found = kernel(skipped.format(before="LDG.E R8, desc[UR4][R2.64]", body="FADD R9, R8, R8"))
    assert [found.rounds(loop) for loop in found.time_loops] == [()]


def test_the_worst_path_counts():
    branch = "@P2 BRA B\nLDG.E R8, desc[UR4][R2.64]\nMOV R9, R8\nB: LDG.E R9, desc[UR4][R2.64]\nMOV R10, R9"
    assert rounds(branch) == [1, 1]
    # a way around a load that is under way adds none to it
    assert rounds("LDG.E R8, desc[UR4][R2.64]\n@P2 BRA B\nLDG.E R9, desc[UR4][R2.64]\nB: FADD R10, R8, R9") == [2]


def test_asynchronous_copies_are_waited_for_once():
    copies = "LDGSTS.E.BYPASS.128 [R7], desc[UR4][R2.64]\n" * 8
    assert rounds(f"{copies}LDGDEPBAR\nDEPBAR.LE SB0, 0x0") == [8]


def test_streamed_weights_and_the_cluster_are_counted_apart():
    body = "LDG.E.128.CONSTANT R8, desc[UR4][R2.64]\nMOV R1, R8\nLD.E.128 R8, desc[UR4][R2.64]\nMOV R1, R8"
    found = kernel(LOOP.format(before="", body=body))
    assert found.problems() == []
    assert "1 streamed weights, 1 grid barriers, 0 rounds of global loads, 1 in the cluster" in found.summary()


@pytest.mark.parametrize("body, said", [
    ("@!P2 LDL.64 R4, [R1]", "LDL.64 at 0x70: local memory"), ("STL [R1], R4", "local memory"),
    ("LDG.E.128 R8, desc[UR4][R2.64]", "a weight outside the streamed part"),
    ("LDG.E R8, desc[UR4][R2.64]\nMOV R1, R8\n" * 5, "5 rounds of global loads a step, expected at most 4: 1 at 0x80"),
    ("I: LDG.E.128.STRONG.GPU R8, desc[UR4][R6.64]\nSTS.128 [R7], R8\n@P2 BRA I",
     "1 loops wait for loads in each pass, expected at most 0: from 0x70")])
def test_what_is_reported(body, said, monkeypatch):
    monkeypatch.setattr(read_sass, "MOST_WAITING", 0)
    (problem,) = kernel(LOOP.format(before="", body=body)).problems()
    assert said in problem


def test_a_wait_behind_products_is_hidden():
    products = "HMMA.16816.F32 R80, R84, R88, R80\n" * read_sass.HIDING
    load, use = "LDG.E R8, desc[UR4][R2.64]\n", "MOV R9, R8\n"
    assert rounds(load + products + use) == [] and rounds(products + load + use) == [1]
    loop = f"I: @P3 BRA J\nDEPBAR.LE SB0, 0x0\nLDGSTS.E.128 [R7], desc[UR4][R2.64]\nJ: {products}@P2 BRA I\n"
    found = kernel(LOOP.format(before="", body=loop))  # copies for the pass after the next
    (time_loop,) = found.time_loops
    assert found.rolled(time_loop) == [] and found.rounds(time_loop) == ()
    found = kernel(LOOP.format(before="", body=loop.replace(products, "NOP\n")))
    assert len(found.rolled(found.time_loops[0])) == 1


def test_a_kernel_without_a_barrier_is_read_from_end_to_end():
    found = kernel("LDG.E R8, desc[UR4][R2.64]\nS: FADD R9, R8, R9\nLDG.E R8, desc[UR4][R2.64]\n@P0 BRA S\nEXIT")
    assert found.time_loops == [set(found.code)] and not found.problems()
    assert [len(found.rounds(loop)) for loop in (*found.time_loops, *found.loops)] == [1, 1]
