"""PTX text: its kernels, with statements split into words and operands, as tests/native/ptx binds them (`Source`)."""

import re

# Hints, and properties of every use: results round to nearest, and functions are as exact as the host's.
WITHOUT_MEANING = {"rn", "approx", "full", "uni", "aligned"}
COMMENT = re.compile(r"//.*|^\s?\.loc\t.*", re.MULTILINE)  # and origins of lines
# ".entry name(.param .align 8 .b8 a[64], .param .u64 .ptr .global .align 1 b) .maxntid 256, 1, 1 {"
ENTRY = re.compile(r".*\.entry ([\w$]+)\((.*?)\)(?:[^{]*ntid (\d+))?[^{]*", re.DOTALL)
PARAMETER = re.compile(r"\.param (?:\.align (\d+) )?\.[busf](\d+) (?:[^,]* )?([\w$]+)(?:\[(\d+)\])?")
SHARED = re.compile(r"\.extern \.shared [^;]* ([\w$]+)\[\]")  # its size is that of a launch
REGISTERS = re.compile(r"([\w%.]+)(?:<(\d+)>)?")  # "%r<10>" or "a"
LABEL = re.compile(r"[\s{}]*([\w$]+):(?!:)")
INSTRUCTION = re.compile(r"(?:@(!?[\w%]+) )?(\S+)(.*)")  # "@!%p add.s32 %r1, %r2, 7"
# Registers that every kernel begins with, in the order of the machine's.
SPECIAL = ".b64 %globaltimer", ".b32 %tid.x, %ntid.x, %ctaid.x, %ctaid.y, %ctaid.z, %cluster_ctarank"
ADDRESS = re.compile(r"\[ *([^]+ ]+)[ +]*([^] ]*) *]")  # "[%rd1 + -16]"
NAME = re.compile(r"[^\s,{}]+")


def parsed(text: str) -> list[tuple]:
    """Per kernel: name, most threads of a block, (offset, bytes) of the parameters, (name, bytes) of the registers,
    values of symbols, and statements: line, opcode, text, guard, the opcode's words, and the operands one by one,
    an address as its base and offset. A mov of parts is their pack or unpack."""
    kernels, symbols, code, line = [], {}, [], 1
    for statement in COMMENT.sub("", text).split(";")[:-1]:
        line += statement.count("\n")
        if entry := ENTRY.match(statement):
            places, symbols = _parameters(" ".join(entry[2].split()))
            registers, code, statement = [*_registers(SPECIAL[0]), *_registers(SPECIAL[1])], [], statement[entry.end():]
            symbols.update(dict.fromkeys(SHARED.findall(text), 0))
            kernels.append((entry[1], int(entry[3] or 1024), places, registers, symbols, code))
        while label := LABEL.match(statement):
            symbols[label[1]], statement = len(code), statement[label.end():]
        statement = " ".join(statement.lstrip("{} \t\n").split())
        if statement.startswith(".reg"):
            registers += _registers(statement.removeprefix(".reg "))
        elif kernels and statement and not statement.startswith(".pragma"):
            guard, opcode, operands = INSTRUCTION.match(statement).groups()
            words = [word for word in opcode.split(".") if word not in WITHOUT_MEANING]
            if words[0] == "mov" and "{" in operands:
                words[0] = "unpack" if operands.lstrip().startswith("{") else "pack"
            names = NAME.findall(ADDRESS.sub(lambda match: f"{match[1]} {match[2] or 0}", operands))
            code.append((line, opcode, statement, guard or "_", words, names))
    if not kernels:
        raise RuntimeError("no kernel in the PTX")
    return kernels


def _parameters(declared: str) -> tuple[list, dict]:
    """Places of the parameters, and the offset of every name."""
    places, offsets = [(0, 0)], {}
    for align, bits, name, count in PARAMETER.findall(declared):
        size, end = int(bits) // 8, sum(places[-1])
        offsets[name] = end + -end % int(align or size)
        places.append((offsets[name], size * int(count or 1)))
    if len(offsets) != declared.count(".param "):
        raise RuntimeError(f"an unknown kind of parameter: {declared}")
    return places[1:], offsets


def _registers(declared: str) -> list[tuple[str, int]]:
    """Names and bytes of registers of a thread. Predicates and values of 8 and 16 bits take 4."""
    kind, names = declared.split(" ", 1)
    return [(name + number, 8 if kind.endswith("64") else 4) for name, many in REGISTERS.findall(names)
            for number in (map(str, range(int(many))) if many else [""])]
