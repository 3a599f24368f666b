"""Turns the measured stage `tiers` into the rules that `auto` goes by.

    python -m benchmarks.gpu.tier_table --results benchmarks/results/h200/run.json --install
"""

import argparse
import json
import math
import sys
from pathlib import Path

from benchmarks import common
from elmo_fast.ops.cuda_limits import FEWEST_STEPS

TABLE = common.ROOT / "elmo_fast" / "ops" / "cuda_tiers.json"
WORTH = 1.02  # a tier must be so many times as fast as A to be preferred


def fastest(cases: list[dict]) -> dict[tuple[str, int, int], str]:
    """(precision, length, batch) -> tier, of the cases that were timed."""
    seconds: dict[tuple[str, int, int], dict[str, float]] = {}
    for case in cases:
        if "median" in case and "tier" in case:
            seconds.setdefault((case["precision"], case["length"], case["batch"]), {})[case["tier"]] = case["median"]
    best = {}
    for key, of_tier in seconds.items():
        tier = min(of_tier, key=of_tier.get)
        best[key] = "A" if of_tier.get("A", math.inf) < WORTH * of_tier[tier] else tier
    return best


def rules(best: dict[tuple[str, int, int], str], dim: int) -> list[dict]:
    """Rules, the longest sentences first, then by rising lanes; between two sizes measured the border is their
    geometric mean. Models of half the size measured or less keep A."""
    found = []
    for precision in dict.fromkeys(key[0] for key in best):
        lengths = sorted({key[1] for key in best if key[0] == precision}, reverse=True)
        for number, length in enumerate(lengths):
            least = round(math.sqrt(length * lengths[number + 1])) if number + 1 < len(lengths) else 0
            for batches, tier in _runs({key[2]: tier for key, tier in best.items() if key[:2] == (precision, length)}):
                fewest = FEWEST_STEPS if tier == "C" else 0
                rule = {"precisions": [precision], "least_steps": max(least, fewest), "tier": tier}
                if batches is not None:
                    rule["most_lanes"] = batches
                if tier != "A":
                    rule["least_dim"] = dim // 2
                found.append(rule)
    return found + [{"tier": "A"}]


def _runs(of_batch: dict[int, str]) -> list[tuple[int | None, str]]:
    """(most lanes, tier) by rising batch, equal neighbours joined; the last has no bound."""
    batches = sorted(of_batch)
    runs: list[tuple[int | None, str]] = []
    for number, batch in enumerate(batches):
        last = number + 1 == len(batches)
        if not last and of_batch[batches[number + 1]] == of_batch[batch]:
            continue
        runs.append((None if last else int(math.sqrt(batch * batches[number + 1])), of_batch[batch]))
    return runs


def table(document: dict, before: dict) -> dict:
    """The table with the rules of the GPU that was measured put in."""
    part = document["stages"].get("tiers", {})
    best = fastest(part.get("results", []))
    gpu = (document.get("machine") or {}).get("gpu")
    if not best or not gpu:
        raise ValueError("--results: expected a run whose stage 'tiers' timed a GPU, got none")
    size = part.get("settings", {}).get("dim", common.SIZES["original"][0])
    measured = {**(before.get("measured") or {}), gpu["name"]: {"date": document["date"], "revision": document["revision"]}}
    return {**before, "measured": measured, "by_gpu": {**before.get("by_gpu", {}), gpu["name"]: rules(best, size)}}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, required=True, metavar="FILE", help="run.json of benchmarks/gpu/run.sh")
    parser.add_argument("--install", action="store_true", help="write the table that auto reads, instead of printing it")
    arguments = parser.parse_args()
    try:
        document = json.loads(arguments.results.read_text(encoding="utf-8"))
        found = table(document, json.loads(TABLE.read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    if arguments.install:
        common.write_json(TABLE, found)
        print(f"wrote {TABLE.relative_to(common.ROOT)}")
    else:
        print(json.dumps(found, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
