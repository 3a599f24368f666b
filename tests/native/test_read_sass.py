"""The lint over machine code, on short listings of it: what a round is, what ends one, and what is reported."""

import re

import pytest

from benchmarks.gpu import read_sass

POLL = """
W:  LDG.E.STRONG.GPU R0, desc[UR4][R2.64]
    CCTL.IVALL
    ISETP.NE.AND P0, PT, R0, R1, PT
    @P0 BRA W
A:  BAR.SYNC.DEFER_BLOCKING 0x0
"""
LOOP = "MOV R1, 0x1\nT: NOP\n{before}\n" + POLL + "{body}\nHMMA.16816.F32 R80, R84, R88, R80\n@P1 BRA T\nEXIT"
LOAD, USE = "LDG.E R8, desc[UR4][R2.64]\n", "FADD R9, R8, R9\n"
WIDE = "LDG.E.128 R8, desc[UR4][R2.64]\n"
PRODUCTS = "HMMA.16816.F32 R80, R84, R88, R80\n" * read_sass.HIDING
INDEPENDENT = [f"LDG.E R{number}, desc[UR4][R2.64+{number:#x}]\n" for number in range(10, 26)]
USES = [f"FADD R{number}, R{number}, R1\n" for number in range(10, 26)]
PIPELINE = f"I: @P3 BRA J\nDEPBAR.LE SB0, 0x0\nLDGSTS.E.128 [R7], desc[UR4][R2.64]\nJ: {PRODUCTS}@P2 BRA I\n"


def kernel(text: str) -> read_sass.Kernel:
    """Of lines as `cuobjdump -sass` prints them, with labels in place of addresses."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    labels = {}
    for number, line in enumerate(lines):
        if label := re.match(r"(\w+):\s*", line):
            labels[label[1]], lines[number] = f"{16 * number:#x}", line[label.end():]
    lines = [re.sub(rf"\b({'|'.join(labels)})$", lambda found: labels[found[1]], line) for line in lines]
    listing = "".join(f"        /*{16 * number:04x}*/    {line} ;   /* 0x01 */\n" for number, line in enumerate(lines))
    name = "_Z17persistent_kernelINS0_4Fp16ELi8ELi2ELi4ELi256EEE"
    (found,) = read_sass.kernels(f"\t\tFunction : {name}\n\t.headerflags @\"\"\n{listing}\t\t.....\n")
    assert len(found.code) == len(lines)
    return found


def in_loop(body: str, before: str = "") -> read_sass.Kernel:
    return kernel(LOOP.format(before=before, body=body))


@pytest.mark.parametrize("body, loads", {
    "a chain": ("LDG.E.64 R4, desc[UR4][R2.64]\nLDG.E.64 R6, desc[UR4][R4.64]\nLDG.E R8, desc[UR4][R6.64+0x4]\n" + USE,
                [1, 1, 1]),
    "independent": ("".join(INDEPENDENT + USES), [16]),
    "each used before the next is issued": ("".join(map("".join, zip(INDEPENDENT, USES))), [1] * 16),
    "asynchronous copies": ("LDGSTS.E.BYPASS.128 [R7], desc[UR4][R2.64]\n" * 8 + "LDGDEPBAR\nDEPBAR.LE SB0, 0x0", [8]),
    "in a branch": (f"@P2 BRA B\n{LOAD}{USE}B: {LOAD}{USE}", [1, 1]),
    "under way in a branch": (f"{LOAD}@P2 BRA B\nLDG.E R9, desc[UR4][R2.64]\nB: FADD R10, R8, R9", [2]),
    "used in the next step": (USE + LOAD, []),
    "hidden by products": (LOAD + PRODUCTS + USE, []),
    "behind products": (PRODUCTS + LOAD + USE, [1]),
    "a streamed weight": (WIDE.replace("128", "128.CONSTANT") + USE, []),
    **{use: (f"{WIDE}{use}\n{LOAD}{USE}", [1, 1]) for use in (
        "STG.E.128 desc[UR4][R2.64], R8", "ISETP.NE.AND P3, PT, R8, RZ, PT", "IMAD.WIDE R30, R1, 0x4, R10",
        "MOV R11, RZ", "HMMA.16816.F32 R80, R8, R88, R80", "LDS R1, [R11+UR5]", "SHFL.BFLY PT, R40, R11, 0x1, 0x1f")},
    **{other: (f"{WIDE}{other}\nLDG.E R20, desc[UR4][R2.64]\nFADD R1, R11, R20", [2]) for other in (
        "STG.E desc[UR4][R2.64], R7", "IMAD.WIDE R30, R1, 0x4, R12", "IADD3 R13, P2, R6, R7, RZ")},
}.values())
def test_rounds_of_a_step(body, loads):
    found = in_loop(body)
    assert [each.loads for each in found.rounds(found.time_loop)] == loads


@pytest.mark.parametrize("text, loads", [
    (LOOP.format(before=LOAD, body=USE), []), (LOOP.format(before=USE + LOAD + "MOV R1, R8", body=""), [1]),
    (LOOP.replace("W:", "@P4 BRA A\nW:").format(before=LOAD, body=USE), [])])  # some threads do not poll
def test_what_is_loaded_before_a_wait_at_the_barrier_costs_no_round(text, loads):
    found = kernel(text)
    assert [each.loads for each in found.rounds(found.time_loop)] == loads


def test_streamed_weights_and_the_cluster_are_counted_apart():
    found = in_loop(WIDE.replace("128", "128.CONSTANT") + USE + WIDE.replace("LDG", "LD") + USE)
    assert found.problems() == []
    assert "1 streamed weights, 1 grid barriers, 0 rounds of global loads, 1 in the cluster" in found.summary()


@pytest.mark.parametrize("body, said", [
    ("@!P2 LDL.64 R4, [R1]", "LDL.64 at 0x70: local memory"), ("STL [R1], R4", "local memory"),
    (WIDE, "a weight outside the streamed part"),
    ((LOAD + USE) * 5, "5 rounds of global loads a step, expected at most 4: 1 at 0x80"),
    ("I: LDG.E.128.STRONG.GPU R8, desc[UR4][R6.64]\nSTS.128 [R7], R8\n@P2 BRA I",
     "1 loops wait for loads in each pass, expected at most 0: from 0x70")])
def test_what_is_reported(body, said, monkeypatch):
    monkeypatch.setattr(read_sass, "MOST_WAITING", 0)
    (problem,) = in_loop(body).problems()
    assert said in problem


def test_a_loop_waits_where_products_do_not_hide_its_copies():
    assert in_loop(PIPELINE).rolled() == [] and len(in_loop(PIPELINE.replace(PRODUCTS, "NOP\n")).rolled()) == 1


def test_a_kernel_without_a_barrier_is_read_from_end_to_end():
    found = kernel(f"{LOAD}S: {USE}{LOAD}@P0 BRA S\nEXIT")
    assert found.time_loop == range(len(found.code)) and not found.problems()
    assert [len(found.rounds(loop)) for loop in (found.time_loop, *found.loops)] == [1, 1]
