"""Tokens per second from lists of tokens to NumPy arrays on the CPU: running text, states carried.

AllenNLP's own code at batch 64 (without --allennlp: our reference path), and ours in three ways: a stream in 64 slots,
one batch of 64 at a time, one sentence of 25 tokens. All run the same random weights by turns in this process, after
their numbers were compared; a disagreement ends the run. The slow side has fewer batches a turn: every turn takes the
next batches of the same text. Every figure stands beside its floor (benchmarks/floor.py). The machine's rates are also
measured between the turns; a turn is marked as busy where its precision's rate fell a third below the best.

    python -m benchmarks.bench_embed --size original --allennlp CHECKOUT
    python -m benchmarks.bench_embed --table benchmarks/results/cpu/embed-*.json
"""

import argparse
import contextlib
import itertools
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks import agreement, common, embed_results, floor, models, peers
from benchmarks.bench_reference import run_over

SENTENCE_TOKENS = 25
SENTENCE_SECONDS = 0.5  # of calls in a turn: a single sentence is too short to time
PRECISIONS = tuple(floor.PRECISIONS)


@dataclass(frozen=True)
class Text:
    """Sentences of running text, the same in batches, and the sentence that runs alone."""

    sentences: list[list[str]]
    groups: list[list[list[str]]]
    alone: list[str]
    source: str

    @classmethod
    def read(cls, batches: int, batch_size: int) -> "Text":
        sentences, source = common.running_text(batches * batch_size)
        running = list(itertools.chain.from_iterable(sentences))
        alone = next((tokens for tokens in sentences if len(tokens) == SENTENCE_TOKENS), running[:SENTENCE_TOKENS])
        return cls(sentences, common.batches(sentences, batch_size), alone, source)


@dataclass(frozen=True)
class Setup:
    """What runs: the peer by its name, ours by precision (one model), and what cannot run with its reason."""

    size: str
    batch_size: int
    peer_name: str
    peer: object
    ours: dict[str, models.Embedder]
    absent: dict[str, str]


def set_up(arguments: argparse.Namespace) -> Setup:
    absent = {name: why for name, why in models.absent_precisions().items() if name in arguments.precisions}
    precisions = [name for name in arguments.precisions if name not in absent]
    if not precisions:
        raise ValueError(f"--precisions: none runs here: {'; '.join(f'{k}: {v}' for k, v in absent.items())}")
    if arguments.allennlp:
        with tempfile.TemporaryDirectory() as folder:
            peer = peers.AllenNlp(arguments.allennlp, *models.write_files(Path(folder), arguments.size))
    else:
        peer = models.Embedder(models.build(arguments.size, backend="reference"))
    bilm = models.build(arguments.size, backend="auto")
    ours = {precision: models.Embedder(bilm, precision) for precision in precisions}
    name = "allennlp" if arguments.allennlp else "reference"
    return Setup(arguments.size, arguments.batch_size, name, peer, ours, absent)


# ---- agreement -----------------------------------------------------------------------------


def check(setup: Setup, text: Text, batches: int) -> dict:
    """Errors of ours against the peer, by way and precision; raises where they disagree. Warms everything up."""
    groups = text.groups[:batches]
    in_batches, alone = run_over(setup.peer, groups), run_over(setup.peer, [[text.alone]])
    errors: dict = {}
    for precision, embedder in setup.ours.items():
        found = {"batches": agreement.by_layer(run_over(embedder, groups), in_batches)}
        embedder.reset_states()
        stream = embedder.embed_sentences(list(itertools.chain.from_iterable(groups)), setup.batch_size)
        found["slots"] = agreement.by_layer(stream, in_batches)
        found["sentence"] = agreement.by_layer(run_over(embedder, [[text.alone]]), alone)
        for way, layers in found.items():
            agreement.require(f"{way} in {precision} against {setup.peer_name}", max(layers),
                              agreement.limit(precision))
        errors[precision] = {**found, "limit": agreement.limit(precision)}
    return {"against": setup.peer_name, "errors": common.rounded(errors)}


# ---- timing --------------------------------------------------------------------------------


def count(groups) -> int:
    return sum(len(sentence) for group in groups for sentence in group)


def peer_turn(setup: Setup, text: Text, batches: int):
    """The next batches of the text in every turn, from the states of the last; returns the tokens done."""
    parts = itertools.cycle(common.batches(text.groups, batches))

    def turn() -> int:
        part = next(parts)
        for group in part:
            setup.peer.embed_batch(group)
        return count(part)

    return turn


def batches_turn(embedder: models.Embedder, text: Text):
    def turn() -> int:
        run_over(embedder, text.groups)
        return count(text.groups)

    return turn


def slots_turn(embedder: models.Embedder, text: Text, slots: int):
    def turn() -> int:
        embedder.reset_states()
        embedder.embed_sentences(text.sentences, slots)
        return count(text.groups)

    return turn


class Watch:
    """The machine's rates between the turns, and which turns found it busy; without rates, no turn is marked."""

    def __init__(self, measure: Callable[[], floor.Rates]):
        self._measure, self._rates, self._turns = measure, [], {}
        with contextlib.suppress(floor.NoFloor):
            self._rates.append(measure())

    def __call__(self, case: tuple) -> None:
        """End a turn of (way, variant, precision)."""
        if self._rates:
            self._turns.setdefault(case, []).append(len(self._rates))
            self._rates.append(self._measure())

    def busy(self) -> dict[tuple, list[bool]]:
        """By case and turn: whether the rate before or after it was a third below the best of the run."""
        return {case: self._marks(turns, case[2]) for case, turns in self._turns.items()}

    def _marks(self, turns: list[int], precision: str) -> list[bool]:
        speeds = [rates.flops(precision) for rates in self._rates]
        return [min(speeds[turn - 1 : turn + 1]) < 2 / 3 * max(speeds) for turn in turns]


def time_text(setup: Setup, text: Text, rounds: int, peer_batches: int, watch: Watch) -> dict[tuple, common.Timing]:
    """Tokens per second by (way, variant, precision), the peer first."""
    batch, slots = f"one batch of {setup.batch_size}", f"slots of {setup.batch_size}"
    turns = {(batch, setup.peer_name, "highest"): peer_turn(setup, text, peer_batches)}
    for precision, embedder in setup.ours.items():
        turns[slots, "ours", precision] = slots_turn(embedder, text, setup.batch_size)
        turns[batch, "ours", precision] = batches_turn(embedder, text)
    return {key: common.Timing.of(speeds) for key, speeds in common.alternate(turns, rounds, watch).items()}


def time_sentence(setup: Setup, text: Text, rounds: int, watch: Watch) -> dict[tuple, common.Timing]:
    """Seconds for one sentence by (way, variant, precision), the peer first."""
    embedders = {("one sentence", setup.peer_name, "highest"): setup.peer}
    embedders |= {("one sentence", "ours", precision): embedder for precision, embedder in setup.ours.items()}
    for embedder in embedders.values():
        embedder.reset_states()
    calls = {key: lambda embedder=embedder: embedder.embed_batch([text.alone]) for key, embedder in embedders.items()}
    return common.interleave(calls, rounds, SENTENCE_SECONDS, watch)


# ---- floors, the whole run -------------------------------------------------------------------


def floors(setup: Setup, text: Text, threads: int, meter: floor.Meter) -> tuple[dict, dict]:
    """Floor by (way, precision) and the machine's rates by precision; reasons stand where there are none."""
    options = common.standard_options(setup.size)
    work = {f"slots of {setup.batch_size}": floor.work_of_slots(text.sentences, setup.batch_size),
            f"one batch of {setup.batch_size}": floor.work_of_batches(text.groups),
            "one sentence": floor.work_of_slots([text.alone], 1)}
    by_case, by_precision = {}, {}
    for precision in setup.ours:
        try:
            rates = meter(threads, floor.kib_per_thread(options, precision, threads))
            by_precision[precision] = rates.as_dict()
            for way, of_way in work.items():
                by_case[way, precision] = floor_of(options, of_way, rates, precision)
        except floor.NoFloor as problem:
            by_precision.setdefault(precision, {})["no_floor"] = str(problem)
    return by_case, by_precision


def floor_of(options: dict, work: floor.Work, rates: floor.Rates, precision: str) -> dict:
    arithmetic = floor.flop(options, work)
    return {"flop_per_token": arithmetic / work.tokens, "live_rows_per_step": float(work.batch_sizes.mean()),
            "arithmetic_tokens_per_s": rates.flops(precision) * work.tokens / arithmetic,
            "floor_tokens_per_s": work.tokens / floor.seconds(options, work, rates, precision)}


def run(arguments: argparse.Namespace) -> dict:
    """The content of the results file."""
    import torch

    text = Text.read(arguments.batches, arguments.batch_size)
    setup = set_up(arguments)
    agreed = check(setup, text, arguments.peer_batches)
    threads = torch.get_num_threads()
    with floor.Meter() as meter:
        floors_found, rates = floors(setup, text, threads, meter)
        kib = floor.kib_per_thread(common.standard_options(setup.size), "highest", threads)
        watch = Watch(lambda: meter(threads, kib))
        speeds = time_text(setup, text, arguments.rounds, arguments.peer_batches, watch)
        alone = time_sentence(setup, text, arguments.rounds, watch)
    settings = {"size": setup.size, "states": "carry", "text": text.source,
                **common.text_facts(text.sentences, setup.batch_size), "peer_batches_a_turn": arguments.peer_batches,
                "times_as_fast_as": setup.peer_name, "absent": setup.absent, "agreement": agreed, "rates": rates}
    results = embed_results.rows_of(speeds, alone, len(text.alone), floors_found, watch.busy())
    return common.document(f"embed {setup.size}", settings, results)


# ---- command -------------------------------------------------------------------------------


def parse() -> argparse.Namespace:
    parser = common.make_parser(
        __doc__, "embed-SIZE.json", ("--batch-size", 64, "sentences in a batch, slots of a stream"),
        ("--batches", 8, "batches of text in a turn of ours"),
        ("--peer-batches", 2, "batches in a turn of the slow side, and in the comparison"),
        ("--rounds", 5, "turns of each"))
    parser.add_argument("--size", choices=common.SIZES, default="original", help="model size (default: original)")
    parser.add_argument("--allennlp", metavar="PATH", help="a source checkout of AllenNLP 0.9")
    parser.add_argument("--precisions", nargs="+", choices=PRECISIONS, default=list(PRECISIONS), metavar="NAME",
                        help="of ours (default: all; the file says which this machine lacks)")
    parser.add_argument("--table", nargs="+", type=Path, metavar="FILE",
                        help="measure nothing: print a Markdown table of these results")
    arguments = parser.parse_args()
    if arguments.peer_batches > arguments.batches:
        parser.error(f"--peer-batches: expected at most --batches ({arguments.batches}), got {arguments.peer_batches}")
    return arguments


def main() -> int:
    arguments = parse()
    if arguments.table:
        try:
            print(embed_results.table([embed_results.read(file) for file in arguments.table]))
        except (ValueError, OSError) as problem:
            print(f"error: {problem}", file=sys.stderr)
            return 1
        return 0
    return common.run_and_write(arguments, run, f"embed-{arguments.size}.json",
                                lambda content: embed_results.table([content]))


if __name__ == "__main__":
    sys.exit(main())
