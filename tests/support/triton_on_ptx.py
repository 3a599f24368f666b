"""Triton kernels on CPU tensors: compiled ahead of time as Triton would specialise them, run by tests/native/ptx.

Also the char encoder's ops over them, and calls to compare with float64.
"""

import functools
import re
import subprocess
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from benchmarks.gpu import read_sass
from elmo_fast.ops import reference
from elmo_fast.ops.cuda import encoder
from elmo_fast.testing import relative_error
from elmo_fast.text.characters import encode_tokens, to_model_ids
from tests.support import cuda_ops, ptx_machine

triton = pytest.importorskip("triton")

from elmo_fast.kernels import char_cnn, configs, highway, lstm_pointwise  # noqa: E402, F401

NAMES = {torch.float32: "*fp32", torch.float16: "*fp16", torch.bfloat16: "*bf16", torch.int32: "*i32",
         torch.int64: "*i64"}
SHARED_LIMIT = {80: 163 * 1024, 90: 227 * 1024}  # bytes of shared memory that one block may ask for
# name: precision and whether fp16 is known to fit
PRECISIONS = {"ieee": ("highest", False), "tf32": ("high", False), "fp16": ("medium", True), "bf16": ("medium", False)}
LIMITS = {"ieee": 2e-6, "tf32": 2e-3, "fp16": 2e-3, "bf16": 1e-2}
EXACT = {"char_cnn": reference.char_cnn, "highway": reference.highway, "linear": lambda x, w, b: x @ w + b}


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


def words(characters=18, tokens=("a", "naïve", "<S>", "of", "other", *("x" * n for n in (9, 11, 15, 16, 40)))):
    return torch.from_numpy(to_model_ids(encode_tokens(tokens, characters))).long()


def draw(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed + sum(shape))).double()


def assert_close(found, expected, limit):
    """NaN and infinity in the same places, and the rest within the limit."""
    assert found.shape == expected.shape and torch.equal(found.isnan(), expected.isnan())
    finite = expected.isfinite()
    assert torch.equal(found.isfinite(), finite)
    assert not found.numel() or relative_error(found[finite], expected[finite]) < limit


@dataclass
class Case:
    """An op on `tensors`, float64: char_embed (for char_cnn) or x, then weights and biases by turns."""

    op: str
    tensors: list[torch.Tensor]
    ids: torch.Tensor | None = None
    activation: str = "relu"

    def run(self, name=None, tensors=None):
        """The op in the precision of that name, in fp32 tensors, or exactly."""
        given = tensors or [tensor.float() if name else tensor for tensor in self.tensors]
        if self.op == "char_cnn":
            given = self.ids, given[0], list(zip(given[1::2], given[2::2])), self.activation
        return getattr(cuda_ops, self.op)(*given, *PRECISIONS[name]) if name else EXACT[self.op](*given)

    def check(self, name):
        found, expected = self.run(name), self.run()
        assert found.dtype == (torch.float32 if self.op == "linear" else encoder.RESULTS[name])
        assert_close(found, expected, LIMITS[name])
        return found


def conv(ids=None, filters=((1, 4), (3, 5)), dim=16, activation="relu"):
    drawn = (part for width, n in filters for part in (draw(1, width, dim, n) / width, draw(n)))
    return Case("char_cnn", [draw(261, dim), *drawn], words() if ids is None else ids, activation)


def layer(op, rows, size, outputs=None):
    drawn = [draw(size, outputs or size, seed=k) / size**0.5 if k % 2 else draw(outputs or size) for k in (1, 2, 3, 4)]
    return Case(op, [draw(rows, size), *drawn[: 4 if op == "highway" else 2]])
