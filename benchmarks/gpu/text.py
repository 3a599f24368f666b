"""Stage `text`: running text, 64 sentences at a time, states carried from batch to batch.

`device` is the model from character ids already on the device; `arrays` goes from lists of tokens to NumPy
arrays on the host, as a user calls it, batch by batch; `lanes` is the same text as a stream. With --allennlp,
AllenNLP's own code runs the same batches by turns.
"""

import sys
import tempfile
from pathlib import Path

import torch

from benchmarks import common, models, peers
from benchmarks.gpu import clock, grid
from benchmarks.gpu import stage as stages

PRECISIONS = ("highest", "high", "medium")
BATCH, SENTENCES = 64, 1024
DRY_BATCH, DRY_SENTENCES = 4, 12
ROUNDS = 5
ENOUGH = 0.8  # of the time that is left when timing starts


def device_pass(bilm, groups, device: str, precision: str):
    ids = [models.device_ids(group, device) for group in groups]

    def run():
        bilm.precision = precision
        bilm.reset_states()
        with torch.no_grad():
            for each in ids:
                bilm(each)
        clock.synchronize(device)

    return run


def arrays_pass(embedder, groups):
    """`embedder`: `models.Embedder` or `peers.AllenNlp`."""

    def run():
        embedder.reset_states()
        for group in groups:
            embedder.embed_batch(group)

    return run


def lanes_pass(embedder, sentences, batch: int):
    def run():
        embedder.reset_states()
        embedder.embed_sentences(sentences, batch)

    return run


def passes(stage: stages.Stage, groups, allennlp: str | None, folder: Path) -> dict:
    """One pass over all batches, by name."""
    size, result = grid.size(stage), {}
    for backend in models.backends(stage.device):
        bilm = models.build(size, backend=backend).to(stage.device)
        sentences = [sentence for group in groups for sentence in group]
        fast = backend not in ("reference", "torch")
        for precision in PRECISIONS if fast else PRECISIONS[:1]:
            embedder = models.Embedder(bilm, precision)
            result[f"{backend} {precision} device"] = device_pass(bilm, groups, stage.device, precision)
            result[f"{backend} {precision} arrays"] = arrays_pass(embedder, groups)
            if fast:
                result[f"{backend} {precision} lanes"] = lanes_pass(embedder, sentences, len(groups[0]))
    if allennlp:
        files = models.write_files(folder, size)
        peer = peers.AllenNlp(allennlp, *files, cuda_device=0 if stage.device == "cuda" else -1)
        result["allennlp highest arrays"] = arrays_pass(peer, groups)
    return result


def rounds_that_fit(stage: stages.Stage, functions: dict) -> int:
    """As many as the time allows, judged by one pass of each."""
    once = sum(clock.seconds_of(function, stage.device) for function in functions.values())
    return int(max(1, min(ROUNDS, ENOUGH * stage.left() / once - 1)))


def work(stage: stages.Stage, allennlp: str | None) -> None:
    count, batch = (DRY_SENTENCES, DRY_BATCH) if stage.dry_run else (SENTENCES, BATCH)
    sentences, source = common.running_text(count)
    groups = common.batches(sentences, batch)
    facts = {"text": source, **common.text_facts(sentences, batch)}
    stage.document["settings"].update(facts)
    with tempfile.TemporaryDirectory() as folder:
        functions = passes(stage, groups, allennlp, Path(folder))
        rounds = rounds_that_fit(stage, functions)
        timings = common.interleave(functions, rounds)
    base = timings.get("allennlp highest arrays", timings["reference highest arrays"])
    for name, timing in timings.items():
        variant, precision, part = name.split()
        stage.add(variant=variant, precision=precision, part=part, **timing.as_dict(samples=True),
                  tokens_per_s=facts["tokens"] / timing.median, times_as_fast=timing.times_as_fast_as(base))
    stage.document["settings"]["times_as_fast_as"] = "allennlp arrays" if allennlp else "reference arrays"


def main() -> int:
    parser = stages.parser(__doc__)
    parser.add_argument("--allennlp", metavar="PATH", help="a source checkout of AllenNLP 0.9")
    arguments = parser.parse_args()
    return stages.run("text", lambda stage: work(stage, arguments.allennlp), arguments)


if __name__ == "__main__":
    sys.exit(main())
