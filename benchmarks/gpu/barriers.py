"""Barriers over a whole launch (barriers.cu), compiled and timed: a part of the stage `ceilings`."""

import json
import shutil
import subprocess
import tempfile
from pathlib import Path

from benchmarks.gpu import stage as stages

SOURCE = Path(__file__).with_suffix(".cu")
FLAGS = ("-std=c++17", "-O3", "-gencode", "arch=compute_90a,code=sm_90a")


def compiler() -> str | None:
    """nvcc, if it is installed."""
    return shutil.which("nvcc") or shutil.which("/usr/local/cuda/bin/nvcc")


def compiled(folder: Path) -> Path:
    """The program; `RuntimeError` with the compiler's last words where it cannot be made."""
    program = folder / "barriers"
    done = subprocess.run([compiler(), *FLAGS, SOURCE, "-o", program], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError("nvcc: " + stages.without_paths((done.stderr.strip() or "no output").splitlines()[-1]))
    return program


def why_not(stage: stages.Stage) -> str | None:
    """None where the barriers can be timed, else the reason they cannot."""
    if stage.dry_run:
        return "a barrier over a launch needs a GPU"
    import torch

    if torch.cuda.get_device_capability() != (9, 0):
        return "the program is for sm_90a"
    return None if compiler() else "nvcc is not installed"


def read(said: str) -> list[dict]:
    """The cases that the program printed."""
    return [json.loads(line) for line in said.splitlines() if line.startswith("{")]


def measure(stage: stages.Stage) -> None:
    """Records a case for each design and number of blocks: nanoseconds from one generation to the next."""
    reason = why_not(stage)
    if reason:
        stage.add(case="barrier", skipped=reason)
        return
    with tempfile.TemporaryDirectory() as folder:
        program = compiled(Path(folder))
        done = subprocess.run([program], capture_output=True, text=True, timeout=max(1.0, stage.left()))
        for case in read(done.stdout):
            stage.add(case="barrier", **case)
        if done.returncode:
            raise RuntimeError("barriers: " + (done.stderr.strip() or "no output").splitlines()[-1])
