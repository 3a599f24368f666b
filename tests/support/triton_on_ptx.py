"""Triton kernels on CPU tensors: launched and compiled by Triton, run by tests/native/ptx, compared with float64."""

import functools
import tempfile
from pathlib import Path

import pytest
import torch

from benchmarks.gpu import read_sass
from elmo_fast.ops.backend import triton_version
from elmo_fast.ops.linear import cuda as linear_cuda
from elmo_fast.ops.numerics import type_of
from elmo_fast.testing import relative_error
from tests.support import cuda_ops, ptx_machine
from tests.support.engines import ON_TRITON, REFERENCE

triton = pytest.importorskip("triton")

from elmo_fast.kernels import configs  # noqa: E402


@functools.cache
def usage(cubin: bytes) -> dict[str, int]:
    with tempfile.NamedTemporaryFile() as file:
        Path(file.name).write_bytes(cubin)
        (used,) = read_sass.usage(file.name).values()
        return used


# Chips that the interpreter does not know: the generation whose tiles they take, shared memory of a block.
COMPILED = {100: (90, 232448), 120: (80, 101376)}


def on_ptx(patch, generation: int, tile=None, registers: int = 255, edit=None):
    """Triton's driver from here on: launches run the PTX of `generation`, with one tile or with that for few tokens.
    Of a chip in COMPILED they only compile it.

    What it compiles must fit the chip without spills (in sizes that tiles divide), and use tensor cores exactly where
    products are not IEEE fp32. `edit` changes what Triton writes before it is read. `text` is what runs, if not what
    Triton writes; `compiled` and `ran` what was compiled and what ran last.
    """
    def load(source, target, options):
        compiled = compile(source, target=target, options=options)
        run = functools.partial(launch, source, compiled)
        driver.compiled = edit(compiled.asm["ptx"]) if edit else compiled.asm["ptx"]
        run.asm = {"ptx": driver.compiled}
        return run

    def launch(source, compiled, *given):
        named = dict(zip(source.fn.arg_names, given[9:]))
        text, used = compiled.asm["ptx"], usage(compiled.asm["cubin"])
        multiplies = "BK" in named and named.get("PRECISION") != "ieee"
        if named.get("EVEN", True):
            stack = 8 * (triton_version() < (3, 6))  # which one tile takes in 3.4
            assert used["REG"] <= (255 if "BK" in named else registers), used
            assert used["STACK"] <= stack and used["LOCAL"] == 0, used
            assert compiled.metadata.shared <= shared
            on_tensor_cores = any(name in text for name in ("mma.sync", "wgmma.mma_async", "tcgen05.mma"))
            assert on_tensor_cores == multiplies
        driver.ran = driver.text or text
        if generation in COMPILED:
            return
        passed = [value for name, value in named.items() if source.signature[name] != "constexpr"]
        scratch = text.count(".param", 0, text.index(")")) - len(passed)  # Triton's own pointers: one in 3.4, then two
        ptx_machine.launch(driver.ran, *passed, *[None] * scratch, grid=given[:3],
                           shared=compiled.metadata.shared, block=(32 * compiled.metadata.num_warps, 1, 1))

    ptx_machine.machine().set()
    linear_cuda.lacks_fence.cache_clear()
    compile = triton.compiler.compiler.compile
    driver = cuda_ops.triton_driver(patch, generation, load)
    driver.text = driver.ran = driver.compiled = None
    tiles_of, shared = COMPILED.get(generation) or (generation, ptx_machine.DEVICES[generation][1])
    patch.setattr(configs, "generation_of", lambda device: tiles_of)
    patch.setattr(configs, "FEW", torch.inf)
    if tile:
        patch.setattr(configs, "tiles", lambda *_: (tile,))
    return driver


def run(case, operands):
    """The result of an op's case on the kernels as they are driven now, without gradients."""
    found, = case.call(case.leaves(wanted=[]), operands)
    return found


def check_case(case, operands):
    """The result, with NaN and infinity where the reference has them, and the rest within the limit."""
    found, (expected,) = run(case, operands), case.run(REFERENCE)
    assert found.dtype == (torch.float32 if "bias" in case.operands else type_of(operands))  # of linear
    finite = expected.isfinite()
    assert torch.equal(found.isnan(), expected.isnan()) and torch.equal(found.isfinite(), finite)
    assert not found.numel() or relative_error(found[finite], expected[finite]) < ON_TRITON[operands]
    return found
