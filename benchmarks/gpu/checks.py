"""Stages `build`, `checks` and `sanitizer`: it installs, its tests for a GPU pass, compute-sanitizer finds no fault."""

import itertools
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


def said(stage: Stage, *command) -> tuple[int, str]:
    """A program's exit status and output; it has the stage's time."""
    done = subprocess.run(command, cwd=common.ROOT, capture_output=True, text=True, timeout=max(1.0, stage.left()))
    return done.returncode, done.stdout + done.stderr


def run(stage: Stage, *command) -> dict:
    """A Python program that must succeed, with the end of its output."""
    status, text = said(stage, sys.executable, *command)
    return {"passed": status == 0, "lines": [stages.without_paths(line)[:300] for line in text.splitlines()[-40:]]}


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
    for path, tool in itertools.product(("persistent", "graph"), ("memcheck", "racecheck")):
        watch = [program, "--tool", tool, "--target-processes", "all"]
        watched = [sys.executable, "-m", "benchmarks.gpu.lstm", path]
        stage.attempt(lambda: verdict(said(stage, *watch, *watched)[1]), needs=5, tool=tool, path=path)


def verdict(text: str) -> dict:
    """What the tool's output means; the program ends with a line `done`, or says why the path does not run."""
    if reason := re.search(r"^skipped: (.*)$", text, re.MULTILINE):
        return {"skipped": reason[1]}
    counted = re.findall(r"(?:ERROR|RACECHECK) SUMMARY: (\d+)", text)
    passed = bool(counted) and not any(map(int, counted)) and re.search(r"^done$", text, re.MULTILINE) is not None
    return {"passed": passed} if passed else {"passed": False, "log": text.splitlines()[-20:]}
