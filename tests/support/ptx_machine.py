"""The PTX interpreter of tests/native/ptx: builds it with the project's launchers, runs kernels on CPU tensors.

`machine(90)` and `machine(80)` are modules with every function of the native CUDA bindings, run as the PTX that ships.
"""

import functools
import importlib.util
import os
import re
import shutil
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.support.native_program import COMPILER, ROOT, digest, headers, made
from tests.support.ptx_text import parsed

BUILD = ROOT / "build" / "ptx"
FLAGS = ["-fPIC", "-fvisibility=hidden", "-ffp-contract=off"]
# Processors; shared memory of a block and of a processor; capability; processors of each part that a cluster lies in.
DEVICES = {80: (108, 166912, 167936, (8, 0), []), 90: (132, 232448, 233472, (9, 0), [18, 18, 16, 16, 16, 16, 16, 16])}
NVCC = shutil.which("nvcc", path=os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/local/cuda/bin"]))
IS_THERE = all([NVCC, COMPILER, importlib.util.find_spec("pybind11"), os.environ.get("ELMO_FAST_NO_NATIVE") != "1"])


@functools.cache
def machine(generation: int = 90):
    """The module whose launchers run `shipped`, the kernels of `ptx` for sm_80 or sm_90. Skips without tools."""
    if not IS_THERE:
        pytest.skip("needs nvcc, a C++ compiler and pybind11, and ELMO_FAST_NO_NATIVE unset")
    import pybind11

    name = f"elmo_fast_ptx_{generation}"  # pybind11 would take two modules of one name for one
    includes = [f"-I{path}" for path in (ROOT / "csrc", sysconfig.get_path("include"), pybind11.get_include())]
    native = [COMPILER, "-std=c++17", "-O2", "-march=native", *FLAGS]
    host = [NVCC, "-std=c++17", "-O2", *includes, "-DELMO_FAST_HAS_CUDA", "-Xcompiler", ",".join(FLAGS)]
    virtual, folder = {80: "compute_80", 90: "compute_90"}[generation], ROOT / "tests" / "native" / "ptx"
    device = [*host, "-fmad=false", "-gencode", f"arch={virtual},code={virtual}", "--compress-mode=none"]
    jobs = [(native, path) for path in sorted(folder.glob("*.cpp")) if path.stem != "fake_runtime"]
    jobs += [([*host, f"-DELMO_FAST_PTX={name}"], folder / "fake_runtime.cpp"),
             (host, ROOT / "csrc/bindings/projected_lstm_cuda.cpp"),
             *((device, path) for path in sorted((ROOT / "csrc" / "cuda").glob("*.cu")))]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        objects = list(pool.map(object_file, *zip(*jobs)))
    library = made(BUILD / f"{name}-{digest(objects)}.so", [COMPILER, "-shared", "-Wl,-Bsymbolic", *objects])
    spec = importlib.util.spec_from_file_location(name, library)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    # The text in the fat binary of the host object, uncompressed.
    (text,) = (match[0] for path in objects if (match := re.search(rb"\.version[^\0]+", path.read_bytes())))
    module.ptx = text.decode()
    module.shipped = [*map(module.Kernel, parsed(module.ptx))]
    return module


def object_file(command: list, source: Path) -> Path:
    """`source` compiled by `command`, once per content of its sources."""
    key = digest([command, source, source.read_text(), headers(ROOT / "csrc"), headers(ROOT / "tests/native/ptx")])
    return made(BUILD / f"{source.stem}-{key}.o", [*command, "-c", source])


def launch(text, *arguments, grid=(1, 1, 1), block=(32, 1, 1), shared=0, cluster=1, written=True):
    """Runs the only kernel of a PTX text, and returns it.

    Arguments are tensors, integers, floats and None (a null pointer). Accesses must lie in the tensors. Unless these
    are `written` before, reads before writes are traps, and so are races.
    """
    module = machine()
    (kernel,) = map(module.Kernel, parsed(text))
    try:
        for number, tensor in enumerate(value for value in arguments if isinstance(value, torch.Tensor)):
            last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride()))
            size = (last + 1) * tensor.element_size() * (tensor.numel() > 0)
            module.register_memory(tensor.data_ptr(), size, f"tensor {number}", written)
        kernel.launch(grid, block, shared, cluster, [*map(_bits, arguments)])
    finally:
        module.forget_memory()
    return kernel


def _bits(value) -> int:
    if isinstance(value, float):
        return int(np.float32(value).view(np.uint32))
    return value.data_ptr() if isinstance(value, torch.Tensor) else (value or 0) % 2**64
