"""Triton kernels on CPU tensors: compiled ahead of time as Triton would specialise them, run by tests/native/ptx."""

import functools
import re
import subprocess
import tempfile
from collections import Counter
from pathlib import Path

import pytest
import torch

from benchmarks.gpu import read_sass
from elmo_fast.ops import reference
from tests.support import ptx_machine

triton = pytest.importorskip("triton")

from elmo_fast.kernels import char_cnn, configs, highway, lstm_pointwise  # noqa: E402, F401

NAMES = {torch.float32: "*fp32", torch.float16: "*fp16", torch.bfloat16: "*bf16", torch.int32: "*i32",
         torch.int64: "*i64"}
SHARED_LIMIT = {80: 163 * 1024, 90: 227 * 1024}  # bytes of shared memory that one block may ask for
LIMIT = {"ieee": 2e-6, "tf32": 2e-3, "fp16": 2e-3, "bf16": 1e-2}
DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}


@functools.cache
def machine_code(cubin: bytes) -> Counter:
    """How often the machine code has each opcode, and its use of registers (REG) and of memory for spills."""
    with tempfile.NamedTemporaryFile() as file:
        Path(file.name).write_bytes(cubin)
        command = [read_sass.tool("cuobjdump"), "-res-usage", "-sass", file.name]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    usage = {name: int(value) for name, value in re.findall(r"(REG|STACK|LOCAL):(\d+)", said)}
    return Counter(name.split(".")[0] for *_, name, _ in read_sass.LINE.findall(said)) + Counter(usage)


class OnPtx:
    """Stands in for a Triton kernel: `kernel[grid](*arguments)` runs the PTX of `generation`.

    What it compiles must fit the chip without spills (in sizes that tiles divide), and use tensor cores exactly where
    products are not IEEE fp32.
    """

    def __init__(self, kernel, generation: int, tile=None, registers: int = 255):
        self.rules = {}
        while not isinstance(kernel, triton.runtime.JITFunction):
            self.rules |= kernel.values
            kernel = kernel.fn
        self.kernel, self.generation, self.tile, self.registers = kernel, generation, tile, registers
        self.text = self.ran = None  # what runs, if not what Triton writes; what ran last

    def __getitem__(self, grid):
        return functools.partial(self.launch, grid)

    def launch(self, grid, *arguments, **named):
        options = {name: named.pop(name) for name in ("num_warps", "num_stages", "enable_fp_fusion") if name in named}
        given = dict(zip(self.kernel.arg_names, arguments)) | named
        if tile := self.tile:
            given |= {"BM": tile.bm, "BN": tile.bn, "BK": tile.bk}
            options |= {"num_warps": tile.warps, "num_stages": tile.stages}
        given |= {name: rule(given) for name, rule in self.rules.items()}
        compiled, constants = self.compiled(given, options)
        if given.get("EVEN", True):
            self.check(compiled, given.get("PRECISION"))
        grid = grid(given) if callable(grid) else grid
        self.ran = self.text or compiled.asm["ptx"]
        tensors = {name: value for name, value in given.items() if isinstance(value, torch.Tensor)}
        passed = [given[name] for name in self.kernel.arg_names if name not in constants]
        ptx_machine.launch(self.ran, *passed, None, None, grid=(*grid, 1, 1)[:3], shared=compiled.metadata.shared,
                           block=(32 * compiled.metadata.num_warps, 1, 1), checked=tensors)

    def compiled(self, given, options):
        signature, attributes, constants = {}, {}, {}
        for at, parameter in enumerate(self.kernel.params):
            value, special = given[parameter.name], not parameter.do_not_specialize
            if parameter.is_constexpr or value is None or (special and type(value) is int and value == 1):
                signature[parameter.name], constants[parameter.name] = "constexpr", value
                continue
            pointer = isinstance(value, torch.Tensor)
            signature[parameter.name] = NAMES[value.dtype] if pointer else "fp32" if isinstance(value, float) else "i32"
            number = value.data_ptr() if pointer else value
            if type(number) is int and number % 16 == 0 and special and not parameter.do_not_specialize_on_alignment:
                attributes[at,] = [["tt.divisibility", 16]]
        source = triton.compiler.ASTSource(self.kernel, signature, constants, attributes)
        target = triton.backends.compiler.GPUTarget("cuda", self.generation, 32)
        return triton.compile(source, target=target, options=options), constants

    def check(self, compiled, precision):
        found, shared = machine_code(compiled.asm["cubin"]), compiled.metadata.shared
        assert not any(map(found.get, ("STACK", "LOCAL", "LDL", "STL"))), (self.tile, found)
        assert found["REG"] <= self.registers and shared <= SHARED_LIMIT[self.generation], (self.tile, found)
        products = found["HMMA"] + found["HGMMA"] + found["QGMMA"]
        assert not precision or (products == 0 < found["FFMA"] if precision == "ieee" else products > 0), found


def encoder_on_ptx(monkeypatch, generation, tile=None):
    """Puts the char encoder's kernels on PTX, with one tile or with that for few tokens."""
    def choose(name, kernel, operands, tokens, device):
        return OnPtx(kernel, generation, tile or configs.tiles(name, generation, operands, "few")[0])

    ptx_machine.machine()
    for module in (char_cnn, highway):
        monkeypatch.setattr(module, "choose", choose)


def products(form, operands, rows, inner, outputs):
    """(found, expected) of a highway layer, a product, or convolutions over `inner` characters."""
    dtype = DTYPES.get(operands, torch.float32)
    if form == "char_cnn":
        return convolutions(operands, rows, inner, outputs)
    x = torch.randn(rows, inner).to(dtype)
    biases = [torch.randn(outputs), torch.randn(outputs)]
    out = torch.full((rows, outputs), float("nan")).to(dtype)
    weights = [highway.pack_product(torch.randn(inner, outputs) / inner**0.5, operands, dtype) for _ in range(2)]
    first, second = (x.double() @ weight.double() + bias for weight, bias in zip(weights, biases))
    if form == "linear":
        highway.product(x, (weights[0], biases[0]), operands, out)
        return out, first
    highway.product(x, (weights[0], biases[0], weights[1], biases[1]), operands, out)
    gate = torch.sigmoid(first)
    return out, gate * torch.relu(second) + (1 - gate) * x.double()


def convolutions(operands, tokens, characters, outputs, vocabulary=50):
    """(found, expected) of the character CNN, its widest filters `outputs`."""
    spec = [(1, 16), (2, 32), (3, 64), (7, outputs)]
    weights = [torch.randn(1, width, 16, count) * 0.3 for width, count in spec]
    biases = [torch.randn(count) * 0.1 for _, count in spec]
    packed = char_cnn.PackedFilters(torch.randn(vocabulary, 16) * 0.5, weights, biases, operands)
    ids = torch.randint(1, vocabulary + 1, (tokens, characters))
    ids[torch.arange(characters) >= torch.randint(1, characters + 1, (tokens, 1))] = 0
    out = torch.full((tokens, sum(packed.counts)), float("nan"), dtype=packed.table.dtype)
    char_cnn.char_cnn(ids, packed, "relu", 0, out)
    rounded = [(weight.to(out.dtype).double(), bias.double()) for weight, bias in zip(weights, biases)]
    return out, reference.char_cnn(ids, packed.table[1:].double(), rounded, "relu")
