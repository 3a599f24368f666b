"""Stages `build`, `checks` and `sanitizer`: it installs, its tests for a GPU pass, compute-sanitizer finds no fault."""

import os
import re
import shutil
import subprocess
import sys

from benchmarks import common
from benchmarks.gpu import stage as stages
from benchmarks.gpu.stage import Stage

INSTALL = ("-m", "pip", "install", "--no-index", "--no-build-isolation", "--no-deps", "--no-input", "-e", ".")
TESTS = ("-m", "pytest", "-q", "-m", "gpu", "-p", "no:cacheprovider", "tests")


def run(stage: Stage, *command) -> dict:
    """A Python program that must succeed, with the end of its output."""
    done = subprocess.run([sys.executable, *command], cwd=common.ROOT, capture_output=True, text=True,
                          timeout=max(1.0, stage.left()))
    lines = (done.stdout + done.stderr).splitlines()
    return {"passed": done.returncode == 0, "lines": [stages.without_paths(line)[:300] for line in lines[-40:]]}


def build(stage: Stage) -> None:
    if not stage.dry_run:
        stage.attempt(lambda: run(stage, *INSTALL), case="install")
    stage.attempt(lambda: run(stage, "-m", "elmo_fast.cli", "doctor"), case="doctor")


def work(stage: Stage) -> None:
    if stage.dry_run:
        stage.add(case="pytest -m gpu", skipped="a dry run has no GPU")
    else:
        stage.attempt(lambda: run(stage, *TESTS), case="pytest -m gpu")


def sanitizer(stage: Stage) -> None:
    """The checks of `lstm.py` at small size on each path, watched tool by tool."""
    program = shutil.which("compute-sanitizer", path=f"{os.environ.get('PATH', os.defpath)}:/usr/local/cuda/bin")
    if stage.dry_run or program is None:
        stage.add(case="sanitizer", skipped="it needs a GPU and compute-sanitizer")
        return
    for path in ("persistent", "graph"):
        for tool in ("memcheck", "racecheck"):
            stage.attempt(lambda: watch(stage, program, tool, path), needs=5, tool=tool, path=path)


def watch(stage: Stage, program: str, tool: str, path: str) -> dict:
    command = [program, "--tool", tool, "--target-processes", "all", sys.executable, "-m", "benchmarks.gpu.lstm", path]
    done = subprocess.run(command, cwd=common.ROOT, capture_output=True, text=True, timeout=max(1.0, stage.left()))
    return verdict(done.stdout + done.stderr)


def verdict(said: str) -> dict:
    """What the tool's output means; the program ends with a line `done`, or says why the path does not run."""
    if reason := re.search(r"^skipped: (.*)$", said, re.M):
        return {"skipped": reason[1]}
    counted = re.findall(r"(?:ERROR|RACECHECK) SUMMARY: (\d+)", said)
    passed = bool(counted) and not any(map(int, counted)) and re.search(r"^done$", said, re.M) is not None
    return {"passed": passed} if passed else {"passed": False, "log": said.splitlines()[-20:]}
