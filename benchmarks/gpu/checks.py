"""Stages that need no model: `checks` (it installs, its tests for a GPU pass), `ceilings` (what this chip can do at
most) and `sanitizer` (compute-sanitizer finds no fault).
"""

import itertools
import os
import re
import shutil
import subprocess
import sys

import torch

from benchmarks import common
from benchmarks.gpu.run import Stage, without_paths
from elmo_fast.ops.precision import numerics

CHECKS = {"install": "pip install --no-index --no-build-isolation --no-deps --no-input -e .",
          "doctor": "elmo_fast.cli doctor", "tests": "pytest -q -m gpu -p no:cacheprovider tests"}
PRODUCTS = {"fp16": (torch.float16, "highest", 8192), "tf32": (torch.float32, "high", 8192),
            "fp32": (torch.float32, "highest", 4096)}  # type, precision, and rows and columns
COPIES = {"HBM": 2048, "L2": 16}  # megabytes read, and as many written: in L2 both fit
SECONDS = 1.2  # for a ceiling


def run(stage: Stage, *command) -> dict:
    """A program that must succeed, with the end of its output; it has the stage's time."""
    done = subprocess.run(command, cwd=common.ROOT, capture_output=True, text=True, timeout=max(1.0, stage.left()))
    lines = (done.stdout + done.stderr).splitlines()
    return {"passed": done.returncode == 0, "lines": [without_paths(line)[:300] for line in lines[-40:]]}


def work(stage: Stage) -> None:
    for case, command in CHECKS.items():
        if stage.dry_run and case != "doctor":
            stage.add(case=case, skipped="a dry run has no GPU")
        else:
            stage.attempt(lambda: run(stage, sys.executable, "-m", *command.split()), case=case)


def ceilings(stage: Stage) -> None:
    """Square products of random data (zeros run faster) and copies, both by the libraries."""
    def product(dtype: torch.dtype, precision: str, side: int) -> dict:
        side = 64 if stage.dry_run else side
        a, b = (torch.randn(side, side, device=stage.device, dtype=dtype) for _ in range(2))
        with numerics(precision, a.device):
            timing = stage.measure(lambda: a @ b, SECONDS)
        return {**timing.as_dict(), "tflop_per_s": 2 * side**3 / timing.median / 1e12}

    def copy(megabytes: int) -> dict:
        source = torch.zeros(1 if stage.dry_run else megabytes << 20, dtype=torch.uint8, device=stage.device)
        target = torch.empty_like(source)
        timing = stage.measure(lambda: target.copy_(source), SECONDS)
        return {**timing.as_dict(), "megabytes": megabytes, "gb_per_s": 2 * len(source) / timing.median / 1e9}

    for kind, of_product in PRODUCTS.items():
        stage.attempt(lambda: product(*of_product), case=f"gemm {kind}")
    for level, megabytes in COPIES.items():
        stage.attempt(lambda: copy(megabytes), case=f"copy {level}")


def sanitizer(stage: Stage) -> None:
    """The checks of `lstm.py` at small size on each path, watched tool by tool."""
    program = shutil.which("compute-sanitizer", path=f"{os.environ.get('PATH', os.defpath)}:/usr/local/cuda/bin")
    if stage.dry_run or program is None:
        stage.add(case="sanitizer", skipped="it needs a GPU and compute-sanitizer")
        return
    for path, tool in itertools.product(("persistent", "graph"), ("memcheck", "racecheck")):
        watch = program, "--tool", tool, "--target-processes", "all"
        watched = sys.executable, "-m", "benchmarks.gpu.lstm", path
        stage.attempt(lambda: verdict(run(stage, *watch, *watched)["lines"]), needs=5, tool=tool, path=path)


def verdict(lines: list[str]) -> dict:
    """What the tool's output means; the program ends with a line `done`, or says why the path does not run."""
    if reason := re.search(r"^skipped: (.*)$", text := "\n".join(lines), re.MULTILINE):
        return {"skipped": reason[1]}
    counted = re.findall(r"(?:ERROR|RACECHECK) SUMMARY: (\d+)", text)
    passed = bool(counted) and not any(map(int, counted)) and "done" in lines
    return {"passed": passed} if passed else {"passed": False, "log": lines[-20:]}
