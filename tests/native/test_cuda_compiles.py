"""Every CUDA kernel, compiled for each target: no spills, registers and shared memory within the chip's; the lint."""

import re
from pathlib import Path

import pytest

from benchmarks.gpu import read_sass
from tests.support.native_program import ROOT, digest, headers, made

SOURCE = ROOT / "csrc" / "cuda" / "persistent.cu"
FLAGS = ["-std=c++17", "-O3", "-fmad=false", "-gencode", "arch=compute_90a,code=sm_90a", "-gencode",
         "arch=compute_80,code=sm_80", "-Werror", "all-warnings", "-Xptxas", "-Werror", "-Xcompiler", "-Werror"]
INSTANCES = {"persistent_kernel": 14, "replay_kernel": 2}
SYSTEM_SHARED = {"sm_90a": 1024, "sm_80": 0}  # bytes that CUDA takes; the plans' own have tests of their own


@pytest.fixture(scope="module")
def compiled() -> Path:
    """An object file; no compiler may warn."""
    try:
        nvcc, _ = map(read_sass.tool, ("nvcc", "cuobjdump"))
    except FileNotFoundError as error:
        pytest.skip(str(error))
    command = [nvcc, *FLAGS, "-c", SOURCE]
    key = digest([command, SOURCE.read_text(), headers(ROOT / "csrc")])
    return made(ROOT / "build" / "cuda-compiled" / f"{key}.o", command)


@pytest.mark.parametrize("target", SYSTEM_SHARED)
def test_kernels_fit_the_chip(compiled, target):
    found = read_sass.usage(compiled, "-arch", target)
    names = [re.search(rf"\d+({'|'.join(INSTANCES)})", name)[1] for name in found]
    assert {kernel: names.count(kernel) for kernel in names} == INSTANCES
    for name, used in found.items():
        assert used["REG"] <= 255 and used["STACK"] == used["LOCAL"] == 0, (name, used)
        assert used["SHARED"] == SYSTEM_SHARED[target], (name, used)


def test_time_loops_do_not_wait_in_line(compiled):
    """Local memory in no kernel; at 64 slots few rounds of loads a step, weights only where they are streamed."""
    found = read_sass.kernels(read_sass.disassembled(compiled))
    assert len(found) == sum(INSTANCES.values())
    for kernel in found:
        assert not kernel.problems(), (kernel.name, kernel.summary())
    held = [kernel for kernel in found if read_sass.HELD.search(kernel.name)]
    assert len(held) == 2  # fp16 and bf16
    assert all(kernel.grid_barriers == 2 and kernel.products(kernel.time_loop) for kernel in held)
