"""Every CUDA kernel, compiled for each target: no spills, registers and shared memory within the chip's; the lint."""

import hashlib
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from benchmarks.gpu import read_sass

ROOT = Path(__file__).parent.parent
SOURCES = sorted((ROOT / "csrc" / "cuda").glob("*.cu"))
BUILD = ROOT / "build" / "cuda-compiled"
TARGETS = ["-gencode", "arch=compute_90a,code=sm_90a", "-gencode", "arch=compute_80,code=sm_80"]
FLAGS = ["-std=c++17", "-O3", "-fmad=false", *TARGETS, "-Xptxas", "-v"]
NVCC = shutil.which("nvcc") or shutil.which("/usr/local/cuda/bin/nvcc")
MOST_REGISTERS, MOST_STATIC_SHARED = 255, 0  # shared memory is the plans': their tests hold it to 227 KiB
# file: kernel: instances
KERNELS = {"persistent": {"persistent_kernel": 14, "replay_kernel": 2}}

ENTRY = re.compile(r"Compiling entry function '(\S+)' for '(\S+)'(.*?)(?=Compiling entry function|\Z)", re.S)
NUMBERS = {"stack": r"(\d+) bytes stack frame", "spilled": r"(\d+) bytes spill stores",
           "reloaded": r"(\d+) bytes spill loads", "registers": r"Used (\d+) registers"}


def entries(log):
    """What ptxas says of each kernel: name, target, registers, bytes of stack, spills and static shared memory."""
    found = []
    for name, target, text in ENTRY.findall(log):
        numbers = {key: int(re.search(pattern, text)[1]) for key, pattern in NUMBERS.items()}
        static = re.search(r"(\d+) bytes smem", text)
        found.append({"name": name, "target": target, "shared": int(static[1]) if static else 0, **numbers})
    return found


def is_instance(mangled: str, kernel: str) -> bool:
    return f"{len(kernel)}{kernel}" in mangled


@pytest.fixture(scope="module", params=SOURCES, ids=lambda path: path.stem)
def compiled(request) -> tuple[str, str, str]:
    """A source's name, its compiler's log and its machine code, kept until something in csrc changes."""
    if NVCC is None:
        pytest.skip("needs nvcc")
    key = hashlib.sha256(" ".join([str(NVCC), *FLAGS]).encode())
    for path in sorted((ROOT / "csrc").rglob("*.[hc]*")):
        key.update(path.read_bytes())
    log, sass = (BUILD / f"{request.param.stem}-{key.hexdigest()[:16]}.{suffix}" for suffix in ("log", "sass"))
    if not sass.exists():
        BUILD.mkdir(parents=True, exist_ok=True)
        command = [NVCC, *FLAGS, "-c", request.param, "-o", log.with_suffix(".o")]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-3000:]
        log.write_text(done.stdout + done.stderr)
        sass.write_text(read_sass.disassembled(log.with_suffix(".o")))
    return request.param.stem, log.read_text(), sass.read_text()


def test_kernels_fit_the_chip(compiled):
    source, log, _ = compiled
    assert "warning" not in log.lower()
    found = entries(log)
    for target in ("sm_90a", "sm_80"):
        for kernel, count in KERNELS[source].items():
            assert sum(each["target"] == target and is_instance(each["name"], kernel) for each in found) == count
    assert len(found) == 2 * sum(KERNELS[source].values())
    for each in found:
        assert each["stack"] == each["spilled"] == each["reloaded"] == 0, each
        assert each["registers"] <= MOST_REGISTERS and each["shared"] <= MOST_STATIC_SHARED, each


def test_time_loops_do_not_wait_in_line(compiled):
    """Local memory in no kernel; at 64 slots few rounds of loads a step, weights only where they are streamed."""
    source, _, sass = compiled
    found = read_sass.kernels(sass)
    assert len(found) == sum(KERNELS[source].values())
    for kernel in found:
        assert not kernel.problems(), (kernel.name, kernel.summary())
    held = [kernel for kernel in found if read_sass.HELD.search(kernel.name)]
    assert len(held) == 2  # fp16 and bf16
    assert all(kernel.grid_barriers == 2 and kernel.products(kernel.time_loop) for kernel in held)


def test_a_spill_is_seen():
    log = """ptxas info    : Compiling entry function 'kernel' for 'sm_90a'
ptxas info    : Function properties for kernel
    24 bytes stack frame, 16 bytes spill stores, 20 bytes spill loads
ptxas info    : Used 255 registers, used 1 barriers, 4096 bytes smem, 664 bytes cmem[0]
"""
    assert entries(log * 2) == 2 * [{"name": "kernel", "target": "sm_90a", "shared": 4096, "stack": 24, "spilled": 16,
                                     "reloaded": 20, "registers": 255}]
