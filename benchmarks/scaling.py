"""No timing: what a corpus costs on many workers, from measured rates and a simulation of `embed --ray`.

`python -m benchmarks.scaling` prints the tables of docs/scaling.md, and with `--docs` puts them there.
"""

import argparse
import heapq
import json
import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks import common
from elmo_fast.choices import SIZES

DOCS = common.ROOT / "docs" / "scaling.md"
BEGIN, END = "<!-- python -m benchmarks.scaling --docs -->\n", "<!-- end -->\n"
SHARD_TOKENS = 1 << 15  # of elmo_fast.scale.corpus
WORDS, WORKERS = {"1 M": 10**6, "1 B": 10**9}, (1, 8, 64)
FORMS = {"average, float16": (1, 2), "all, float32": (3, 4)}  # vectors of a token, bytes of a value
# What no file of results has: 10 Gbit/s from each machine, a file server, and Ray's start with a process a worker.
ASSUMED = {"network": 1.25e9, "disk": 1e9, "start": 15.0, "host": 400e6, "read": 400e3}
UNITS = {"network": "bytes/s of a worker's machine", "disk": "bytes/s of all workers", "start": "s", "host":
         "bytes/s of a worker, from arrays to the file system", "read": "tokens/s, from the text to the object store"}


@dataclass(frozen=True)
class Plan:
    """A run: `tokens` of text on `workers`, with the rates of a worker and of what all of them share.

    `compute` and `read` are tokens/s, `host`, `network` and `disk` bytes/s, `token_bytes` and `model_bytes` sizes.
    """

    tokens: int
    workers: int
    compute: float
    token_bytes: int
    model_bytes: float
    host: float
    read: float
    network: float
    disk: float
    start: float


@dataclass(frozen=True)
class Outcome:
    """Seconds of a run, and the share of them in which each resource was busy."""

    seconds: float
    busy: Mapping[str, float]

    @property
    def bottleneck(self) -> str:
        """The busiest resource, or `start` where starting takes the larger half."""
        return max(self.busy, key=self.busy.__getitem__)


def simulate(plan: Plan) -> Outcome:
    """Run the shards of a plan: one reader before all workers, one disk behind them, each serving in order of arrival.

    A worker takes the next shard, computes, converts, and has written when its link and the disk are done.
    """
    # The store sends the weights on from machine to machine.
    start = plan.start + plan.model_bytes / plan.network * math.ceil(math.log2(plan.workers + 1))
    count = math.ceil(plan.tokens / SHARD_TOKENS)
    sizes = [SHARD_TOKENS] * (count - 1) + [plan.tokens - SHARD_TOKENS * (count - 1)]
    free = [start] * min(plan.workers, count)  # a heap of the times at which workers are free
    read_at = disk_free = end = 0.0
    for tokens in sizes:
        read_at += tokens / plan.read
        size = tokens * plan.token_bytes
        begun = max(heapq.heappop(free), read_at)
        made = begun + tokens / plan.compute + size / plan.host
        disk_free = max(made, disk_free) + size / plan.disk
        written = max(made + size / plan.network, disk_free)
        heapq.heappush(free, written)
        end = max(end, written)
    total = plan.tokens * plan.token_bytes
    seconds = {"start": start, "read": plan.tokens / plan.read, "compute": plan.tokens / plan.compute / plan.workers,
               "host": total / plan.host / plan.workers, "network": total / plan.network / plan.workers,
               "disk": total / plan.disk}
    return Outcome(end, {name: value / end for name, value in seconds.items()})


def figures() -> dict[str, float]:
    """The rates of `ASSUMED`, those of them measured that benchmarks/results has."""
    path = common.RESULTS / "cpu" / "scale.json"
    measured = json.loads(path.read_text())["settings"]["rates"] if path.exists() else {}
    return {**ASSUMED, **{name: measured[name] for name in ("host", "read") if name in measured}}


def compute_rates() -> dict[str, float]:
    """Tokens/s of a process by size: a stream in 64 slots, fp32, on the two cores of benchmarks/results."""
    rates = {}
    for size in SIZES:
        results = json.loads((common.RESULTS / "cpu" / f"embed-{size}.json").read_text())["results"]
        rates[size], = (case["tokens_per_s"] for case in results if case["variant"] == "ours"
                        and (case["way"], case["precision"]) == ("lanes of 64", "highest"))
    return rates


def plan(size: str, form: str, words: int, workers: int) -> Plan:
    """A published size's run with the figures there are."""
    cells, projection, _ = SIZES[size]
    vectors, width = FORMS[form]
    # Two layers in two directions; the char encoder is some 10 % of the largest model.
    model_bytes = 4 * 2 * 2 * (2 * projection * 4 * cells + cells * projection)
    return Plan(words, workers, compute_rates()[size], 2 * projection * vectors * width, model_bytes, **figures())


def tables() -> str:
    """The tables as Markdown."""
    lines = ["| rate | value | from |", "|---|---|---|"]
    for name, value in figures().items():
        source = "assumed" if value == ASSUMED[name] else "results/cpu/scale.json"
        lines.append(f"| {name}, {UNITS[name]} | {value:,.0f} | {source} |")
    lines += [f"| compute, {size}, tokens/s of a worker with two cores | {value:,.0f} | results/cpu/embed-{size}.json |"
              for size, value in compute_rates().items()]
    lines += ["", "| model | kept | words | workers | time | core-hours | written | busiest, share of the time |",
              "|---|---|---|---|---|---|---|---|"]
    for size in SIZES:
        for form in FORMS:
            for words, number in WORDS.items():
                lines += [_line(size, form, words, plan(size, form, number, workers)) for workers in WORKERS]
    return "\n".join(lines) + "\n"


def _line(size: str, form: str, words: str, made: Plan) -> str:
    outcome = simulate(made)
    hours, busiest = outcome.seconds / 3600, outcome.bottleneck
    time = f"{outcome.seconds / 60:.1f} min" if hours < 1 else f"{hours:.1f} h" if hours < 48 else f"{hours / 24:.1f} d"
    written = made.tokens * made.token_bytes
    amount = f"{written / 1e12:.2f} TB" if written >= 1e12 else f"{written / 1e9:.2f} GB"
    return (f"| {size} | {form} | {words} | {made.workers} | {time} | {2 * made.workers * hours:,.1f} | {amount} | "
            f"{busiest}, {outcome.busy[busiest]:.0%} |")


def with_tables(text: str) -> str:
    """The page with the tables of now."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}{tables()}{END}{after}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--docs", action="store_true", help="put the tables into docs/scaling.md")
    if parser.parse_args().docs:
        Path(DOCS).write_text(with_tables(DOCS.read_text(encoding="utf-8")), encoding="utf-8")
    else:
        print(tables(), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
