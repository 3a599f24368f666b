"""What benchmarks/gpu/run.sh runs: every stage in a process of its own with a time limit, so that one that fails or
hangs loses no other's results. They go to OUT/<gpu>/run.json, or STAGE.json. The exit status is 0 when every stage
completed, 1 when one did not, 2 for bad usage. A dry run does tiny work on the CPU, in one process: it measures
nothing.
"""

import argparse
import importlib
import json
import re
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path

import torch

from benchmarks import common

TOTAL = 525  # seconds for everything
# the most seconds for each, a function of stages.py
STAGES = {"checks": 180, "ceilings": 35, "lstm": 115, "encoder": 40, "text": 85, "sanitizer": 60}
LAST_LINES = 12
SHORTEST = 0.002  # seconds: shorter calls are timed in a row, or the wait for the device would show


class Stage:
    """One stage; its document is written after every case, so that a time-out loses at most the case it hit."""

    def __init__(self, seconds: float, dry_run: bool, allennlp: Path | None = None, file: Path | None = None):
        self.ends, self.dry_run, self.allennlp, self.file = time.monotonic() + seconds, dry_run, allennlp, file
        self.device, self.results = "cpu" if dry_run else "cuda", []
        self.document = {"results": self.results}

    def run(self, work) -> int:
        """The exit status: 1 when the work raised or a case of it failed."""
        try:
            if self.dry_run:
                torch.set_num_threads(1)  # tiny work: threads that share busy cores would only wait for each other
            elif not torch.cuda.is_available():
                raise RuntimeError("torch sees no CUDA device; --dry-run runs without one")
            work(self)
            if failed := sum("failed" in case or case.get("passed") is False for case in self.results):
                self.save(error=f"{failed} of {len(self.results)} cases failed")
        except Exception as raised:
            traceback.print_exc()
            self.save(error=describe(raised))
        return int("error" in self.document)

    def save(self, **more) -> None:
        self.document |= more
        if self.file:
            common.write_json(self.file, self.document)

    def left(self) -> float:
        """Seconds of the budget that remain."""
        return max(0.0, self.ends - time.monotonic())

    def add(self, **case) -> dict:
        """Records one case."""
        self.results.append(common.rounded(case))
        self.save()
        return self.results[-1]

    def attempt(self, work, needs: float = 1.0, **case) -> dict:
        """Records `case` with what `work()` returns, or with the error it raises, or why there is no time for it."""
        if not self.dry_run and self.left() < needs:
            return self.add(**case, skipped=f"{self.left():.1f} s are left")
        try:
            return self.add(**case, **work())
        except Exception as error:
            return self.add(**case, failed=describe(error))

    def measure(self, call, seconds: float, most: int = 30) -> common.Timing:
        """Over as many repeats as `seconds` holds, from an idle device to an idle one; short calls several in a row.

        A call too long to warm up in that time is timed once, cold.
        """
        def seconds_of(calls: int) -> float:
            began = time.perf_counter()
            for _ in range(calls):
                call()
            if self.device == "cuda":
                torch.cuda.synchronize()
            return (time.perf_counter() - began) / calls

        cold = seconds_of(1)
        if cold > seconds / 2:
            return common.Timing.of([cold])
        once = seconds_of(1)
        calls = max(1, round(SHORTEST / once))
        rounds = int(max(1, min(most, (seconds - cold - once) / (once * calls))))
        return common.Timing.of([seconds_of(calls) for _ in range(rounds)], calls)


def describe(error: BaseException) -> str:
    """One line without this machine's paths."""
    return without_paths(f"{type(error).__name__}: {(str(error).strip() or 'no message').splitlines()[0][:300]}")


def without_paths(text: str) -> str:
    """Folders of this machine have no place in results that are published."""
    for folder, short in ((common.ROOT, "."), (sys.prefix, "<python>"), (sys.base_prefix, "<python>"),
                          (tempfile.gettempdir(), "<tmp>"), (Path.home(), "~")):
        text = text.replace(str(folder), short)
    return re.sub(r"\S*(?=/site-packages/)", "<python>", text)


def run_here(name: str, seconds: float, given: argparse.Namespace, file: Path) -> int:
    work = getattr(importlib.import_module("benchmarks.gpu.stages"), name)
    return Stage(seconds, given.dry_run, given.allennlp, file).run(work)


def run_apart(command: list, limit: float) -> tuple[int, list[str]]:
    """Exit status and the end of the output of a program; all that it started is killed at the limit, in seconds."""
    done = subprocess.run(["timeout", "-s", "KILL", str(limit), *command], stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, errors="replace")
    print(done.stdout, end="", flush=True)
    return done.returncode, [without_paths(line)[:300] for line in done.stdout.splitlines()[-LAST_LINES:]]


def result(status: int, log: list[str], file: Path) -> dict:
    """A stage's document; a stage that crashed or ran out of time keeps its cases, and has the end of its output."""
    found = json.loads(file.read_text()) if file.exists() else {"results": []}
    file.unlink(missing_ok=True)
    said = "complete" if not status else "timed out" if status in (-9, 128 + 9) else "failed"
    return {"status": said, "exit": status, **found, **({"log": log} if status else {})}


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="run.sh", description=__doc__)
    parser.add_argument("--out", type=Path, default=common.RESULTS, metavar="DIR", help="default: benchmarks/results")
    parser.add_argument("--stage", choices=STAGES, help="run this stage only")
    parser.add_argument("--allennlp", type=Path, metavar="PATH", help="a checkout of AllenNLP 0.9, timed beside ours")
    parser.add_argument("--dry-run", action="store_true", help="without a GPU: exercises the script")
    parser.add_argument("--seconds", type=float, help=argparse.SUPPRESS)  # runs a stage here
    given = parser.parse_args(arguments)
    if given.allennlp and not given.allennlp.is_dir():
        parser.error(f"--allennlp: no folder at {given.allennlp}")
    return given


def main(arguments: list[str] | None = None) -> int:
    given, began = parse(arguments), time.monotonic()
    if given.seconds:
        return run_here(given.stage, given.seconds, given, given.out)
    gpu = "dry run" if given.dry_run else common.gpu_name()
    if gpu is None:
        print("error: no NVIDIA GPU answers nvidia-smi; --dry-run exercises the script without one", file=sys.stderr)
        return 2
    out = given.out / common.slug(gpu) / f"{given.stage or 'run'}.json"
    document = common.document("gpu", {"dry_run": given.dry_run}, []) | {"stages": {}}
    for name in [given.stage] if given.stage else STAGES:
        limit, part = max(1, min(STAGES[name], TOTAL - (time.monotonic() - began))), out.with_suffix(".part")
        print(f"== {name} (at most {limit:.0f} s)", flush=True)
        part.unlink(missing_ok=True)
        # a stage plans for less than its limit, so that it ends by itself and not in mid-case
        command = [sys.executable, "-m", "benchmarks.gpu.run", "--stage", name, "--seconds", str(limit * 0.8), "--out",
                   part, *(["--allennlp", given.allennlp] if given.allennlp else [])]
        ended = (run_here(name, limit, given, part), []) if given.dry_run else run_apart(command, limit)
        found = document["stages"][name] = result(*ended, part)
        common.write_json(out, document)
        print(f"== {name}: {found['status']}, {len(found['results'])} cases, {found.get('error', 'no error')}")
    print(f"{time.monotonic() - began:.0f} s in all; results in {out}")
    return int(any(stage["status"] != "complete" for stage in document["stages"].values()))


if __name__ == "__main__":
    sys.exit(main())
