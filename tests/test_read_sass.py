"""The reader of machine code finds what it is to find, in a few lines of it."""

import pytest
from benchmarks.gpu import read_sass

NAME = "_ZN17persistent_kernelI"
LOOP = """        Function : {name}
        /*0000*/                   LDG.E.128 R4, desc[UR4][R2.64] ;
        /*0010*/                   S2R R0, SR_TID.X ;
        /*0020*/                   LDS.128 R8, [R3] ;
        /*0030*/                   HMMA.16816.F32 R4, R8, R2, R4 ;
        /*0040*/                   {extra} ;
        /*0050*/              @!P0 BRA 0x20 ;
        /*0060*/                   EXIT ;
        /*0070*/                   BRA 0x70;
"""


def found(extra, name=NAME):
    ((kernel, code),) = read_sass.functions(LOOP.format(name=name, extra=extra)).items()
    assert kernel == name and len(code) == 8
    return read_sass.problems(kernel, code)


@pytest.mark.parametrize("extra", ["LDG.E R1, desc[UR4][R2.64]", "LDG.E.128.STRONG.GPU R4, desc[UR4][R2.64]", "NOP"])
def test_a_sound_loop(extra):
    assert found(extra) == []


@pytest.mark.parametrize("extra,what", [
    ("LDG.E.128 R4, desc[UR4][R2.64]", "weight"), ("LD.E.128 R4, desc[UR4][R2.64]", "weight"),
    ("@P1 LDG.E.128.CONSTANT R4, desc[UR4][R2.64]", "weight"), ("STL [R1], R4", "STL"),
    ("@!P2 LDL.64 R4, [R1]", "LDL")])
def test_a_planted_fault(extra, what):
    (line,) = found(extra)
    assert what in line


def test_a_step_kernel_streams_its_weights():
    assert found("LDG.E.128 R4, desc[UR4][R2.64]", "_ZN11step_kernelI") == []


def test_tensor_cores_must_be_there():
    code = [each for each in read_sass.functions(LOOP.format(name=NAME, extra="NOP"))[NAME] if "MMA" not in each[1]]
    assert any("tensor-core" in each for each in read_sass.problems(NAME, code))
