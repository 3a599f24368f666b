"""No timing: what a corpus costs on many workers, from measured rates and a simulation of `embed_dataset`.

`python -m benchmarks.report` puts the tables into docs/scaling.md; `simulate` takes any other plan.
"""

import heapq
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass

from benchmarks import common
from elmo_fast.arguments import SIZES

SHARD_TOKENS = 1 << 15  # of a file
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
                        and (case["way"], case["precision"]) == ("slots of 64", "highest"))
    return rates


def plan(size: str, form: str, words: int, workers: int) -> Plan:
    """A published size's run with the figures there are."""
    cells, projection, _ = SIZES[size]
    vectors, width = FORMS[form]
    # Two layers in two directions; the char encoder is some 10 % of the largest model.
    model_bytes = 4 * 2 * 2 * (2 * projection * 4 * cells + cells * projection)
    return Plan(words, workers, compute_rates()[size], 2 * projection * vectors * width, model_bytes, **figures())


def rate_table() -> tuple[list[str], list[list[str]]]:
    """Head and lines of the rates."""
    lines = [[f"{name}, {UNITS[name]}", f"{value:,.0f}",
              "assumed" if value == ASSUMED[name] else "results/cpu/scale.json"] for name, value in figures().items()]
    return ["rate", "value", "from"], lines + [
        [f"compute, {size}, tokens/s of a worker with two cores", f"{value:,.0f}", f"results/cpu/embed-{size}.json"]
        for size, value in compute_rates().items()]


def cost_table() -> tuple[list[str], list[list[str]]]:
    """Head and lines of the costs."""
    head = ["model", "kept", "words", "workers", "time", "core-hours", "written", "busiest, share of the time"]
    return head, [[size, form, words, *_cost(plan(size, form, number, workers))]
                  for size in SIZES for form in FORMS for words, number in WORDS.items() for workers in WORKERS]


def _cost(made: Plan) -> list[str]:
    outcome = simulate(made)
    hours, busiest = outcome.seconds / 3600, outcome.bottleneck
    time = f"{outcome.seconds / 60:.1f} min" if hours < 1 else f"{hours:.1f} h" if hours < 48 else f"{hours / 24:.1f} d"
    written = made.tokens * made.token_bytes
    amount = f"{written / 1e12:.2f} TB" if written >= 1e12 else f"{written / 1e9:.2f} GB"
    return [str(made.workers), time, f"{2 * made.workers * hours:,.1f}", amount,
            f"{busiest}, {outcome.busy[busiest]:.0%}"]
