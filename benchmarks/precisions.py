"""Speed of precisions, and how far their vectors are from those of `highest`, on the CPU.

The precisions run by turns on the same sentences, in 64 slots and in the warm state, and on one sentence of 25 tokens.
Each is first compared with the reference path. Then the vectors of all sentences are compared with those of `highest`:
the relative Frobenius error of each layer, and the smallest cosine of a token's vector in any layer.

    python -m benchmarks.precisions --model original --sentences 100
"""

import argparse
import sys
from collections.abc import Sequence

import numpy as np

from benchmarks import agreement, common, models, workloads
from benchmarks.recorded import markdown
from elmo_fast.bench.timing import generated_sentences
from elmo_fast.embed.api import LoadedElmo
from elmo_fast.engine.backend import native_module
from elmo_fast.engine.precision import PRECISIONS

SLOTS, SENTENCE_TOKENS = 64, 25


class Accuracy:
    """Compares vectors with those of `highest`, sentence after sentence; sums are float64."""

    def __init__(self, layers: int):
        self._error, self._size = np.zeros(layers), np.zeros(layers)  # squares of Frobenius norms
        self._cosine = 1.0

    def add(self, found: Sequence[np.ndarray], expected: Sequence[np.ndarray]) -> None:
        """Add sentences, [layers, T, 2 P] each, T at least 1."""
        for vectors, truth in zip(found, expected):
            vectors, truth = vectors.astype(np.float64), truth.astype(np.float64)
            self._error += ((vectors - truth) ** 2).sum((1, 2))
            self._size += (truth**2).sum((1, 2))
            norms = np.linalg.norm(vectors, axis=2) * np.linalg.norm(truth, axis=2)
            self._cosine = min(self._cosine, float(((vectors * truth).sum(2) / norms).min()))

    def figures(self) -> dict:
        """The relative Frobenius error of each layer, and the smallest cosine of a token's vector in any layer."""
        errors = np.sqrt(self._error / self._size).tolist()
        cosine = float(f"{self._cosine:.9g}")  # the sixth digit matters
        return {"relative_errors": common.rounded(errors), "smallest_cosine": cosine}


def embed(elmo: LoadedElmo, precision: str, sentences: list[list[str]]) -> list[np.ndarray]:
    """Vectors of all layers, [layers, T, 2 P] by sentence."""
    elmo.bilm.precision = precision
    return list(elmo.vectors(sentences, SLOTS))


def check(elmo: LoadedElmo, model: str, precisions: list[str], sentences: list[list[str]]) -> dict[str, float]:
    """The largest error of a layer against the reference path; raises `ValueError` beyond the precision's limit."""
    reference = embed(LoadedElmo(models.build(model, state="warm")), "highest", sentences)
    errors = {}
    for precision in precisions:
        errors[precision] = max(agreement.by_layer(embed(elmo, precision, sentences), reference))
        agreement.require(f"{precision} against reference", errors[precision], agreement.limit(precision))
    return errors


def measure(elmo: LoadedElmo, precisions: list[str], sentences: list[list[str]], rounds: int) -> dict[str, dict]:
    """Tokens per second of the sentences and milliseconds of one sentence by precision, by turns, after a turn each."""
    sentence = next(tokens for tokens in generated_sentences(8192) if len(tokens) == SENTENCE_TOKENS)
    turns = {}
    for precision in precisions:
        turns[precision, "text"] = lambda precision=precision: common.seconds_per_call(
            lambda: embed(elmo, precision, sentences), 1)
        turns[precision, "sentence"] = lambda precision=precision: min(
            common.seconds_per_call(lambda: embed(elmo, precision, [sentence]), 1) for _ in range(5))
    for turn in turns.values():
        turn()
    samples = common.take_turns(turns, rounds)
    tokens, found = sum(map(len, sentences)), {}
    for precision in precisions:
        slow, seconds, fast = np.percentile(samples[precision, "text"], [75, 50, 25]).tolist()
        found[precision] = {
            "tokens_per_s": tokens / seconds, "quartiles": [tokens / slow, tokens / fast],
            "sentence_ms": 1e3 * float(np.median(samples[precision, "sentence"]))}
    return found


def compare(elmo: LoadedElmo, precisions: list[str], sentences: list[list[str]]) -> dict[str, dict]:
    """The figures of `Accuracy` by precision."""
    found = {precision: Accuracy(elmo.bilm.num_layers) for precision in precisions}
    for some in workloads.batches(sentences, 4 * SLOTS):  # bounds the vectors in memory
        truth = embed(elmo, "highest", some)
        for precision, accuracy in found.items():
            accuracy.add(embed(elmo, precision, some), truth)
    return {precision: accuracy.figures() for precision, accuracy in found.items()}


def run(arguments: argparse.Namespace) -> dict:
    """The content of the results file."""
    absent = models.absent_precisions()
    precisions = [precision for precision in PRECISIONS if precision not in absent]
    sentences, source = workloads.running_text(arguments.sentences)
    elmo = LoadedElmo(models.build(arguments.model, backend="auto", state="warm"))
    errors = check(elmo, arguments.model, precisions, generated_sentences(8))
    speeds = measure(elmo, precisions, sentences, arguments.rounds)
    accuracy = compare(elmo, precisions, sentences)
    settings = {"model": arguments.model, "precisions": precisions, "absent": absent, "state": "warm", "slots": SLOTS,
                "text": source, **workloads.text_facts(sentences, SLOTS), "sentence_tokens": SENTENCE_TOKENS,
                "rounds": arguments.rounds}
    return common.document(f"precisions {arguments.model}", settings, [
        {"variant": precision, **common.rounded({**speeds[precision], "error": errors[precision]}),
         **accuracy[precision]} for precision in precisions])


def table(content: dict) -> str:
    """Rows as Markdown."""
    return markdown(["precision", "tokens/s", "one sentence, ms", "relative error by layer", "smallest cosine"], [
        [row["variant"], f"{row['tokens_per_s']:,.0f}", f"{row['sentence_ms']:.2f}",
         ", ".join(f"{error:.1e}" for error in row["relative_errors"]), f"{row['smallest_cosine']:.6f}"]
        for row in content["results"]])


def main() -> int:
    parser = common.make_parser(__doc__, "precisions-MODEL-LEVEL.json", ("--sentences", 512, "sentences of a turn"),
                                ("--rounds", 5, "turns of each"))
    parser.add_argument("--model", choices=workloads.MODELS, default="original", metavar="MODEL",
                        help=f"{', '.join(workloads.MODELS)} (default: original)")
    arguments = parser.parse_args()
    module = native_module()[0]
    level = module.cpu_isa() if module else "torch"
    return common.run_and_write(arguments, run, f"precisions-{arguments.model}-{level}.json", table)


if __name__ == "__main__":
    sys.exit(main())
