"""Triton kernels on CPU tensors: launched and compiled by Triton, run by tests/native/ptx.

Also the char encoder's ops over them, and calls to compare with float64.
"""

import functools
import math
import tempfile
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

from elmo_fast.kernels import configs, lstm_pointwise  # noqa: E402, F401

SHARED_LIMIT = {80: 163 * 1024, 90: 227 * 1024}  # bytes of shared memory that one block may ask for
# name: precision and whether fp16 is known to fit
PRECISIONS = {"ieee": ("highest", False), "tf32": ("high", False), "fp16": ("medium", True), "bf16": ("medium", False)}
LIMITS = {"ieee": 2e-6, "tf32": 2e-3, "fp16": 2e-3, "bf16": 1e-2}
EXACT = {"char_cnn": reference.char_cnn, "highway": reference.highway, "linear": lambda x, w, b: x @ w + b}


@functools.cache
def usage(cubin: bytes) -> dict[str, int]:
    with tempfile.NamedTemporaryFile() as file:
        Path(file.name).write_bytes(cubin)
        (used,) = read_sass.usage(file.name).values()
        return used


def on_ptx(patch, generation: int, tile=None, registers: int = 255):
    """Triton's driver from here on: launches run the PTX of `generation`, with one tile or with that for few tokens.

    What it compiles must fit the chip without spills (in sizes that tiles divide), and use tensor cores exactly where
    products are not IEEE fp32. `text` is what runs, if not what Triton writes; `ran` what ran last.
    """
    def load(source, target, options):
        return functools.partial(launch, source, compile(source, target=target, options=options))

    def launch(source, compiled, *given):
        named = dict(zip(source.fn.arg_names, given[9:]))
        if named.get("EVEN", True):
            check(compiled, registers, SHARED_LIMIT[generation], named.get("PRECISION"))
        driver.ran = driver.text or compiled.asm["ptx"]
        passed = [value for name, value in named.items() if source.signature[name] != "constexpr"]
        ptx_machine.launch(driver.ran, *passed, None, None, grid=given[:3], shared=compiled.metadata.shared,
                           block=(32 * compiled.metadata.num_warps, 1, 1),
                           memory=[value for value in passed if isinstance(value, torch.Tensor)])

    ptx_machine.machine()
    compile = triton.compiler.compiler.compile
    driver = cuda_ops.triton_driver(patch, generation, load)
    driver.text = driver.ran = None
    patch.setattr(configs, "FEW", math.inf)
    if tile:
        patch.setattr(configs, "tiles", lambda *_: (tile,))
    return driver


def check(compiled, registers: int, shared: int, precision: str | None) -> None:
    used, text = usage(compiled.asm["cubin"]), compiled.asm["ptx"]
    assert used["REG"] <= registers and used["STACK"] == used["LOCAL"] == 0, used
    assert compiled.metadata.shared <= shared
    on_tensor_cores = "mma.sync" in text or "wgmma.mma_async" in text
    assert not precision or on_tensor_cores != (precision == "ieee")


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
