"""The CPU feature that an x86-64 instruction needs, read from its bytes (Intel's manual, volume 2, appendix A).

Lists say what a feature has; an opcode that no list has needs a feature that no engine may use.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.support.native_program import printed

_LEGACY_PREFIXES = {0x66, 0xF2, 0xF3, 0x2E, 0x36, 0x3E, 0x26, 0x64, 0x65, 0x67, 0xF0}
_NO_PREFIX, _66, _F3, _F2 = range(4)  # the field pp of VEX and EVEX


class _Opcode(NamedTuple):
    """A map (1: 0F, 2: 0F38, 3: 0F3A, ...), a mandatory prefix, the opcode byte, the bit W and the ModR/M byte."""

    map: int
    prefix: int
    byte: int
    w: int
    modrm: int


def _bytes(ranges: str) -> frozenset[int]:
    """Opcode bytes from "00-0F 16"."""
    ends = (part.split("-") for part in ranges.split())
    return frozenset(byte for first, *last in ends for byte in range(int(first, 16), int((last or [first])[0], 16) + 1))


# Opcodes of AVX and AVX2 with a VEX prefix, by map; of FMA.
_AVX2 = {2: _bytes("00-0B 0C-0F 16-1A 1C-1E 20-25 28-2B 2C-2F 30-41 45-47 58-5A 78 79 8C 8E 90-93"),
         3: _bytes("00-02 04-06 08-0F 14-19 20-22 38 39 40-42 46 4A-4C 60-63")}
_FMA = _bytes("96-9F A6-AF B6-BF")
_MASKS = {1: _bytes("41 42 44-47 4A 4B 90-93 98 99"), 3: _bytes("30-33")}  # of AVX-512, with a VEX prefix
# Opcodes of AVX-512 F, BW, DQ and VL with the prefix 66 or, where they move between widths or masks, F3.
_AVX512 = {(2, _66): _bytes("00 04 0B-0D 10-16 18-2D 30-40 42 43 45-47 4C-4F 58-5B 64-66 76-7C 7E 7F 88-8B 90-93 "
                            "96-9F A0-A3 A6-AF B6-BF"),
           (2, _F3): _bytes("10-15 20-29 30-35 38 39"),
           (3, _66): _bytes("00 01 03-05 08-0B 0F 14-1B 1D-1F 20-23 25-27 38-3B 3E 3F 42 43 50 51 54-57 66 67")}
_AVX512_WORDS = _bytes("75 7D 8D")  # permutations of words where W is 1, of bytes (VBMI) otherwise
# Opcodes beyond SSE2 in map 1 by prefix: SSE3, SSE4a, popcnt, lzcnt, tzcnt, 3DNow! and prefetchw.
_BEYOND_SSE2 = {_NO_PREFIX: _bytes("0D 0F"), _66: _bytes("78 79 7C 7D D0"), _F3: _bytes("12 16 2B B8 BC BD"),
                _F2: _bytes("12 2B 78 79 7C 7D D0 F0")}
_XGETBV = 0xD0  # detection runs it after cpuid has allowed it
_FENCES_AND_CONTROL = {0, 1, 2, 3}  # fxsave, fxrstor, ldmxcsr, stmxcsr of 0F AE


def instructions(path: Path) -> Iterator[tuple[str, bytes, str]]:
    """The function, bytes and text of every instruction of an object file."""
    symbol = ""
    for line in printed(["objdump", "-dC", "--insn-width=16", path]).splitlines():
        symbol = line if line.endswith(">:") else symbol
        if match := re.match(r" +[0-9a-f]+:\t((?:[0-9a-f]{2} )+) *\t(.+)", line):
            yield symbol, bytes.fromhex(match[1]), match[2]


def feature(code: bytes) -> str:
    """`base` (SSE2 and older), `avx2`, `fma`, `avx512`, `avx_vnni`, `avx512_vnni`, `avx512_bf16`, `amx` or `other`."""
    prefix, w, position = _NO_PREFIX, 0, 0
    while code[position] in _LEGACY_PREFIXES:
        prefix = {0x66: prefix or _66, 0xF3: _F3, 0xF2: _F2}.get(code[position], prefix)
        position += 1
        if position == len(code):
            return "base"  # a prefix by itself, in padding
    rest = code[position:]
    if rest[0] == 0xC5:
        return _of_vex(_Opcode(1, rest[1] & 3, rest[2], 0, _at(rest, 3)))
    if rest[0] == 0xC4:
        return _of_vex(_Opcode(rest[1] & 31, rest[2] & 3, rest[3], rest[2] >> 7, _at(rest, 4)))
    if rest[0] == 0x62:
        return _of_evex(_Opcode(rest[1] & 7, rest[2] & 3, rest[4], rest[2] >> 7, _at(rest, 5)))
    if rest[0] == 0xD5 or (rest[0] == 0x8F and rest[1] & 31 >= 8):  # APX, XOP
        return "other"
    if rest[0] >> 4 == 4:
        w, rest = rest[0] >> 3 & 1, rest[1:]
    if rest[0] == 0x0F:
        return "base" if _is_base(_Opcode(1, prefix, rest[1], w, _at(rest, 2))) else "other"
    stores_truncated = rest[0] in (0xDB, 0xDD, 0xDF) and rest[1] < 0xC0 and rest[1] >> 3 & 7 == 1  # fisttp, SSE3
    return "other" if stores_truncated else "base"


def _at(code: bytes, position: int) -> int:
    return code[position] if position < len(code) else 0


def _of_vex(code: _Opcode) -> str:
    if code.byte in _MASKS.get(code.map, ()):
        return "avx512"
    if code.map == 1 or (code.prefix == _66 and code.byte in _AVX2.get(code.map, ())):
        return "avx2"
    if code.map == 2 and code.prefix == _66 and code.byte in _FMA:
        return "fma"
    if code.map == 2 and code.prefix == _66 and 0x50 <= code.byte <= 0x53:
        return "avx_vnni"
    is_amx = code.map == 2 and (code.byte in (0x49, 0x4B, 0x5E) or (code.byte, code.prefix) == (0x5C, _F3))
    return "amx" if is_amx else "other"


def _of_evex(code: _Opcode) -> str:
    # F3 with W in 2A and 3A would be AVX-512 CD, which the list of F3 leaves out.
    if code.map == 1 or code.byte in _AVX512.get((code.map, code.prefix), ()):
        return "avx512"
    if code.map == 2 and code.prefix == _66 and code.w and code.byte in _AVX512_WORDS:
        return "avx512"
    if code.map == 2 and code.prefix == _66 and 0x50 <= code.byte <= 0x53:
        return "avx512_vnni"
    is_bf16 = code.map == 2 and (code.byte, code.prefix) in ((0x52, _F3), (0x72, _F3), (0x72, _F2))
    return "avx512_bf16" if is_bf16 else "other"


def _is_base(code: _Opcode) -> bool:
    """Whether an instruction of map 1 without VEX is one of SSE2 or older; those of 0F38 and 0F3A are newer."""
    register, is_memory = code.modrm >> 3 & 7, code.modrm < 0xC0
    if code.byte in (0x38, 0x3A) or code.byte in _BEYOND_SSE2[code.prefix]:
        return False
    if code.byte == 0x01:
        return code.modrm == _XGETBV
    if code.byte == 0xC7:  # cmpxchg8b alone; cmpxchg16b, rdrand and xsaves are newer
        return is_memory and register == 1 and not code.w
    if code.byte == 0xAE:
        fences = not is_memory and register >= 5
        return code.prefix == _NO_PREFIX and (register in _FENCES_AND_CONTROL or fences or register == 7)
    return True
