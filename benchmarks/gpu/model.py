"""Stages `encoder` and `text`: the char encoder, and whole models on running text; their numbers are compared first.

In `text`, `device` is the model from ids on the GPU; `arrays` goes from lists of tokens to NumPy arrays, 64 sentences
at a time, states carried; `stream` is the same in 64 slots. Ratios are to AllenNLP's own code with --allennlp, else to
the reference.
"""

import functools
import tempfile
from pathlib import Path

import torch

from benchmarks import agreement, common, floor, models, peers
from benchmarks.gpu.lstm import LIMITS
from benchmarks.gpu.run import Stage
from elmo_fast.ops.precision import numerics

TEXT_LIMITS = {**LIMITS, "medium": "medium-bf16"}  # a model whose operands are not bounded takes bf16
TOKENS, CHECKED = 65_536, 384
BATCH, SENTENCES, ROUNDS = 64, 512, 5


def encoder(stage: Stage) -> None:
    """The text's unique tokens, over and over; FLOP are those of real characters."""
    size = "tiny" if stage.dry_run else "original"
    source = models.build(size).token_source
    tokens = sorted({token for sentence in common.running_text(64 if stage.dry_run else 2000)[0] for token in sentence})
    ids = source.token_ids(tokens)
    with torch.no_grad():
        exact = source.double()(ids[:CHECKED], "reference").numpy()
    source, ids = source.float().to(stage.device), ids.to(stage.device)
    ids = ids.repeat(1 if stage.dry_run else TOKENS // len(ids) + 1, 1)
    flop = floor.encoder_flop(common.standard_options(size), floor.characters_of(tokens)) / len(tokens)

    def measured(backend: str, precision: str) -> dict:
        def call():
            with torch.no_grad(), numerics(precision, ids.device):
                return source(ids, backend)

        error = agreement.relative_error([call()[: len(exact)].cpu().numpy()], [exact])
        limit = agreement.TABLE[(TEXT_LIMITS if backend == "torch" else LIMITS)[precision]]
        found = {"error": error, "limit": limit, "passed": error <= limit}
        if not found["passed"]:
            return found
        timing = stage.measure(call, 1.0)
        return {**found, **timing.as_dict(), "tokens_per_s": len(ids) / timing.median,
                "tflop_per_s": len(ids) * flop / timing.median / 1e12}

    for precision in LIMITS:
        for backend in ("native", "torch"):
            stage.attempt(lambda: measured(backend, precision), backend=backend, precision=precision, tokens=len(ids))


def passes(stage: Stage, sentences: list, batch: int, folder: Path) -> dict:
    """Functions that run all of the text, by (variant, precision, part); the yardstick first."""
    groups, size = common.batches(sentences, batch), "tiny" if stage.dry_run else "original"

    def arrays(embedder):
        embedder.reset_states()
        return [array for group in groups for array in embedder.embed_batch(group)]

    def stream(embedder):
        embedder.reset_states()
        return embedder.embed_sentences(sentences, batch)

    def device(embedder):
        embedder.reset_states()
        ours.precision = embedder.precision
        with torch.no_grad():
            for group in ids:
                ours(group)
        if stage.device == "cuda":
            torch.cuda.synchronize()

    yardsticks = {"reference": models.Embedder(models.build(size).to(stage.device))}
    if stage.allennlp:
        peer = peers.AllenNlp(stage.allennlp, *models.write_files(folder, size), cuda_device=-stage.dry_run)
        yardsticks = {"allennlp": peer, **yardsticks}
    ours = models.build(size, backend="auto").to(stage.device)
    ids = [models.device_ids(group, stage.device) for group in groups]
    return {(name, "highest", "arrays"): functools.partial(arrays, of) for name, of in yardsticks.items()} | {
        ("ours", precision, part.__name__): functools.partial(part, models.Embedder(ours, precision))
        for precision in TEXT_LIMITS for part in (arrays, stream, device)}


def text(stage: Stage) -> None:
    count, batch = (8, 4) if stage.dry_run else (SENTENCES, BATCH)
    sentences, source = common.running_text(count)
    facts = {"text": source, **common.text_facts(sentences, batch)}
    with tempfile.TemporaryDirectory() as folder:
        functions = passes(stage, sentences, batch, Path(folder))
        truth, base = functions["reference", "highest", "arrays"](), next(iter(functions))
        stage.save(settings=facts, times_as_fast_as=base[0])
        wrong = set()  # of these nothing is timed
        for (variant, precision, part), function in functions.items():
            if part != "device" and variant != "reference":
                error = max(agreement.by_layer(function(), truth))
                limit = agreement.TABLE[TEXT_LIMITS[precision]] + agreement.TABLE["highest"]
                found = stage.add(variant=variant, precision=precision, part=part, error=error, limit=limit,
                                  passed=error <= limit)
                wrong |= set() if found["passed"] else {(variant, precision)}
        functions = {key: function for key, function in functions.items() if key == base or key[:2] not in wrong}
        once = sum(common.seconds_per_call(function, 1) for function in functions.values())
        timings = common.interleave(functions, int(max(1, min(ROUNDS, 0.8 * stage.left() / once - 1))))
    for (variant, precision, part), timing in timings.items():
        stage.add(variant=variant, precision=precision, part=part, **timing.as_dict(samples=True),
                  tokens_per_s=facts["tokens"] / timing.median, times_as_fast=timing.times_as_fast_as(timings[base]))
