"""Tokens per second of the reference path on the CPU, beside AllenNLP's own code where a checkout is given.

Running text in batches, states carried from batch to batch, from lists of tokens to NumPy arrays. With
--allennlp the two run the same random weights by turns in this process, after their numbers were compared:
a difference above 1e-5 of the largest value ends the run.

    python -m benchmarks.bench_reference --size original --allennlp CHECKOUT
"""

import argparse
import sys
import tempfile
from pathlib import Path

import numpy as np

from benchmarks import common, models, peers

AGREEMENT = 1e-5  # of the largest value
BUSY = 1.3  # 80th over 20th percentile


def run_over(embedder, groups) -> list[np.ndarray]:
    """All batches from fresh states."""
    embedder.reset_states()
    return [vectors for group in groups for vectors in embedder.embed_batch(group)]


def disagreement(found: list[np.ndarray], expected: list[np.ndarray]) -> tuple[float, float]:
    """Largest absolute difference, and the same divided by the largest expected value."""
    worst = max(float(np.abs(ours - theirs).max()) for ours, theirs in zip(found, expected, strict=True))
    return worst, worst / max(float(np.abs(theirs).max()) for theirs in expected)


def check(embedders: dict, groups) -> dict[str, dict]:
    """Every embedder against the first; raises where they disagree."""
    names = list(embedders)
    expected = run_over(embedders[names[0]], groups)
    result = {}
    for name in names[1:]:
        absolute, relative = disagreement(run_over(embedders[name], groups), expected)
        print(f"{name} against {names[0]}: largest absolute error {absolute:.2e}, {relative:.1e} of the largest value")
        if not relative < AGREEMENT:  # also true of NaN
            raise ValueError(f"{name} and {names[0]} disagree by {relative:.1e} (limit {AGREEMENT:.0e})")
        result[name] = {"against": names[0], "absolute": absolute, "relative": relative}
    return common.rounded(result)


def load(arguments: argparse.Namespace) -> dict:
    """Embedders by name, the one that the others are compared with first."""
    embedders = {}
    if arguments.allennlp:
        with tempfile.TemporaryDirectory() as folder:
            files = models.write_files(Path(folder), arguments.size)
            embedders["allennlp"] = peers.AllenNlp(arguments.allennlp, *files)
    for backend in arguments.backends:
        embedders[backend] = models.Embedder(models.build(arguments.size, backend=backend))
    return embedders


def measure(embedders: dict, groups, rounds: int, tokens: int) -> list[dict]:
    functions = {name: lambda embedder=embedder: run_over(embedder, groups) for name, embedder in embedders.items()}
    timings = common.interleave(functions, rounds)
    first = next(iter(timings))
    return [common.rounded({"variant": name, **timing.as_dict(samples=True), "tokens_per_s": tokens / timing.median,
                            f"times_as_fast_as_{first}": timing.times_as_fast_as(timings[first])})
            for name, timing in timings.items()]


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=common.SIZES, default="original", help="model size (default: original)")
    parser.add_argument("--allennlp", metavar="PATH", help="a source checkout of AllenNLP 0.9")
    parser.add_argument("--backends", nargs="+", default=["reference"], metavar="NAME",
                        help="backends of ours to time (default: reference)")
    parser.add_argument("--batch-size", type=int, default=64, metavar="N", help="sentences in a batch (default: 64)")
    parser.add_argument("--batches", type=int, default=2, metavar="N", help="batches in one pass (default: 2)")
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="timed passes of each (default: 5)")
    parser.add_argument("--threads", type=int, metavar="N", help="PyTorch's threads (default: PyTorch's choice)")
    parser.add_argument("--out", type=Path, metavar="FILE",
                        help="JSON to write (default: benchmarks/results/cpu/reference-SIZE.json)")
    arguments = parser.parse_args()
    for name in ("batch_size", "batches", "rounds", "threads"):
        value = getattr(arguments, name)
        if value is not None and value < 1:
            parser.error(f"--{name.replace('_', '-')}: expected at least 1, got {value}")
    return arguments


def main() -> int:
    import torch

    arguments = parse()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    try:
        sentences, source = common.running_text(arguments.batch_size * arguments.batches)
        groups = common.batches(sentences, arguments.batch_size)
        facts = common.text_facts(sentences, arguments.batch_size)
        embedders = load(arguments)
        agreement = check(embedders, groups)
        results = measure(embedders, groups, arguments.rounds, facts["tokens"])
    except (ValueError, RuntimeError) as problem:
        print(f"error: {problem}", file=sys.stderr)
        return 1
    settings = {"size": arguments.size, "states": "carry", "text": source, **facts, "agreement": agreement}
    out = arguments.out or common.RESULTS / "cpu" / f"reference-{arguments.size}.json"
    common.write_json(out, common.document(f"reference {arguments.size}", settings, results))
    for case in results:
        print("  ".join(f"{key}={value}" for key, value in case.items() if key != "samples"))
        if case["p80"] > BUSY * case["p20"]:
            print(f"  {case['variant']}: its rounds differ by more than {BUSY}; run again when the machine is idle")
    print(f"written: {out.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
