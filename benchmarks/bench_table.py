"""What token tables save on the CPU: three lines, timed by turns in this process.

text       running text in 64 slots and in batches of 64, states carried, beside our own path without a table, `highest`
proteins   25 letters, sequences of 500 residues, 15,000 residues a batch, beside our reference path
building   a table of unique words, words per second, beside the reference char encoder

The last two run in every precision of `--precisions` that the machine has; the reference side is fp32 always.

Numbers are compared before anything is timed; a disagreement ends the run. Every ratio is the median of the ratios of
the rounds. The slow side of `proteins` and `building` has less to do a turn; the unit is tokens or words per second.

    python -m benchmarks.bench_table                          # the three lines, into results/cpu/token-table.json
    python -m benchmarks.bench_table --lines text --text-models small
"""

import argparse
import itertools
import sys
from collections.abc import Callable

import numpy as np

from benchmarks import agreement, common, models
from benchmarks.bench_embed import PRECISIONS, run_over, stream_over, whole_turn
from benchmarks.workloads import LETTERS, MODELS, proteins

LINES = ("text", "proteins", "building")
SAME = 1e-6  # of a table's path and the path without: the largest absolute difference


class Group:
    """Sentences in batches: what the turns of bench_embed run."""

    def __init__(self, sentences: list[list[str]], batch_size: int):
        self.sentences, self.groups = sentences, common.batches(sentences, batch_size)


def with_table(model: str, words, seed: int = 0) -> models.Embedder:
    """A model that takes its token vectors from a table of the words."""
    from elmo_fast import build_token_table

    bilm = models.build(model, backend="auto", seed=seed)
    bilm.token_table = build_token_table(bilm, sorted(words))
    return models.Embedder(bilm)


def precisions(arguments: argparse.Namespace) -> list[str]:
    """Those asked for that this machine has."""
    absent = models.absent_precisions()
    return [precision for precision in arguments.precisions if precision not in absent]


def rows(workload: str, model: str, speeds: dict[tuple, list[float]], first: tuple, unit: str, errors: dict,
         limit: Callable[[str], float]) -> list[dict]:
    """A row per case, speeds by (way, variant, precision); ratios to the case `first`, or to its variant in the way.

    `errors` of a table's vectors are by precision.
    """
    results = []
    for (way, variant, precision), samples in speeds.items():
        beside = common.Timing.of(speeds.get((way, *first[1:]), speeds[first]))
        timing = common.Timing.of(samples)
        error = errors.get(precision) if variant == "with a table" else None
        results.append(common.row(timing, unit, workload=workload, model=model, way=way, variant=variant,
                                  precision=precision, samples=True, times_as_fast=beside.times_as_fast_as(timing),
                                  error=error, limit=None if error is None else limit(precision)))
    return results


# ---- text ----------------------------------------------------------------------------------


def text_line(model: str, arguments: argparse.Namespace) -> tuple[list[dict], dict]:
    sentences, source = common.running_text(arguments.batches * arguments.batch_size)
    text = Group(sentences, arguments.batch_size)
    plain = models.Embedder(models.build(model, backend="auto"))
    table = with_table(model, set(itertools.chain.from_iterable(sentences)))
    head = text.groups[:2]
    worst = largest_difference(run_over(table, head), run_over(plain, head))
    require_same(f"text in {model}", worst)
    slots, batch = f"slots of {arguments.batch_size}", f"one batch of {arguments.batch_size}"
    turns = {}
    for variant, embedder in (("without a table", plain), ("with a table", table)):
        turns[slots, variant, "highest"] = whole_turn(text, stream_over, embedder, text.sentences,
                                                      arguments.batch_size)
        turns[batch, variant, "highest"] = whole_turn(text, run_over, embedder, text.groups)
    speeds = warmed(turns, arguments.rounds)
    facts = {"text": source, **common.text_facts(sentences, arguments.batch_size), "largest_difference": worst}
    return rows("running text", model, speeds, (batch, "without a table", "highest"), "tokens/s", {"highest": worst},
                lambda precision: SAME), facts


# ---- proteins ------------------------------------------------------------------------------


def proteins_line(model: str, arguments: argparse.Namespace) -> tuple[list[dict], dict]:
    residues = arguments.residues
    batch = max(1, arguments.batch_residues // residues)
    text = Group(proteins(batch * arguments.protein_batches, residues)[0], batch)
    slow = Group(text.sentences[:batch], batch)
    reference = models.Embedder(models.build(model, backend="reference"))
    table = with_table(model, LETTERS)
    few = [[sentence[:40] for sentence in slow.sentences[:3]]]
    way, errors = f"batches of {arguments.batch_residues:,} residues", {}
    first = way, "reference", "highest"
    turns = {first: whole_turn(slow, run_over, reference, slow.groups)}
    for precision in precisions(arguments):
        ours = models.Embedder(table.bilm, precision)
        errors[precision] = agreement.by_layer(run_over(ours, few), run_over(reference, few))
        agreement.require(f"proteins in {model} in {precision} against reference", max(errors[precision]),
                          agreement.limit(precision))
        turns |= {(way, "with a table", precision): whole_turn(text, run_over, ours, text.groups),
                  (f"slots of {batch}", "with a table", precision): whole_turn(text, stream_over, ours, text.sentences,
                                                                               batch)}
    speeds = warmed(turns, arguments.rounds, leave_out=first)
    facts = {"letters": len(LETTERS), "residues": residues, "sequences_a_batch": batch,
             "errors": common.rounded(errors)}
    largest = {precision: max(of_layers) for precision, of_layers in errors.items()}
    return rows("proteins", model, speeds, first, "tokens/s", largest, agreement.limit), facts


# ---- building ------------------------------------------------------------------------------


def unique_words(wanted: int) -> tuple[list[str], str]:
    """Unique words of running English, of the training corpus, else made up; and their source."""
    folder = common.shared_folder() / "corpus" / "train"
    words: dict[str, None] = {}
    for path in sorted(folder.glob("*.txt")) if folder.is_dir() else []:
        words.update(dict.fromkeys(path.read_text(encoding="utf-8").split()))
        if len(words) >= wanted:
            return list(words)[:wanted], "corpus"
    source = f"corpus ({len(words)}) and compounds of its words" if words else "generated (Zipf)"
    known = list(words) or sorted({word for sentence in common.generated_sentences(2000) for word in sentence})
    for first, second in itertools.product(known, known):  # as hyphenated compounds are
        if len(words) >= wanted:
            break
        words[f"{first}-{second}"] = None
    return list(words)[:wanted], source


def building_line(model: str, arguments: argparse.Namespace) -> tuple[list[dict], dict]:
    import torch

    from elmo_fast import build_token_table
    from elmo_fast.ops.numerics import numerics

    words, source = unique_words(arguments.words)
    bilm = models.build(model, backend="auto")
    encoder = bilm.token_source
    some = words[:: max(1, len(words) // arguments.reference_words)][: arguments.reference_words]
    ids = encoder.token_ids(some)

    def reference() -> int:
        with torch.no_grad(), numerics("highest", ids.device):
            for piece in ids.split(arguments.reference_batch):
                encoder.encode_rows(piece, "reference")
        return len(ids)

    def build(precision: str, chosen: list[str]):
        bilm.precision = precision
        return build_token_table(bilm, chosen)

    def ours(precision: str):
        def turn() -> int:
            build(precision, words)
            return len(words)

        return turn

    with torch.no_grad():
        expected = encoder.encode_rows(ids[:256], "reference").numpy()
    turns, errors = {("vectors", "reference", "highest"): reference}, {}
    for precision in precisions(arguments):
        found = build(precision, some[:256]).vectors(np.arange(len(expected)))
        errors[precision] = agreement.relative_error([found], [expected])
        agreement.require(f"building in {model} in {precision} against reference", errors[precision],
                          agreement.limit(precision))
        turns["vectors", "with a table", precision] = ours(precision)
    speeds = common.alternate(turns, arguments.rounds)
    lengths = [len(word.encode()) for word in words]
    facts = {"words": len(words), "from": source, "bytes_a_word": round(float(np.mean(lengths)), 2),
             "reference_words_a_turn": len(some), "reference_batch": arguments.reference_batch, "errors": errors}
    return rows("building", model, speeds, ("vectors", "reference", "highest"), "words/s", errors,
                agreement.limit), common.rounded(facts)


# ---- all lines -----------------------------------------------------------------------------


def largest_difference(found, expected) -> float:
    return max(float(np.abs(ours - theirs).max()) for ours, theirs in zip(found, expected, strict=True) if ours.size)


def require_same(what: str, difference: float) -> None:
    if not difference <= SAME:
        raise ValueError(f"{what}: largest difference from the path without a table {difference:.1e} "
                         f"(limit {SAME:.0e})")


def warmed(turns: dict, rounds: int, leave_out: tuple | None = None) -> dict[tuple, list[float]]:
    """Speeds of every turn after a warm-up; `leave_out` takes minutes and was warmed up by the comparison."""
    for key, turn in turns.items():
        if key != leave_out:
            turn()
    return common.alternate(turns, rounds)


def run(arguments: argparse.Namespace) -> dict:
    """The content of the results file."""
    results, facts = [], {}
    plan = [(text_line, model) for model in arguments.text_models if "text" in arguments.lines]
    plan += [(proteins_line, arguments.model)] if "proteins" in arguments.lines else []
    plan += [(building_line, arguments.model)] if "building" in arguments.lines else []
    for line, model in plan:
        found, known = line(model, arguments)
        results += found
        facts[f"{found[0]['workload']} {model}"] = known
    settings = {"states": "carry", "absent": models.absent_precisions(), "lines": facts}
    return common.document("token table", settings, results)


def main() -> int:
    parser = common.make_parser(
        __doc__, "token-table.json", ("--batch-size", 64, "sentences in a batch, slots of a stream"),
        ("--batches", 8, "batches of text in a turn"), ("--residues", 500, "residues in a sequence"),
        ("--batch-residues", 15_000, "residues in a batch of sequences"),
        ("--protein-batches", 2, "batches of sequences in a turn of ours; the reference has one"),
        ("--words", 100_000, "unique words of the table that is built"),
        ("--reference-words", 2048, "words in a turn of the reference char encoder"),
        ("--reference-batch", 1024, "words that the reference char encoder takes at a time"),
        ("--rounds", 3, "turns of each"))
    parser.add_argument("--lines", nargs="+", choices=LINES, default=list(LINES), metavar="LINE", help="(default: all)")
    parser.add_argument("--model", choices=MODELS, default="original", help="of proteins and building "
                        "(default: original)")
    parser.add_argument("--text-models", nargs="+", choices=MODELS, default=["small", "original"], metavar="MODEL",
                        help="of text (default: small original)")
    parser.add_argument("--precisions", nargs="+", choices=PRECISIONS, default=list(PRECISIONS), metavar="NAME",
                        help="of proteins and building (default: all; the file says which this machine lacks)")
    return common.run_and_write(parser.parse_args(), run, "token-table.json", common.table)


if __name__ == "__main__":
    sys.exit(main())
