"""Tokens per second from lists of tokens to NumPy arrays, states carried.

Peers at batch 64 and with one sentence of 25 tokens: AllenNLP's, bilm-tf's and simple_elmo's own code, in this order;
where none is named, our reference path. Ours in three ways: a stream in 64 slots, one batch of 64 at a time, the
sentence. --plain adds our plain backends to the peers. All run the same model by turns in this run, after their numbers
were compared with those of the first peer; a disagreement ends it. `times_as_fast` is the ratio to the first peer,
`ratio_to` has the ratios to several. The slow sides have fewer batches a turn: every turn takes the next batches of the
same text. Every figure stands beside its floor (benchmarks/floor.py), and the machine's rates are also measured between
the turns; a turn is marked as busy where its precision's rate fell a third below the best. --latency measures one
sentence, idle and busy, and the host's time instead (benchmarks/latency.py). A GPU has benchmarks/gpu/text.py.

    python -m benchmarks.bench_embed --model original --allennlp CHECKOUT
    python -m benchmarks.bench_embed --model original --allennlp CHECKOUT --plain reference torch --precisions highest
    python -m benchmarks.bench_embed --model bundled --latency
    python -m benchmarks.bench_embed --bilm-tf CHECKOUT --simple-elmo CHECKOUT --tf-python PYTHON --out FILE
"""

import argparse
import contextlib
import functools
import itertools
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from benchmarks import agreement, common, floor, latency, models, recorded, workloads
from benchmarks.peers import allennlp, tensorflow_elmo

SENTENCE_TOKENS = 25
SENTENCE_SECONDS = 0.5  # of calls in a turn: a single sentence is too short to time
PRECISIONS = tuple(floor.PRECISIONS)
PLAIN = ("reference", "torch")
OF_LARGEST = 1e-5  # largest difference between plain paths, as a share of the largest value


@dataclass(frozen=True)
class Text:
    """Sentences of a workload, the same in batches, and the sentence that runs alone."""

    workload: str
    sentences: list[list[str]]
    groups: list[list[list[str]]]
    alone: list[str]
    source: str

    @classmethod
    def read(cls, workload: str, batches: int, batch_size: int) -> "Text":
        sentences, source = workloads.read(workload, batches * batch_size)
        running = list(itertools.islice(itertools.chain.from_iterable(sentences), SENTENCE_TOKENS))
        alone = next((tokens for tokens in sentences if len(tokens) == SENTENCE_TOKENS), running)
        return cls(workload, sentences, common.batches(sentences, batch_size), alone, source)


@dataclass(frozen=True)
class Setup:
    """What runs: the peer, other slow sides by name, ours by precision (one model), and what cannot with its reason."""

    model: str
    batch_size: int
    peer_name: str
    peer: object
    ours: dict[str, models.Embedder]
    absent: dict[str, str]
    limits: dict[str, float] = field(default_factory=dict)  # of errors by precision
    others: dict[str, object] = field(default_factory=dict)
    device: str = "cpu"

    @property
    def slow(self) -> dict[str, object]:
        """The slow sides, the peer first."""
        return {self.peer_name: self.peer, **self.others}


def set_up(arguments: argparse.Namespace, stack: contextlib.ExitStack) -> Setup:
    device = arguments.device
    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError("--device: expected cpu where torch sees no CUDA device, got cuda")
    absent = {name: why for name, why in models.absent_precisions(device).items() if name in arguments.precisions}
    precisions = [name for name in arguments.precisions if name not in absent]
    if not precisions:
        raise ValueError(f"--precisions: none runs here: {'; '.join(f'{k}: {v}' for k, v in absent.items())}")
    slow, model = {}, arguments.model
    files = models.write_files(Path(stack.enter_context(tempfile.TemporaryDirectory())), model)
    if arguments.allennlp:
        slow["allennlp"] = allennlp.AllenNlp(arguments.allennlp, *files, cuda_device=-1 if device == "cpu" else 0)
    for name in tensorflow_elmo.FILES:
        if checkout := getattr(arguments, name.replace("-", "_")):
            slow[name] = stack.enter_context(tensorflow_elmo.TensorFlowElmo(
                name, arguments.tf_python, checkout, *files, arguments.batch_size))
    for backend in arguments.plain if slow else dict.fromkeys(["reference", *arguments.plain]):
        slow[backend] = models.Embedder(models.build(model, backend=backend, device=device))
    (name, peer), *others = slow.items()
    bilm = models.build(model, backend="auto", device=device)
    ours = {precision: models.Embedder(bilm, precision) for precision in precisions}
    where = "cpu" if device == "cpu" else "cuda model"
    limits = {precision: agreement.limit(precision, where=where) for precision in precisions}
    return Setup(model, arguments.batch_size, name, peer, ours, absent, limits, dict(others), device)


def run_over(embedder, groups) -> list[np.ndarray]:
    """All batches, from zero states."""
    embedder.reset_states()
    return [vectors for group in groups for vectors in embedder.embed_batch(group)]


def stream_over(embedder: models.Embedder, sentences: list, slots: int) -> list[np.ndarray]:
    """All sentences as a stream, from zero states."""
    embedder.reset_states()
    return embedder.embed_sentences(sentences, slots)


# ---- agreement -----------------------------------------------------------------------------


def check(setup: Setup, text: Text, batches: int) -> dict:
    """Errors of ours against the peer, by way and precision; raises where they disagree. Warms everything up."""
    groups = text.groups[:batches]
    in_batches, alone = run_over(setup.peer, groups), run_over(setup.peer, [[text.alone]])
    errors: dict = {}
    for name, embedder in setup.others.items():
        what = f"{name} against {setup.peer_name}"
        sentence = check_slow(what, run_over(embedder, [[text.alone]]), alone)["batches"]
        errors[name] = {**check_slow(what, run_over(embedder, groups), in_batches), "sentence": sentence}
    for precision, embedder in setup.ours.items():
        found = {"batches": agreement.by_layer(run_over(embedder, groups), in_batches)}
        stream = stream_over(embedder, list(itertools.chain.from_iterable(groups)), setup.batch_size)
        found["slots"] = agreement.by_layer(stream, in_batches)
        found["sentence"] = agreement.by_layer(run_over(embedder, [[text.alone]]), alone)
        for way, layers in found.items():
            agreement.require(f"{way} in {precision} against {setup.peer_name}", max(layers), setup.limits[precision])
        errors[precision] = {**found, "limit": setup.limits[precision]}
    return {"against": setup.peer_name, "errors": common.rounded(errors)}


def check_slow(what: str, found: list[np.ndarray], expected: list[np.ndarray]) -> dict:
    """Errors of a slow side beside their limits; raises where one is above."""
    errors = {"batches": agreement.by_layer(found, expected), "limit": agreement.limit("highest"),
              "of_largest": share_of_largest(found, expected), "limit_of_largest": OF_LARGEST}
    agreement.require(what, max(errors["batches"]), errors["limit"])
    if not errors["of_largest"] < OF_LARGEST:  # also true of NaN
        raise ValueError(f"{what}: they disagree by {errors['of_largest']:.1e} of the largest value (limit "
                         f"{OF_LARGEST:.0e})")
    return errors


def share_of_largest(found: list[np.ndarray], expected: list[np.ndarray]) -> float:
    """Largest absolute difference over the largest expected value."""
    worst = max(float(np.abs(ours - theirs).max()) for ours, theirs in zip(found, expected, strict=True))
    return worst / max(float(np.abs(theirs).max()) for theirs in expected)


# ---- timing --------------------------------------------------------------------------------


def count(groups) -> int:
    return sum(len(sentence) for group in groups for sentence in group)


def embedding(side) -> Callable[[list[list[str]]], object]:
    """What embeds a batch, without the way out of another process."""
    return getattr(side, "compute", side.embed_batch)


def peer_turn(peer, text: Text, batches: int):
    """The next batches of the text in every turn, from the states of the last; returns the tokens done."""
    parts, embed = itertools.cycle(common.batches(text.groups, batches)), embedding(peer)

    def turn() -> int:
        part = next(parts)
        for group in part:
            embed(group)
        return count(part)

    return turn


def whole_turn(text: Text, work: Callable, *arguments):
    """`work` over all of the text in every turn."""
    def turn() -> int:
        work(*arguments)
        return count(text.groups)

    return turn


def time_text(setup: Setup, text: Text, rounds: int, peer_batches: int,
              watch: floor.Watch | None = None) -> dict[tuple, common.Timing]:
    """Tokens per second by (way, variant, precision), the peer first."""
    batch, slots = f"one batch of {setup.batch_size}", f"slots of {setup.batch_size}"
    turns = {(batch, name, "highest"): peer_turn(peer, text, peer_batches) for name, peer in setup.slow.items()}
    for precision, embedder in setup.ours.items():
        turns[slots, "ours", precision] = whole_turn(text, stream_over, embedder, text.sentences, setup.batch_size)
        turns[batch, "ours", precision] = whole_turn(text, run_over, embedder, text.groups)
    return {key: common.Timing.of(speeds) for key, speeds in common.alternate(turns, rounds, watch).items()}


def time_sentence(setup: Setup, text: Text, rounds: int,
                  watch: floor.Watch | None = None) -> dict[tuple, common.Timing]:
    """Seconds for one sentence by (way, variant, precision), the peer first."""
    embedders = {("one sentence", name, "highest"): side for name, side in setup.slow.items()}
    embedders |= {("one sentence", "ours", precision): embedder for precision, embedder in setup.ours.items()}
    for side in embedders.values():
        side.reset_states()
    calls = {key: functools.partial(embedding(side), [text.alone]) for key, side in embedders.items()}
    return common.interleave(calls, rounds, SENTENCE_SECONDS, watch)


# ---- floors, the whole run -------------------------------------------------------------------


def floors(setup: Setup, text: Text, threads: int, meter: Callable[[int, int], floor.Rates]) -> tuple[dict, dict]:
    """Floor by (way, precision) and the machine's rates by precision; reasons stand where there are none."""
    options = workloads.options_of(setup.model)
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


def of_slow(setup: Setup, timings: dict[tuple, common.Timing]) -> dict[str, common.Timing]:
    """Timings of the slow sides by name."""
    return {variant: timing for (_, variant, _), timing in timings.items() if variant in setup.slow}


def rows_of(setup: Setup, text: Text, speeds: dict, seconds: dict, floors_found: dict, busy: dict,
            errors: dict) -> list[dict]:
    """A row per case: speed, ratio to the slow sides (a stream's: to batches), floor, share, busy turns, error.

    Timings by case: of the text in tokens per second, of the sentence in seconds.
    """
    cases = [(case, timing, "tokens/s", timing.median,
              {name: other.times_as_fast_as(timing) for name, other in of_slow(setup, speeds).items()})
             for case, timing in speeds.items()]
    cases += [(case, timing, "s", len(text.alone) / timing.median,
               {name: timing.times_as_fast_as(other) for name, other in of_slow(setup, seconds).items()})
              for case, timing in seconds.items()]
    results = []
    for case, timing, unit, speed, ratios in cases:
        (way, variant, precision), found = case, {}
        if variant == "ours":
            found = floors_found.get((way, precision), {})
            found = found and {**found, "share": speed / found["floor_tokens_per_s"]}
        by_way = errors.get(precision if variant == "ours" else variant, {})
        checked = "slots" if way.startswith("slots") else "sentence" if way == "one sentence" else "batches"
        error = by_way.get(checked)
        results.append(common.row(timing, unit, workload=text.workload, model=setup.model, way=way, variant=variant,
                                  precision=precision, tokens_per_s=speed, times_as_fast=ratios[setup.peer_name],
                                  ratio_to=ratios if setup.others else None, **found,
                                  busy_turns=sum(busy[case]) if case in busy else None,
                                  error=error and max(error), limit=by_way.get("limit") if error else None))
    return results


def run(arguments: argparse.Namespace) -> dict:
    """The content of the results file."""
    text = Text.read(arguments.workload, arguments.batches, arguments.batch_size)
    with contextlib.ExitStack() as stack:
        setup = set_up(arguments, stack)
        agreed = check(setup, text, arguments.peer_batches)
        threads = torch.get_num_threads()
        meter = stack.enter_context(floor.Meter())
        floors_found, rates = floors(setup, text, threads, meter)
        kib = floor.kib_per_thread(workloads.options_of(setup.model), "highest", threads)
        watch = floor.Watch(lambda: meter(threads, kib))
        speeds = time_text(setup, text, arguments.rounds, arguments.peer_batches, watch)
        alone = time_sentence(setup, text, arguments.rounds, watch)
    tensorflow = next((side.tensorflow for side in setup.slow.values() if hasattr(side, "tensorflow")), None)
    settings = {"model": setup.model, "states": "carry", "text": text.source,
                **common.text_facts(text.sentences, setup.batch_size), "peer_batches_a_turn": arguments.peer_batches,
                "times_as_fast_as": setup.peer_name, "tensorflow": tensorflow, "absent": setup.absent,
                "agreement": agreed, "rates": rates}
    results = rows_of(setup, text, speeds, alone, floors_found, watch.busy(), agreed["errors"])
    return common.document(f"embed {setup.model}", settings, results)


# ---- command -------------------------------------------------------------------------------


def parse() -> argparse.Namespace:
    parser = common.make_parser(
        __doc__, "embed-MODEL.json, for AVX2 and AMX with -avx2 and -amx",
        ("--batch-size", 64, "sentences in a batch, slots of a stream"),
        ("--batches", 8, "batches of text in a turn of ours"),
        ("--peer-batches", 2, "batches in a turn of the slow sides, and in the comparison"),
        ("--rounds", 5, "turns of each"))
    add = parser.add_argument
    add("--model", choices=workloads.MODELS, default="original", metavar="MODEL",
        help=f"{', '.join(workloads.MODELS)} (default: original)")
    add("--workload", choices=workloads.TEXTS, default="running text", metavar="TEXT",
        help=f"{', '.join(workloads.TEXTS)} (default: running text)")
    add("--precisions", nargs="+", choices=PRECISIONS, default=list(PRECISIONS), metavar="NAME",
        help="of ours (default: all; the file says which this machine lacks)")
    add("--latency", action="store_true", help="of our engine in `highest`, in place of the comparison with peers")
    add("--plain", nargs="+", choices=PLAIN, default=[], metavar="NAME", help="our plain backends too")
    add("--allennlp", metavar="PATH", help="a source checkout of AllenNLP 0.9")
    add("--bilm-tf", metavar="PATH", help="a source checkout of bilm-tf")
    add("--simple-elmo", metavar="PATH", help="a folder with the package simple_elmo")
    add("--tf-python", metavar="PYTHON", default=sys.executable,
        help="a Python with TensorFlow 2 and tf_keras, for --bilm-tf and --simple-elmo")
    parser.set_defaults(device="cpu")
    arguments = parser.parse_args()
    if arguments.peer_batches > arguments.batches:
        parser.error(f"--peer-batches: expected at most --batches ({arguments.batches}), got {arguments.peer_batches}")
    return arguments


def main() -> int:
    arguments = parse()
    if arguments.latency:
        file = f"latency-{arguments.model}.json"
        return common.run_and_write(arguments, latency.run, file, latency.table)
    return common.run_and_write(arguments, run, f"embed-{arguments.model}{recorded.suffix()}.json", common.table)


if __name__ == "__main__":
    sys.exit(main())
