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
    """All batches, from zero states."""
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
    """Embedders by name, first the embedder that the others are compared with."""
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


def run(arguments: argparse.Namespace) -> dict:
    """The content of the results file."""
    sentences, source = common.running_text(arguments.batch_size * arguments.batches)
    groups = common.batches(sentences, arguments.batch_size)
    facts = common.text_facts(sentences, arguments.batch_size)
    embedders = load(arguments)
    agreement = check(embedders, groups)
    results = measure(embedders, groups, arguments.rounds, facts["tokens"])
    settings = {"size": arguments.size, "states": "carry", "text": source, **facts, "agreement": agreement}
    return common.document(f"reference {arguments.size}", settings, results)


def report(content: dict) -> str:
    lines = []
    for case in content["results"]:
        lines.append("  ".join(f"{key}={value}" for key, value in case.items() if key != "samples"))
        if case["p80"] > BUSY * case["p20"]:
            lines.append(f"  {case['variant']}: rounds differ by more than {BUSY}; run again on an idle machine")
    return "\n".join(lines)


def main() -> int:
    parser = common.make_parser(__doc__, "reference-SIZE.json", ("--batch-size", 64, "sentences in a batch"),
                                ("--batches", 2, "batches in a pass"), ("--rounds", 5, "timed passes"))
    parser.add_argument("--size", choices=common.SIZES, default="original", help="model size (default: original)")
    parser.add_argument("--allennlp", metavar="PATH", help="a source checkout of AllenNLP 0.9")
    parser.add_argument("--backends", nargs="+", default=["reference"], metavar="NAME",
                        help="backends of ours to time (default: reference)")
    arguments = parser.parse_args()
    return common.run_and_write(arguments, run, f"reference-{arguments.size}.json", report)


if __name__ == "__main__":
    sys.exit(main())
