"""Triton kernels on CPU tensors: launched and compiled by Triton, run by tests/native/ptx, compared with float64."""

import functools
import tempfile
from pathlib import Path

import pytest
import torch

from benchmarks.gpu import read_sass
from elmo_fast.ops.backend import triton_version
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
        (resources,) = read_sass.usage(file.name).values()
        return resources


# Chips that the interpreter does not know: the generation whose tiles they take, shared memory of a block.
COMPILED = {100: (90, 232448), 120: (80, 101376)}


def on_ptx(patch, generation: int, tile=None, registers: int = 255):
    """From here on Triton's launches run the PTX of `generation`, with `tile` or that for few tokens; gives the driver.
    For a chip in COMPILED launches only compile.

    Kernels must fit the chip without spills (in sizes that tiles divide), and use tensor cores exactly where
    products are not IEEE fp32, on newer chips with a fence before. The driver's `text` replaces Triton's PTX; the
    driver's `compiled` and `ran` are the PTX that was compiled and that ran last.
    """
    def load(source, target, options):
        compiled = compile(source, target=target, options=options)
        run = functools.partial(launch, source, compiled)
        driver.compiled = compiled.asm["ptx"]
        return run

    def launch(source, compiled, *arguments):
        by_name = dict(zip(source.fn.arg_names, arguments[9:]))
        text, resources = compiled.asm["ptx"], usage(compiled.asm["cubin"])
        multiplies = "BK" in by_name and by_name.get("PRECISION") != "ieee"
        if by_name.get("EVEN", True):
            stack = 8 * (triton_version() < (3, 6))  # one tile needs this in 3.4
            assert resources["REG"] <= (255 if "BK" in by_name else registers), resources
            assert resources["STACK"] <= stack and resources["LOCAL"] == 0, resources
            assert compiled.metadata.shared <= shared
            on_tensor_cores = any(name in text for name in ("mma.sync", "wgmma.mma_async", "tcgen05.mma"))
            assert on_tensor_cores == multiplies
        on_hopper = any(name in text for name in ("wgmma.mma_async", "tcgen05.mma"))
        assert not on_hopper or "fence.proxy.async" in text
        driver.ran = driver.text or text
        if generation in COMPILED:
            return
        values = [value for name, value in by_name.items() if source.signature[name] != "constexpr"]
        scratch = text.count(".param", 0, text.index(")")) - len(values)  # Triton's own pointers: one in 3.4, then two
        ptx_machine.launch(driver.ran, *values, *[None] * scratch, grid=arguments[:3],
                           shared=compiled.metadata.shared, block=(32 * compiled.metadata.num_warps, 1, 1))

    ptx_machine.machine().set()
    compile = triton.compiler.compiler.compile
    driver = cuda_ops.triton_driver(patch, generation, load)
    driver.text = driver.ran = driver.compiled = None
    tiles_of, shared = COMPILED.get(generation) or (generation, ptx_machine.DEVICES[generation][1])
    patch.setattr(configs, "generation_of", lambda device: tiles_of)
    patch.setattr(configs, "FEW", torch.inf)
    if tile:
        patch.setattr(configs, "tile_of", lambda *_: tile)
    return driver


def run(case, operands):
    """The result of an op's case on the kernels of the current driver, without gradients."""
    result, = case.call(case.leaves(wanted=[]), operands)
    return result


def check_case(case, operands):
    """The result, with NaN and infinity where the reference has them, and the rest within the limit."""
    actual, (expected,) = run(case, operands), case.run(REFERENCE)
    assert actual.dtype == (torch.float32 if "bias" in case.operands else type_of(operands))  # of linear
    finite = expected.isfinite()
    assert torch.equal(actual.isnan(), expected.isnan()) and torch.equal(actual.isfinite(), finite)
    assert not actual.numel() or relative_error(actual[finite], expected[finite]) < ON_TRITON[operands]
    return actual
