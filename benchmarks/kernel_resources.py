"""Compiles every shipped configuration of the Triton kernels ahead of time and prints what it takes. Needs no GPU.

    python -m benchmarks.kernel_resources [--generation 80|90] [--kernel NAME]

Registers and spills are ptxas' own count in the compiled kernel, shared memory is what a launch asks for, and the
instructions are counted in the disassembly with the tools that the triton package brings.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

# bytes of shared memory that one block may ask for
SHARED_LIMIT = {80: 163 * 1024, 90: 227 * 1024}
TENSOR_CORES = ("HMMA", "HGMMA", "QGMMA")
_ALIGNED = ("inner", "outputs", "columns", "stride_k", "stride_n")  # multiples of 16 in the original model
FORMS = ("char_cnn", "highway", "linear")
TYPES = {"ieee": "fp32", "tf32": "fp32", "fp16": "fp16", "bf16": "bf16"}


@dataclass(frozen=True)
class Resources:
    """What one compiled kernel takes: registers a thread, bytes of spills and of shared memory, instructions by kind."""

    registers: int
    spills: int
    shared: int
    tensor: int  # tensor-core products
    fp32: int  # fused multiply-adds in fp32
    local: int  # loads from and stores to local memory

    def __str__(self) -> str:
        return "  ".join(f"{name} {value:6}" for name, value in asdict(self).items())


def cases(generations=(80, 90), forms=FORMS):
    """(form, generation, operands, amount, tile) of every configuration that is shipped."""
    from elmo_fast.kernels.configs import OPERANDS, tiles

    for form in forms:
        for generation in generations:
            for operands in OPERANDS:
                for amount in ("few", "many"):
                    kernel = "highway" if form == "linear" else form
                    for tile in tiles(kernel, generation, operands, amount):
                        yield form, generation, operands, amount, tile


def resources(form: str, generation: int, operands: str, tile) -> Resources:
    """Compiles one configuration at the original model's shapes."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    source, constants = _char_cnn(operands) if form == "char_cnn" else _highway(operands, form == "highway")
    kernel, types = source
    constants |= {"WIDEN": False, "BM": tile.bm, "BN": tile.bn, "BK": tile.bk}
    signature = {name: "constexpr" if name in constants else types.get(name, "i32") for name in kernel.arg_names}
    aligned = [name for name, kind in signature.items() if kind.startswith("*") or name in _ALIGNED]
    attributes = {(kernel.arg_names.index(name),): [["tt.divisibility", 16]] for name in aligned
                  if signature[name] != "constexpr"}
    compiled = triton.compile(ASTSource(kernel, signature, constants, attributes),
                              target=GPUTarget("cuda", generation, 32),
                              options={"num_warps": tile.warps, "num_stages": tile.stages, "enable_fp_fusion": True})
    return _read(compiled)


def _char_cnn(operands: str):
    from elmo_fast.kernels.char_cnn import _char_cnn as kernel

    kind = TYPES[operands]
    types = {name: f"*{kind}" for name in ("table", "weights", "out")} | {
        "ids": "*i64", "order": "*i64", "lengths": "*i32", "biases": "*fp32", "widths": "*i32"}
    return (kernel, types), {"EP": 16, "KINDS": 8 if operands == "ieee" else 7, "STEP": 16, "SORTED": True, "TANH": False,
                             "PRECISION": "ieee" if operands == "ieee" else "tf32"}


def _highway(operands: str, gated: bool):
    from elmo_fast.kernels.highway import GROUP
    from elmo_fast.kernels.highway import _highway as kernel

    kind = TYPES[operands]
    types = {name: f"*{kind}" for name in ("x", "first", "second", "out")} | {"b_first": "*fp32", "b_second": "*fp32"}
    return (kernel.fn, types), {"EVEN": True, "stride_n" if operands == "ieee" else "stride_k": 1, "GROUP": GROUP, "GATED": gated,
                             "PRECISION": "ieee" if operands == "ieee" else "tf32"}


def _read(compiled) -> Resources:
    with tempfile.TemporaryDirectory() as folder:
        binary = Path(folder) / "kernel.cubin"
        binary.write_bytes(compiled.asm["cubin"])
        usage = _tool("cuobjdump", "--dump-resource-usage", str(binary))
        sass = _tool("nvdisasm", "-c", str(binary))
    found = {name: int(value) for name, value in re.findall(r"(REG|STACK|LOCAL):(\d+)", usage)}
    instructions = re.findall(r"^\s*/\*[0-9a-f]+\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_]*)", sass, re.MULTILINE)
    count = {name: instructions.count(name) for name in set(instructions)}
    return Resources(found["REG"], found["STACK"] + found["LOCAL"], compiled.metadata.shared,
                     sum(count.get(name, 0) for name in TENSOR_CORES), count.get("FFMA", 0) + 2 * count.get("FFMA2", 0),
                     count.get("LDL", 0) + count.get("STL", 0))


def _tool(name: str, *arguments: str) -> str:
    import triton

    path = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / name
    return subprocess.run([path, *arguments], capture_output=True, text=True, check=True).stdout


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--generation", type=int, choices=tuple(SHARED_LIMIT), help="one generation only")
    parser.add_argument("--kernel", choices=FORMS, help="one kernel only")
    arguments = parser.parse_args()
    if os.environ.get("TRITON_INTERPRET") == "1":
        print("error: TRITON_INTERPRET=1 is set, and the interpreter compiles nothing", file=sys.stderr)
        return 1
    generations = (arguments.generation,) if arguments.generation else tuple(SHARED_LIMIT)
    for form, generation, operands, amount, tile in cases(generations, (arguments.kernel,) if arguments.kernel else FORMS):
        shape = f"{tile.bm}x{tile.bn}x{tile.bk} {tile.warps} warps {tile.stages} stages"
        print(f"{form:9} sm_{generation} {operands:5} {amount:5} {shape:32} "
              f"{resources(form, generation, operands, tile)}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
