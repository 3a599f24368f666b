"""Compiles every shipped configuration of the Triton kernels ahead of time and prints what it takes. Needs no GPU.

    python -m benchmarks.kernel_resources [--generation 80|90]

Registers and spills are ptxas' own count, shared memory is what a launch asks for; instructions are counted in the
disassembly.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.gpu.read_sass import tool

# bytes of shared memory that one block may ask for
SHARED_LIMIT = {80: 163 * 1024, 90: 227 * 1024}
TENSOR_CORES = ("HMMA", "HGMMA", "QGMMA")
ALIGNED = ("inner", "outputs", "columns", "stride_k", "stride_n")  # multiples of 16 in the original model
FORMS = ("char_cnn", "highway", "linear")
TYPES = {"ieee": "fp32", "tf32": "fp32", "fp16": "fp16", "bf16": "bf16"}


def cases(generations=tuple(SHARED_LIMIT)):
    """(form, generation, operands, amount, tile) of every configuration that is shipped."""
    from elmo_fast.kernels.configs import OPERANDS, tiles

    return [(form, generation, operands, amount, tile) for form in FORMS for generation in generations
            for operands in OPERANDS for amount in ("few", "many")
            for tile in tiles("highway" if form == "linear" else form, generation, operands, amount)]


def resources(form: str, generation: int, operands: str, tile) -> dict[str, int]:
    """Compiles one configuration at the original model's shapes."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    kernel, types, constants = _char_cnn(operands) if form == "char_cnn" else _highway(operands, form == "highway")
    constants |= {"WIDEN": False, "PRECISION": "ieee" if operands == "ieee" else "tf32",
                  "BM": tile.bm, "BN": tile.bn, "BK": tile.bk}
    signature = {name: "constexpr" if name in constants else types.get(name, "i32") for name in kernel.arg_names}
    aligned = {(kernel.arg_names.index(name),): [["tt.divisibility", 16]] for name, kind in signature.items()
               if kind.startswith("*") or name in ALIGNED and kind != "constexpr"}
    options = {"num_warps": tile.warps, "num_stages": tile.stages, "enable_fp_fusion": True}
    return _read(triton.compile(ASTSource(kernel, signature, constants, aligned), options=options,
                                target=GPUTarget("cuda", generation, 32)))


def _char_cnn(operands: str):
    from elmo_fast.kernels.char_cnn import _char_cnn as kernel

    types = {name: f"*{TYPES[operands]}" for name in ("table", "weights", "out")} | {
        "ids": "*i64", "order": "*i64", "lengths": "*i32", "biases": "*fp32", "widths": "*i32"}
    constants = {"EP": 16, "KINDS": 8 if operands == "ieee" else 7, "STEP": 16, "TANH": False}
    return kernel, types, constants


def _highway(operands: str, gated: bool):
    from elmo_fast.kernels.highway import GROUP
    from elmo_fast.kernels.highway import _highway as kernel

    types = {name: f"*{TYPES[operands]}" for name in ("x", "first", "second", "out")} | {
        "b_first": "*fp32", "b_second": "*fp32"}
    constants = {"EVEN": True, "stride_n" if operands == "ieee" else "stride_k": 1, "GROUP": GROUP, "GATED": gated}
    return kernel.fn, types, constants


def _read(compiled) -> dict[str, int]:
    """Registers a thread, bytes of spills and shared memory; tensor-core products, fp32 FMAs, local accesses."""
    with tempfile.TemporaryDirectory() as folder:
        binary = Path(folder) / "kernel.cubin"
        binary.write_bytes(compiled.asm["cubin"])
        usage, sass = (subprocess.run([tool(name), option, binary], capture_output=True, text=True, check=True).stdout
                       for name, option in (("cuobjdump", "--dump-resource-usage"), ("nvdisasm", "-c")))
    found = {name: int(value) for name, value in re.findall(r"(REG|STACK|LOCAL):(\d+)", usage)}
    listed = re.findall(r"^\s*/\*[0-9a-f]+\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_]*)", sass, re.MULTILINE)
    return {"registers": found["REG"], "spills": found["STACK"] + found["LOCAL"], "shared": compiled.metadata.shared,
            "tensor": sum(map(listed.count, TENSOR_CORES)), "fp32": listed.count("FFMA") + 2 * listed.count("FFMA2"),
            "local": listed.count("LDL") + listed.count("STL")}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--generation", type=int, choices=tuple(SHARED_LIMIT), help="one generation only")
    generation = parser.parse_args().generation
    if os.environ.get("TRITON_INTERPRET") == "1":
        print("error: TRITON_INTERPRET=1 is set, and the interpreter compiles nothing", file=sys.stderr)
        return 1
    for form, generation, operands, amount, tile in cases((generation,) if generation else tuple(SHARED_LIMIT)):
        shape = f"{tile.bm}x{tile.bn}x{tile.bk} {tile.warps} warps {tile.stages} stages"
        found = "  ".join(f"{name} {value:6}" for name, value in resources(form, generation, operands, tile).items())
        print(f"{form:9} sm_{generation} {operands:5} {amount:5} {shape:32} {found}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
