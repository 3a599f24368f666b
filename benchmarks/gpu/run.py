"""What benchmarks/gpu/run.sh runs: every stage in a process of its own with a time limit, so that one that fails or
hangs loses no other's results. They go to OUT/<gpu>/run.json, or STAGE.json. The exit status is 0 when every stage
completed, 1 when one did not, 2 for bad usage. A dry run does tiny work on the CPU, in one process: it measures
nothing.
"""

import argparse
import contextlib
import importlib
import io
import json
import subprocess
import sys
import time
from pathlib import Path

from benchmarks import common
from benchmarks.gpu.stage import Stage, without_paths

TOTAL = 525  # seconds for everything
# stage: the most seconds for it, its module and function
STAGES = {"checks": (180, "checks.work"), "ceilings": (35, "ceilings.work"), "lstm": (115, "lstm.work"),
          "encoder": (40, "model.encoder"), "text": (85, "model.text"), "sanitizer": (60, "checks.sanitizer")}
LAST_LINES = 12


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


def run_here(name: str, seconds: float, given: argparse.Namespace) -> int:
    module, function = STAGES[name][1].split(".")
    work = getattr(importlib.import_module(f"benchmarks.gpu.{module}"), function)
    return Stage(seconds, given.dry_run, given.allennlp).run(work)


def run_apart(command: list, limit: float) -> tuple[int, list[str]]:
    """Exit status and output of a program, printed as it comes; all it started is killed at the limit, in seconds."""
    lines = []
    with subprocess.Popen(["timeout", "-s", "KILL", str(limit), *command], stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, errors="replace") as process:
        for line in process.stdout:
            print(line, end="", flush=True)
            lines.append(line.rstrip("\n"))
    return process.returncode, lines


def result(status: int, lines: list[str]) -> dict:
    """A stage's document; a stage that crashed or ran out of time keeps its cases, and has the end of its output."""
    document, log = {"status": "complete", "exit": status, "results": []}, []
    for line in lines:
        try:
            found = dict(json.loads(line))
        except (ValueError, TypeError):
            log.append(without_paths(line)[:300])
            continue
        document["results"] += [found.pop("case")] if "case" in found else found.pop("results", [])
        document |= found
    if status:
        document |= {"status": "timed out" if status in (-9, 128 + 9) else "failed", "log": log[-LAST_LINES:]}
    return document


def main(arguments: list[str] | None = None) -> int:
    given, began = parse(arguments), time.monotonic()
    if given.seconds:
        return run_here(given.stage, given.seconds, given)
    gpu = "dry run" if given.dry_run else common.gpu_name()
    if gpu is None:
        print("error: no NVIDIA GPU answers nvidia-smi; --dry-run exercises the script without one", file=sys.stderr)
        return 2
    document, out = {"name": "gpu", "stages": {}}, given.out / common.slug(gpu) / f"{given.stage or 'run'}.json"
    for name in [given.stage] if given.stage else STAGES:
        limit = max(1, min(STAGES[name][0], TOTAL - (time.monotonic() - began)))
        print(f"== {name} (at most {limit:.0f} s)", flush=True)
        if given.dry_run:
            with contextlib.redirect_stdout(io.StringIO()) as printed:
                status = run_here(name, limit, given)
            lines = printed.getvalue().splitlines()
        else:  # a stage plans for less than its limit, so that it ends by itself and not in mid-case
            command = [sys.executable, "-m", "benchmarks.gpu.run", "--stage", name, "--seconds", str(limit * 0.8)]
            status, lines = run_apart([*command, *(["--allennlp", given.allennlp] if given.allennlp else [])], limit)
        found = result(status, lines)
        document = {key: found.pop(key) for key in ("schema", "date", "revision", "machine") if key in found} | document
        document["stages"][name] = {key: value for key, value in found.items() if key != "name"}
        common.write_json(out, document)
        print(f"== {name}: {found['status']}, {len(found['results'])} cases, {found.get('error', 'no error')}")
    print(f"{time.monotonic() - began:.0f} s in all; results in {out}")
    return int(any(stage["status"] != "complete" for stage in document["stages"].values()))


if __name__ == "__main__":
    sys.exit(main())
