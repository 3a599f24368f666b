"""What benchmarks/gpu/run.sh runs: every stage in a process of its own with a time limit, so that one that fails or
hangs loses no other's results. They go to OUT/<gpu>/run.json, or STAGE.json. The exit status is 0 when every stage
completed, 1 when one did not, 2 for bad usage. A dry run does tiny work on the CPU, in one process: it measures
nothing.
"""

import argparse
import importlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from benchmarks import common
from benchmarks.gpu import stage as stages

TOTAL = 525  # seconds for everything
# stage: the most seconds for it, its module and function
STAGES = {"build": (85, "checks.build"), "ceilings": (35, "ceilings.work"), "checks": (95, "checks.work"),
          "lstm": (115, "lstm.work"), "encoder": (40, "model.encoder"), "text": (85, "model.text"),
          "sanitizer": (60, "checks.sanitizer")}
FRAME = ("schema", "date", "revision", "machine")
LAST_LINES = 12


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="run.sh", description=__doc__)
    parser.add_argument("--out", type=Path, default=common.RESULTS, metavar="DIR", help="default: benchmarks/results")
    parser.add_argument("--stage", choices=STAGES, help="run this stage only")
    parser.add_argument("--allennlp", type=Path, metavar="PATH", help="a checkout of AllenNLP 0.9, timed beside ours")
    parser.add_argument("--dry-run", action="store_true", help="without a GPU: exercises the script")
    parser.add_argument("--part", type=Path, help=argparse.SUPPRESS)  # runs a stage here, into this file
    parser.add_argument("--seconds", type=float, default=60, help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.allennlp and not given.allennlp.is_dir():
        parser.error(f"--allennlp: no folder at {given.allennlp}")
    return given


def run_here(name: str, part: Path, seconds: float, given: argparse.Namespace) -> int:
    module, function = STAGES[name][1].split(".")
    stage = stages.Stage(name, part, seconds, given.dry_run, given.allennlp)
    return stage.run(lambda: getattr(importlib.import_module(f"benchmarks.gpu.{module}"), function)(stage))


def run_apart(command: list, limit: float) -> tuple[int, list[str]]:
    """Exit status (negative: killed) and output of a program, printed as it comes; all it started ends at the limit."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
                               start_new_session=True)
    timer = threading.Timer(limit, lambda: os.killpg(process.pid, signal.SIGKILL))
    timer.start()
    lines = []
    for line in process.stdout:
        print(line, end="", flush=True)
        lines.append(line.rstrip("\n"))
    status = process.wait()
    timer.cancel()
    return status, lines


def result(part: Path, status: int, lines: list[str]) -> dict:
    """A stage's document; a stage that crashed or ran out of time keeps its cases, and has the end of its output."""
    document = json.loads(part.read_text(encoding="utf-8")) if part.exists() else {"status": "failed", "results": []}
    if status:
        document["status"] = "timed out" if status == -signal.SIGKILL else "failed"
        document["log"] = [stages.without_paths(line)[:300] for line in lines[-LAST_LINES:]]
    return document | {"exit": status}


def main(arguments: list[str] | None = None) -> int:
    given, began = parse(arguments), time.monotonic()
    if given.part:
        return run_here(given.stage, given.part, given.seconds, given)
    gpu = "dry run" if given.dry_run else common.gpu_name()
    if gpu is None:
        print("error: no NVIDIA GPU answers nvidia-smi; --dry-run exercises the script without one", file=sys.stderr)
        return 2
    folder = given.out / common.slug(gpu)
    parts, out = folder / "parts", folder / f"{given.stage or 'run'}.json"
    shutil.rmtree(parts, ignore_errors=True)
    document = {"name": "gpu", **dict.fromkeys(FRAME), "stages": {}}
    for name in [given.stage] if given.stage else STAGES:
        part, started = parts / f"{name}.json", time.monotonic()
        limit = max(1, min(STAGES[name][0], TOTAL - (started - began)))
        print(f"== {name} (at most {limit:.0f} s)", flush=True)
        if given.dry_run:
            status, lines = run_here(name, part, limit, given), []
        else:  # a stage plans for less than its limit, so that it ends by itself and not in mid-case
            command = [sys.executable, "-m", "benchmarks.gpu.run", "--stage", name, "--part", part,
                       "--seconds", str(limit * 0.8), *(["--allennlp", given.allennlp] if given.allennlp else [])]
            status, lines = run_apart(command, limit)
        found = result(part, status, lines)
        document |= {key: document[key] or found.pop(key, None) for key in FRAME}
        document["stages"][name] = {key: each for key, each in found.items() if key not in (*FRAME, "name")}
        common.write_json(out, document)
        print(f"== {name}: {found['status']}, {len(found['results'])} cases, {found.get('error', 'no error')}")
    shutil.rmtree(parts, ignore_errors=True)
    print(f"{time.monotonic() - began:.0f} s in all; results in {out}")
    return int(any(found["status"] != "complete" for found in document["stages"].values()))


if __name__ == "__main__":
    sys.exit(main())
