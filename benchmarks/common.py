"""What every benchmark shares: results, rows, the command line; and names of workloads, machine facts and timing."""

import argparse
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from benchmarks.workloads import batches, running_text, shared_folder, text_facts  # noqa: F401
from elmo_fast.bench.machine import machine
from elmo_fast.bench.timing import generated_sentences, rounded, take_turns  # noqa: F401
from elmo_fast.environment import version
from elmo_fast.testing import FILTERS, SIZES, standard_options  # noqa: F401

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
SCHEMA = 1


# ---- timings -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Timing:
    """Seconds per call: median, 20th and 80th percentile over `rounds` samples, and the samples in their order."""

    median: float
    p20: float
    p80: float
    rounds: int
    calls_per_round: int
    samples: tuple[float, ...] = ()

    @classmethod
    def of(cls, samples: list[float], calls_per_round: int = 1) -> "Timing":
        p20, median, p80 = np.percentile(samples, [20, 50, 80])
        return cls(float(median), float(p20), float(p80), len(samples), calls_per_round, tuple(samples))

    def as_dict(self, samples: bool = False) -> dict:
        return rounded({key: value for key, value in asdict(self).items() if samples or key != "samples"})

    def times_as_fast_as(self, other: "Timing") -> float:
        """Median of the ratios within a round: a slow minute then hits both sides of a ratio."""
        return float(np.median(np.divide(other.samples, self.samples)))


def seconds_per_call(fn, calls: int) -> float:
    start = time.perf_counter()
    for _ in range(calls):
        fn()
    return (time.perf_counter() - start) / calls


def interleave(functions: dict, rounds: int = 5, min_seconds: float = 0.0,
               after: Callable[[object], None] | None = None) -> dict[str, Timing]:
    """Times functions by turns, so that a slow minute of the machine hits all of them alike.

    Every function is called once to warm up, then once a round, or as often as fills
    `min_seconds`; the order moves on by one every round. `after` as in `take_turns`.
    """
    if rounds < 1:
        raise ValueError(f"rounds: expected at least 1, got {rounds}")
    calls = {name: max(1, round(min_seconds / max(seconds_per_call(fn, 1), 1e-9)))
             for name, fn in functions.items()}
    samples = take_turns({name: lambda name=name: seconds_per_call(functions[name], calls[name]) for name in functions},
                         rounds, after)
    return {name: Timing.of(samples[name], calls[name]) for name in functions}


def alternate(turns: dict, rounds: int, after: Callable[[object], None] | None = None) -> dict[object, list[float]]:
    """Tokens per second in every round, of functions that return the tokens of a turn."""
    def speed(turn) -> float:
        start = time.perf_counter()
        tokens = turn()
        return tokens / (time.perf_counter() - start)

    return take_turns({key: lambda turn=turn: speed(turn) for key, turn in turns.items()}, rounds, after)


# ---- results -------------------------------------------------------------------------------


def revision() -> str | None:
    """The commit measured, '+changes' behind it when the tree differs; None outside git."""
    try:
        commit, changed = (
            subprocess.run(["git", *command], check=True, capture_output=True, text=True, cwd=ROOT).stdout.strip()
            for command in (["rev-parse", "HEAD"], ["status", "--porcelain", "--", ":!benchmarks/results"]))
    except (OSError, subprocess.CalledProcessError):
        return None
    return commit + ("+changes" if changed else "")


def document(name: str, settings: dict, results) -> dict:
    """The frame every results file has."""
    return {
        "schema": SCHEMA,
        "name": name,
        "date": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "revision": revision(),
        "version": version("elmo-fast"),
        "machine": machine(),
        "settings": settings,
        "results": results,
    }


def row(timing: Timing, unit: str, *, workload: str, model: str, way: str, variant: str, precision: str = "highest",
        samples: bool = False, **more) -> dict:
    """A result: what ran on what, its timing in `unit`, and what belongs to it.

    `more`: `floor` in the unit and `share` of it, `error` and `limit` of the check that passed before, and ratios. What
    is None is left out.
    """
    facts = {"workload": workload, "model": model, "way": way, "variant": variant, "precision": precision, "unit": unit}
    return rounded({**facts, **timing.as_dict(samples),
                    **{name: value for name, value in more.items() if value is not None}})


def slug(name: str) -> str:
    """A folder name for a chip: 'NVIDIA H200' -> 'h200'."""
    bare = re.sub(r"^NVIDIA\s+", "", name, flags=re.IGNORECASE)
    return re.sub(r"[^a-z0-9]+", "-", bare.lower()).strip("-")


def write_json(path: Path, content) -> Path:
    """Writes beside the target and renames, so that a reader never sees a part of a file."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    part.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    os.replace(part, path)
    return path


def table(content: dict) -> str:
    """Rows of the one shape as Markdown."""
    beside = content["settings"].get("times_as_fast_as")
    head = ["model", "workload", "way", "variant", "precision", "median", "tokens/s floor", "share",
            f"times as fast{f' as {beside}' if beside else ''}"]
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for found in content["results"]:
        busy = found.get("busy_turns")
        least, share, ratio = (found.get(name) for name in ("floor_tokens_per_s", "share", "times_as_fast"))
        cells = [*(found[name] for name in ("model", "workload", "way", "variant", "precision")),
                 f"{found['median']:,.5g} {found['unit']}"
                 + (f" (machine busy in {busy} of {found['rounds']} turns)" if busy else ""),
                 f"{least:,.0f}" if least else "-", f"{share:.0%}" if share else "-", f"{ratio:.2f}" if ratio else "-"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


# ---- command -------------------------------------------------------------------------------


def positive(text: str) -> int:
    """An argparse type."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"expected at least 1, got {value}")
    return value


def make_parser(description: str, file: str, *counts: tuple[str, int, str]) -> argparse.ArgumentParser:
    """A parser with counts as (flag, default, help), `--threads`, and `--out`, whose default is `file`."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    for flag, default, what in counts:
        parser.add_argument(flag, type=positive, default=default, metavar="N", help=f"{what} (default: {default})")
    parser.add_argument("--threads", type=positive, metavar="N", help="PyTorch's threads (default: PyTorch's choice)")
    parser.add_argument("--out", type=Path, metavar="FILE",
                        help=f"JSON to write (default: benchmarks/results/cpu/{file})")
    return parser


def run_and_write(arguments: argparse.Namespace, run: Callable[[argparse.Namespace], dict], file: str,
                  report: Callable[[dict], str]) -> int:
    """Write what `run` returns and print a report of it; 1, with the reason on stderr, where it raises."""
    import torch

    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    try:
        content = run(arguments)
    except (ValueError, RuntimeError, OSError) as problem:
        print(f"error: {problem}", file=sys.stderr)
        return 1
    out = arguments.out or RESULTS / "cpu" / file
    write_json(out, content)
    print(f"{report(content)}\nwritten: {out.name}")
    return 0
