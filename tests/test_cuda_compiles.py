"""Every CUDA kernel, compiled for each target: no spills, registers and shared memory within the chip's."""

import hashlib
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCES = sorted((ROOT / "csrc" / "cuda").glob("*.cu"))
BUILD = ROOT / "build" / "cuda-compiled"
TARGETS = ["-gencode", "arch=compute_90a,code=sm_90a", "-gencode", "arch=compute_80,code=sm_80"]
FLAGS = ["-std=c++17", "-O3", "-fmad=false", *TARGETS, "-Xptxas", "-v"]
NVCC = shutil.which("nvcc") or shutil.which("/usr/local/cuda/bin/nvcc")
MOST_REGISTERS, MOST_SHARED = 255, 227 * 1024
KERNELS = {"step_kernels": {"step_kernel": 8, "sum_kernel": 2},
           "persistent_kernels": {"persistent_kernel": 6, "replay_kernel": 2, "set_count": 1}}

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


def compiled(source: Path) -> str:
    """The compiler's log, kept in the build folder as long as nothing in csrc changes."""
    key = hashlib.sha256(" ".join([str(NVCC), *FLAGS]).encode())
    for path in sorted((ROOT / "csrc").rglob("*.[hc]*")):
        key.update(path.read_bytes())
    log = BUILD / f"{source.stem}-{key.hexdigest()[:16]}.log"
    if not log.exists():
        BUILD.mkdir(parents=True, exist_ok=True)
        command = [NVCC, *FLAGS, "-c", source, "-o", BUILD / f"{source.stem}.o"]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-3000:]
        log.write_text(done.stdout + done.stderr)
    return log.read_text()


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)
def test_kernels_fit_the_chip(source):
    if NVCC is None:
        pytest.skip("needs nvcc")
    log = compiled(source)
    assert "warning" not in log.lower()
    found = entries(log)
    for target in ("sm_90a", "sm_80"):
        for kernel, count in KERNELS[source.stem].items():
            mangled = f"{len(kernel)}{kernel}"
            assert sum(each["target"] == target and mangled in each["name"] for each in found) == count
    assert len(found) == 2 * sum(KERNELS[source.stem].values())
    for each in found:
        assert each["stack"] == each["spilled"] == each["reloaded"] == 0, each
        assert each["registers"] <= MOST_REGISTERS, each
        # Static shared memory comes on top of the plan's, which test_cuda_packing holds to the limit.
        assert each["shared"] == 0 < MOST_SHARED, each


def test_a_spill_is_seen():
    log = """ptxas info    : Compiling entry function 'kernel' for 'sm_90a'
ptxas info    : Function properties for kernel
    24 bytes stack frame, 16 bytes spill stores, 20 bytes spill loads
ptxas info    : Used 255 registers, used 1 barriers, 4096 bytes smem, 664 bytes cmem[0]
"""
    assert entries(log * 2) == 2 * [{"name": "kernel", "target": "sm_90a", "shared": 4096, "stack": 24, "spilled": 16,
                                     "reloaded": 20, "registers": 255}]
