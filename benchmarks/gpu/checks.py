"""Stages `checks` and `sanitizer`: it installs, its tests for a GPU pass, compute-sanitizer finds no fault."""

import itertools
import os
import re
import shutil
import subprocess
import sys

from benchmarks import common
from benchmarks.gpu.stage import Stage, without_paths

CHECKS = {"install": "pip install --no-index --no-build-isolation --no-deps --no-input -e .",
          "doctor": "elmo_fast.cli doctor", "tests": "pytest -q -m gpu -p no:cacheprovider tests"}


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
