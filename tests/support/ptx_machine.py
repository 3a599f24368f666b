"""The PTX interpreter of tests/native/ptx: builds it with the project's launchers, runs kernels on CPU tensors.

`machine(90)` and `machine(80)` are modules with every function of the native CUDA bindings, run as the PTX that ships.
"""

import functools
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
from collections import defaultdict
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
BUILD = ROOT / "build" / "ptx"
FLAGS = ["-std=c++17", "-O2", "-fPIC", "-fvisibility=hidden", "-ffp-contract=off"]
ARCHITECTURES = {80: "compute_80", 90: "compute_90a"}
# Processors; shared memory of a block and of a processor; capability; processors of each part that a cluster lies in.
DEVICES = {80: (108, 166912, 167936, (8, 0), []), 90: (132, 232448, 233472, (9, 0), [18, 18, 16, 16, 16, 16, 16, 16])}


@functools.cache
def machine(generation: int = 90):
    """The module whose launchers run the PTX of sm_80 or sm_90a. Skips where there are no tools to build it."""
    nvcc = shutil.which("nvcc", path=os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/local/cuda/bin"]))
    compiler = os.environ.get("CXX", "c++")
    if os.environ.get("ELMO_FAST_NO_NATIVE") == "1" or not nvcc or not shutil.which(compiler):
        pytest.skip("needs nvcc and a C++ compiler, and ELMO_FAST_NO_NATIVE unset")
    pybind11 = pytest.importorskip("pybind11")
    includes = [f"-I{path}" for path in (ROOT / "csrc", sysconfig.get_path("include"), pybind11.get_include())]
    native = [*FLAGS, *(["-march=native"] if _takes(compiler, "-march=native") else []), *includes, "-c"]
    host = [nvcc, "-std=c++17", "-O2", *includes, "-DELMO_FAST_HAS_CUDA", "-Xcompiler", ",".join(FLAGS[2:]), "-c"]
    virtual = ARCHITECTURES[generation]
    device = [*host, "-fmad=false", "-gencode", f"arch={virtual},code={virtual}", "--compress-mode=none"]
    own, cuda = ROOT / "tests" / "native" / "ptx", ROOT / "csrc" / "cuda"
    # Two modules of one name would be one to pybind11.
    module_name = f"elmo_fast_ptx_{generation}"
    objects = [_object([compiler, *native], source) for source in sorted(own.glob("*.cpp"))
               if source.stem != "fake_runtime"]
    objects += [_object(host, own / "fake_runtime.cpp", f"-DELMO_FAST_PTX={module_name}")]
    objects += [_object(host, source) for source in (ROOT / "csrc" / "bindings" / "projected_lstm_cuda.cpp",
                                                     *sorted(cuda.glob("*.cpp")))]
    objects += [_object(device, source) for source in sorted(cuda.glob("*.cu"))]
    name = hashlib.sha256("".join(each.name for each in objects).encode()).hexdigest()[:16]
    library = BUILD / name / f"{module_name}.so"
    if not library.exists():
        _make([compiler, "-shared", "-Wl,-Bsymbolic", *objects], library)
    spec = importlib.util.spec_from_file_location(module_name, library)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.set_device(*DEVICES[generation])
    return module


def _takes(compiler: str, flag: str) -> bool:
    return subprocess.run([compiler, flag, "-E", "-x", "c++", os.devnull], capture_output=True).returncode == 0


@functools.cache
def _headers(folder: Path) -> bytes:
    return b"".join(each.read_bytes() for each in sorted(folder.rglob("*.*h")))


def _object(command: list, source: Path, *more: str) -> Path:
    command = [*command, *more]
    folder = ROOT / "csrc" if ROOT / "csrc" in source.parents else source.parent
    key = hashlib.sha256(repr([sys.version, command, source.name]).encode() + _headers(folder) + source.read_bytes())
    target = BUILD / "objects" / f"{source.stem}-{key.hexdigest()[:16]}.o"
    if not target.exists():
        _make([*command, source], target)
    return target


def _make(command: list, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f"{os.getpid()}-{target.name}")
    done = subprocess.run([*command, "-o", part], capture_output=True, text=True)
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    os.replace(part, target)


def address(tensor) -> int:
    return tensor.ctypes.data if isinstance(tensor, np.ndarray) else tensor.data_ptr()


def _size(tensor) -> int:
    if isinstance(tensor, np.ndarray):
        return tensor.nbytes
    return tensor.untyped_storage().nbytes() - tensor.storage_offset() * tensor.element_size()


@contextmanager
def device_memory(module, checked=(), unwritten=(), tracked=()):
    """Accesses of kernels must lie in these tensors, given as {name: tensor}.

    What `unwritten` holds may not be read before it is written; in these and `tracked`, races are traps as well.
    """
    kinds = ((checked, False, True), (unwritten, True, False), (tracked, True, True))
    given = {address(tensor): (name, tensor, follow, defined)
             for tensors, follow, defined in kinds for name, tensor in dict(tensors).items() if tensor is not None}
    for begin, (name, tensor, follow, defined) in given.items():
        module.register_memory(begin, _size(tensor), name, follow, defined)
    try:
        yield
    finally:
        module.forget_memory()


class Program:
    """PTX text loaded into a machine; `launch` takes tensors, integers, floats and None (a null pointer)."""

    def __init__(self, text: str, module=None):
        self.module = module or machine()
        self.source = self.module.load(text)
        self.kernels = self.module.kernels(self.source)

    def launch(self, *arguments, kernel=None, grid=(1, 1, 1), block=(32, 1, 1), shared=0, cluster=1):
        kernel = kernel or next(iter(self.kernels))
        parameters = bytearray()
        for value, (at, size) in zip(arguments, self.kernels[kernel], strict=True):
            parameters += bytes(at - len(parameters)) + _packed(value, size)
        self.module.launch(self.source, kernel, grid, block, shared, cluster, bytes(parameters))

    def unload(self):
        self.module.replace(self.source, "")

    def counters(self):
        return counters(self.module, self.source)

    def coverage(self):
        return coverage(self.module, self.source)


def _packed(value, size: int) -> bytes:
    if value is None:
        return bytes(size)
    if isinstance(value, float):
        return np.float32(value).tobytes() if size == 4 else np.float64(value).tobytes()
    if not isinstance(value, int):
        value = address(value)
    return (value % 256**size).to_bytes(size, "little")


FIELDS = ("executed", "threads", "bytes", "sectors", "wavefronts", "ideal")


def counters(module, source: int) -> dict:
    """{kernel: {opcode: {field: count}}} of everything since the last `module.reset(source)`."""
    result = defaultdict(lambda: defaultdict(lambda: dict.fromkeys(FIELDS, 0)))
    for kernel, _, opcode, _, *counts in module.executed(source):
        if counts[0]:
            for field, count in zip(FIELDS, counts):
                result[kernel][opcode][field] += count
    return result


def coverage(module, source: int) -> dict:
    """{kernel: ([(line, text) that ran], [(line, text) that did not])}."""
    result = defaultdict(lambda: ([], []))
    for kernel, line, _, text, executed, *_ in module.executed(source):
        result[kernel][not executed].append((line, text))
    return result
