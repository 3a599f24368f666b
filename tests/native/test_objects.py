"""Objects of the engine: no object has instructions beyond its instruction set, shares code with other sets or runs
code when the module is loaded, and detection checks every feature of an object's flags."""

import functools
import json
import os
import re
import shlex
import shutil
import sys
from pathlib import Path

import pytest

from tests.support.engines import native, needs_native
from tests.support.instructions import feature, instructions
from tests.support.native_program import COMPILER, ROOT, printed

BUILD = ROOT / "build" / f"cmake-{sys.implementation.cache_tag}"
pytestmark = [needs_native, pytest.mark.skipif(not (shutil.which("objdump") and shutil.which("nm") and COMPILER),
                                               reason="needs binutils and a compiler"),
              pytest.mark.skipif(not (BUILD / "compile_commands.json").exists(), reason="not built in this checkout"),
              pytest.mark.skipif("avx2" not in (native.engines() if native else ()), reason="for x86")]
_AVX2 = {"base", "avx2", "fma"}
_AVX512 = {*_AVX2, "avx512"}
SETS = {"generic": {"base"}, "avx2": _AVX2, "avx_vnni": {*_AVX2, "avx_vnni"}, "avx512": _AVX512,
        "avx512_vnni": {*_AVX512, "avx512_vnni"}, "avx512_bf16": {*_AVX512, "avx512_vnni", "avx512_bf16"},
        "amx": {*_AVX512, "avx512_bf16", "amx"}}
# Instructions by the feature that they need; `other` may be in no object.
PLANTED = {
    "base": ["addps %xmm1, %xmm2", "mulsd (%rax), %xmm9", "cvtdq2ps %xmm0, %xmm1", "lock cmpxchg %rcx, (%rdx)",
             "fldt (%rax)", "pshufd $1, %xmm1, %xmm2", "movq %xmm8, %rax", "cpuid", "xgetbv", "mfence", "sfence",
             "ldmxcsr (%rax)", "cmpxchg8b (%rax)", "prefetcht0 (%rax)", "endbr64", "nopw 0x0(%rax,%rax,1)",
             "cs nopw 0x0(%rax,%rax,1)", "rep movsb", "fistpl (%rax)", "bsf %eax, %ecx"],
    "avx2": ["vaddps %ymm1, %ymm2, %ymm3", "vpmaddubsw %ymm1, %ymm2, %ymm3", "vpmaddwd %ymm1, %ymm2, %ymm9",
             "vgatherdps %ymm1, (%rax,%ymm2,4), %ymm3", "vpermq $1, %ymm1, %ymm2", "vroundps $1, %ymm1, %ymm2",
             "vzeroupper", "vmovdqu (%rax), %xmm9", "vpsllvd %ymm1, %ymm2, %ymm3", "vmaskmovps (%rax), %ymm1, %ymm2"],
    "fma": ["vfmadd231ps %ymm1, %ymm2, %ymm3", "vfnmadd213ss %xmm1, %xmm2, %xmm3",
            "vfmsubadd132pd (%rax), %ymm2, %ymm8"],
    "avx512": ["vaddps %zmm1, %zmm2, %zmm3", "vpternlogd $1, %ymm1, %ymm2, %ymm3", "vaddps %ymm16, %ymm2, %ymm3",
               "kmovw %eax, %k1", "kshiftrw $1, %k1, %k2", "vpermt2w %zmm1, %zmm2, %zmm3",
               "vcvtps2ph $0, %zmm1, %ymm2", "vpmovusdb %zmm1, %xmm2", "vrndscaleps $1, %zmm1, %zmm2",
               "vaddps (%rax){1to16}, %zmm1, %zmm2", "vpmovm2d %k1, %zmm2", "vandps %zmm1, %zmm2, %zmm3",
               "vpmullq %ymm1, %ymm2, %ymm3", "vfmadd231ps %zmm1, %zmm2, %zmm3", "vpermw %zmm1, %zmm2, %zmm3",
               "vrangeps $1, %zmm1, %zmm2, %zmm3"],
    "avx_vnni": ["{vex} vpdpbusd %ymm1, %ymm2, %ymm3", "{vex} vpdpwssds %xmm1, %xmm2, %xmm3"],
    "avx512_vnni": ["vpdpbusd %zmm1, %zmm2, %zmm3", "vpdpwssd %ymm16, %ymm2, %ymm3"],
    "avx512_bf16": ["vdpbf16ps %zmm1, %zmm2, %zmm3", "vcvtne2ps2bf16 %zmm1, %zmm2, %zmm3",
                    "vcvtneps2bf16 %zmm1, %ymm2"],
    "amx": ["tdpbf16ps %tmm1, %tmm2, %tmm3", "tdpbssd %tmm1, %tmm2, %tmm3", "tileloadd (%rax,%rcx,1), %tmm0",
            "tilerelease", "ldtilecfg (%rax)", "sttilecfg (%rax)", "tilezero %tmm1", "tilestored %tmm1, (%rax,%rcx,1)",
            "tileloaddt1 (%rax,%rcx,1), %tmm0"],
    "other": ["pshufb %xmm1, %xmm2", "roundps $1, %xmm1, %xmm2", "popcnt %eax, %ecx", "lzcnt %eax, %ecx",
              "tzcnt %eax, %ecx", "haddps %xmm1, %xmm2", "movddup %xmm1, %xmm2", "lddqu (%rax), %xmm1",
              "fisttpl (%rax)", "crc32b %al, %ecx", "movbe (%rax), %ecx", "aesenc %xmm1, %xmm2",
              "pclmulqdq $1, %xmm1, %xmm2", "sha1rnds4 $1, %xmm1, %xmm2", "cmpxchg16b (%rax)", "rdrand %eax",
              "xsave (%rax)", "clwb (%rax)", "rdtscp", "adcx %eax, %ecx", "palignr $1, %xmm1, %xmm2",
              "pmulld %xmm1, %xmm2", "extrq $1, $2, %xmm1", "andn %eax, %ecx, %edx", "mulx %eax, %ecx, %edx",
              "shlx %eax, %ecx, %edx", "vcvtph2ps %xmm1, %ymm2", "vfmaddps %xmm1, %xmm2, %xmm3, %xmm4",
              "vgf2p8mulb %ymm1, %ymm2, %ymm3", "vgf2p8affineqb $1, %zmm1, %zmm2, %zmm3",
              "vaesenc %ymm1, %ymm2, %ymm3", "vpclmulqdq $1, %zmm1, %zmm2, %zmm3", "vpermb %zmm1, %zmm2, %zmm3",
              "vpermi2b %zmm1, %zmm2, %zmm3", "vpmultishiftqb %zmm1, %zmm2, %zmm3", "vpcompressb %zmm1, %zmm2",
              "vpshldvd %zmm1, %zmm2, %zmm3", "vpopcntd %zmm1, %zmm2", "vpopcntb %zmm1, %zmm2",
              "vpmadd52luq %zmm1, %zmm2, %zmm3", "vplzcntd %zmm1, %zmm2", "vpconflictd %zmm1, %zmm2",
              "vpbroadcastmb2q %k1, %zmm2", "vaddph %zmm1, %zmm2, %zmm3", "vfmadd231ph %zmm1, %zmm2, %zmm3",
              "vrndscaleph $1, %zmm1, %zmm2", "vp2intersectd %zmm1, %zmm2, %k2", "vrcp28ps %zmm1, %zmm2",
              "vpcomb $1, %xmm1, %xmm2, %xmm3"]}
# What a change of the engine's source may bring, by the fault that it is.
PLANTED_CODE = {
    "avx512 in": '__attribute__((target("avx512f"))) void one(float* x) { for (int i = 0; i < 16; ++i) x[i] = 1; }',
    "exported": "float scales[16];",
    "shared: ": "#include <vector>\nfloat* grow(std::vector<float>& x) { x.push_back(1); return x.data(); }",
    ".init_array": "#include <cmath>\nstatic struct Table { float rows[9]; Table(float x) { for (float& row : rows) "
                   "row = std::exp(x++); } } table(1);\nfloat at(int i) { return table.rows[i]; }"}
MACROS = {"__SSE3__": "sse3", "__SSSE3__": "ssse3", "__SSE4_1__": "sse4.1", "__SSE4_2__": "sse4.2", "__AVX__": "avx",
          "__POPCNT__": "popcnt", "__XSAVE__": "xsave", "__F16C__": "f16c", "__FMA__": "fma", "__AVX2__": "avx2",
          "__BMI__": "bmi1", "__BMI2__": "bmi2", "__LZCNT__": "lzcnt", "__MOVBE__": "movbe", "__AVX512F__": "avx512f",
          "__AVX512BW__": "avx512bw", "__AVX512CD__": "avx512cd", "__AVX512DQ__": "avx512dq",
          "__AVX512VL__": "avx512vl", "__AVX512BF16__": "avx512_bf16", "__AMX_TILE__": "amx_tile",
          "__AMX_BF16__": "amx_bf16", "__AVXVNNI__": "avx_vnni", "__AVX512VNNI__": "avx512_vnni",
          "__AMX_INT8__": "amx_int8"}
NO_FEATURES = re.compile("__(BIGGEST_ALIGNMENT|FP_FAST_FMA.*|CRC32|EVEX.*|tune_.*|SSE.?_MATH)_*$")  # CRC32 is in SSE4.2


def objects(build: Path) -> dict[Path, str | None]:
    """Objects of the module with their instruction sets, None for objects that run on any processor."""
    engines = {path: re.search(r"/(?:engine_)?(\w+)\.dir/", path.as_posix())[1]
               for path in build.rglob("*.dir/**/*.o") if not path.name.endswith(".cu.o")}
    return {path: name if name in SETS else None for path, name in engines.items() if name != "check_engines"}


def faults(path: Path, name: str | None) -> list[str]:
    """Faults of an object of the engine `name`, or of no engine."""
    allowed = SETS[name or "generic"]
    messages = [f"{needed} in {symbol} {text}" for symbol, code, text in instructions(path)
                if (needed := feature(code)) not in allowed]
    if name is None:
        return messages
    symbols = [line.split(maxsplit=2) for line in printed(["nm", "-C", "--defined-only", path]).splitlines()]
    exported = [(kind, symbol) for _, kind, symbol in symbols if kind.isupper() and "DW.ref" not in symbol]
    messages += [f"exported: {entry}" for entry in exported if entry != ("D", f"elmo_fast::cpu::{name}_engine")]
    messages += [f"shared: {symbol}" for _, kind, symbol in symbols if kind in "VvWwu" and "DW.ref" not in symbol]
    return messages + re.findall(r"\.(?:init|ctors|preinit)\w*", printed(["objdump", "-h", path]))


@functools.cache
def macros(compiler: str, *flags: str) -> set[str]:
    """The macros that the compiler predefines."""
    return set(re.findall(r"#define (\w+)", printed([compiler, *flags, "-dM", "-E", "-x", "c++", os.devnull])))


def compiled_features(command: list[str]) -> set[str]:
    """The CPU features that the flags of a compile command enable."""
    extra = macros(command[0], *(flag for flag in command[1:] if flag.startswith("-m"))) - macros(command[0])
    return {MACROS.get(macro, macro) for macro in extra if not NO_FEATURES.match(macro)}


def missing_checks(engines: dict, build: Path) -> list[str]:
    """Features that an engine is compiled for but detection does not check, or the reverse."""
    mismatches = []
    for entry in json.loads((build / "compile_commands.json").read_text()):
        if name := re.search(r"engine_(\w+)\.dir", entry["command"]):
            detected = {feature for feature, needed in engines[name[1].replace("_", "-")].items() if needed}
            if wrong := compiled_features(shlex.split(entry["command"])) ^ detected:
                mismatches.append(f"{name[1]}: {sorted(wrong)}")
    return mismatches


def test_every_object_stays_within_its_instruction_set():
    engines = objects(BUILD)
    assert {*SETS} == {name for name in engines.values() if name} and list(engines.values()).count(None) >= 3
    assert not [fault for path, name in engines.items() for fault in faults(path, name)]


@pytest.mark.parametrize("needed", PLANTED)
def test_features_are_read_from_the_bytes_of_instructions(needed, tmp_path):
    (tmp_path / "planted.s").write_text("".join(f"{line}\n" for line in PLANTED[needed]))
    printed([COMPILER, "-c", tmp_path / "planted.s", "-o", tmp_path / "planted.o"])
    code = [(text, feature(code)) for _, code, text in instructions(tmp_path / "planted.o")]
    assert len(code) == len(PLANTED[needed])
    assert not [line for line in code if line[1] != needed]


@pytest.mark.parametrize("fault", PLANTED_CODE)
def test_faults_of_an_engine_are_found(fault, tmp_path):
    (tmp_path / "planted.cpp").write_text(PLANTED_CODE[fault])
    flags = "-O3", "-mavx2", "-mfma", "-fvisibility=hidden", "-fvisibility-inlines-hidden"
    printed([COMPILER, *flags, "-c", tmp_path / "planted.cpp", "-o", tmp_path / "planted.o"])
    assert [message for message in faults(tmp_path / "planted.o", "avx2") if fault in message]


def test_detection_checks_every_feature_of_the_flags():
    assert not missing_checks(native.engines(), BUILD)
