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
from tests.support.native_program import COMPILER, ROOT, printed

BUILD = ROOT / "build" / f"cmake-{sys.implementation.cache_tag}"
pytestmark = [needs_native, pytest.mark.skipif(not (shutil.which("objdump") and shutil.which("nm") and COMPILER),
                                               reason="needs binutils and a compiler"),
              pytest.mark.skipif(not (BUILD / "compile_commands.json").exists(), reason="not built in this checkout"),
              pytest.mark.skipif("avx2" not in (native.engines() if native else ()), reason="for x86")]
# Patterns of the instructions that an instruction set adds, in the output of objdump.
BRINGS = {
    "avx2": r"%ymm|\tv[a-z]|\t(?:andn|bextr|bls[a-z]+|[ps](?:dep|ext)|rorx|mulx|s[ah][lr]x|tzcnt|lzcnt|movbe) ",
    "avx512": r"%zmm|%[xy]mm(?:1[6-9]|2\d|3[01])\b|%k[0-7]\b|\{1to",
    "vnni": r"\tvpdp",
    "bf16": r"\tv(?:dpbf16ps|cvtne2?ps2?bf16)",
    "amx": r"%tmm|\t(?:ld|st)tilecfg|\ttilerelease"}
SETS = {"generic": (), "avx2": ("avx2",), "avx_vnni": ("avx2", "vnni"), "avx512": ("avx2", "avx512"),
        "avx512_vnni": ("avx2", "avx512", "vnni"), "avx512_bf16": ("avx2", "avx512", "vnni", "bf16"),
        "amx": ("avx2", "avx512", "bf16", "amx")}
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
    above = re.compile("|".join(pattern for level, pattern in BRINGS.items() if level not in allowed) or "(?!)")
    messages, symbol = [], ""
    for line in printed(["objdump", "-dC", "--no-show-raw-insn", path]).splitlines():
        symbol = line if line.endswith(">:") else symbol
        if line.startswith(" ") and above.search(line):
            messages.append(f"above its set in {symbol} {line.strip()}")
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
    assert {*SETS} == {name for name in engines.values() if name} and list(engines.values()).count(None) > 5
    assert not [fault for path, name in engines.items() for fault in faults(path, name)]
    for name in ("avx2", "avx512", "amx"):  # the patterns match the instructions of each set
        (path,) = [path for path, engine in engines.items() if engine == name]
        assert len(re.findall(BRINGS[name], printed(["objdump", "-d", "--no-show-raw-insn", path]))) > 100


def test_detection_checks_every_feature_of_the_flags():
    assert not missing_checks(native.engines(), BUILD)
