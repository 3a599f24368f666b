"""Accuracy of a precision against `highest`, and the table that `elmo-fast bench --precisions` prints."""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from elmo_fast.arguments import DEFAULT_BATCH_SIZE
from elmo_fast.embed.api import LoadedElmo
from elmo_fast.model.families import SOFTMAX_FILE
from elmo_fast.model.softmax_head import SoftmaxHead
from elmo_fast.model.sources import ModelFiles
from elmo_fast.ops.linear import computes_in
from elmo_fast.ops.precision import PRECISIONS


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
        return {"relative_errors": np.sqrt(self._error / self._size).tolist(), "smallest_cosine": self._cosine}


def runs_as(elmo: LoadedElmo, precision: str) -> str:
    """The precision with the operands that `precision` has on this machine; `precision` itself unless they coincide."""
    weight = next(elmo.bilm.parameters())
    name = computes_in(weight, elmo.bilm.backend, precision)
    if weight.device.type == "cpu":
        return name
    return next(other for other, row in PRECISIONS.items() if row[1:3] == PRECISIONS[name][1:3])  # gpu, bounded


def head_beside(elmo: LoadedElmo, files: ModelFiles) -> SoftmaxHead | None:
    """The softmax beside the weights of a model; None if the file or the vocabulary is missing."""
    softmax_file = Path(files.weight_file).parent / SOFTMAX_FILE
    if files.vocab_file is None or not softmax_file.is_file():
        return None
    return SoftmaxHead.from_files(elmo.bilm, softmax_file, files.vocab_file)


def perplexity(head: SoftmaxHead, sentences: Sequence[Sequence[str]]) -> float:
    """exp of the mean loss of both directions: of each sentence's words and the boundary after the last of them."""
    total, predictions = 0.0, 0
    for first in range(0, len(sentences), DEFAULT_BATCH_SIZE):
        batch = sentences[first : first + DEFAULT_BATCH_SIZE]
        total += sum(score.forward_total + score.backward_total for score in head.score(batch))
        predictions += 2 * sum(len(sentence) + 1 for sentence in batch)
    return math.exp(min(-total / predictions, 700.0))  # exp would overflow


def table(rows: Sequence[dict]) -> Iterator[str]:
    """The rows of a document as lines for a terminal."""
    layers = len(rows[0]["relative_errors"])
    width = max(10 * layers, len("  error by layer"))
    has_softmax = "perplexity" in rows[0]
    yield (f"{'':16}{'tokens/s':>12}{'one sentence':>16}{'error by layer':>{width}}{'cosine':>12}"
           + f"{'perplexity':>14}" * has_softmax)
    for row in rows:
        errors = "".join(f"{error:>10.1e}" for error in row["relative_errors"])
        yield (f"{row['variant']:16}{row['tokens_per_s']:>12,.0f}{row['sentence_ms']:>13.2f} ms{errors:>{width}}"
               f"{row['smallest_cosine']:>12.6f}" + (f"{row['perplexity']:>14.4f}" if has_softmax else ""))
    yield from (f"{row['variant']} runs as {row['runs_as']} here; the figures are those of one measurement"
                for row in rows if row["runs_as"] != row["variant"])
    yield ("error: |difference from highest| / |highest|, Frobenius norms of a layer; cosine: the smallest of a "
           "token's vector with that of highest, in any layer")
    if not has_softmax:
        yield (f"no perplexity: the model has no {SOFTMAX_FILE} and vocabulary beside its weights "
               "(elmo-fast export RUN OUTPUT --softmax writes them)")
