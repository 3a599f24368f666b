"""`elmo-fast bench`: speed, latency and memory of a model on this machine, after a check of its numbers."""

import contextlib
import functools
import importlib.util
import itertools
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from elmo_fast.bench.machine import machine
from elmo_fast.bench.timing import generated_sentences, rounded, take_turns
from elmo_fast.embed.embedder import Embedder
from elmo_fast.embed.opening import default_device, embedder_of, read_files
from elmo_fast.embed.progress import progress_bar
from elmo_fast.engine.native import NativeModel, threads
from elmo_fast.engine.precision import PRECISIONS
from elmo_fast.environment import peak_memory, version
from elmo_fast.files.atomic import atomic_path, check_target, write_part
from elmo_fast.ops import trial
from elmo_fast.ops.backend import OPS, resolve
from elmo_fast.text.readers import open_texts
from elmo_fast.weights.opening import ModelOptions
from elmo_fast.weights.sources import find_model, name_of

SLOTS, SENTENCE_TOKENS, ROUNDS = 64, 25, 5
_MOST_SENTENCES = 8192


@trial.waiting()
def bench(model: str | os.PathLike = "bundled", device: str | None = None, precision: str = "highest",
          seconds: float = 30.0, text_file: str | os.PathLike | None = None, *, progress: bool = False,
          **reading) -> dict:
    """Measure a model for about `seconds`: a document with the machine, the settings and one row per variant.

    The variants are the engine, plain torch where it is installed, and without both NumPy. A variant is first compared
    with the reference, which NumPy computes; `RuntimeError` if the difference exceeds the precision's
    `model_tolerance`. The text is generated unless a file is given, which is read with the arguments `reading` of
    `open_texts`; 64 sentences run at a time, in the warm state.
    Variants are timed by turns in five rounds. `progress` shows a bar if stderr is a terminal.
    """
    text, files, device = _read(text_file, reading), find_model(model), device or default_device()
    options, weights = read_files(files, ModelOptions())
    opened = functools.partial(embedder_of, options, weights)
    first = opened(ModelOptions("warm", precision), device)
    backends = _backends(first)
    variants = {"engine": first} if "native" in backends.values() else {}
    if importlib.util.find_spec("torch"):
        variants["torch"] = opened(ModelOptions("warm", precision, "torch"), device)
    variants = variants or {"reference": first}
    reference = opened(ModelOptions("warm", backend="reference"), "cpu")
    limit = PRECISIONS[precision].model_tolerance
    errors = _check(reference, variants, limit)
    sentences = _fitting(variants, text, seconds)
    rows = [{**row, "error": errors[row["variant"]]} for row in _time(variants, sentences, progress)]
    settings = {
        "model": name_of(model), "precision": precision, "computes_in": first.model.computes_in,
        "device": str(first.model.device), "state": "warm", "slots": SLOTS, "threads": threads(),
        "text": "generated (Zipf)" if text_file is None else Path(text_file).name, "sentences": len(sentences),
        "tokens": sum(map(len, sentences)), "sentence_tokens": SENTENCE_TOKENS, "rounds": ROUNDS,
        "parameters": sum(values.size for values in weights.values()), "backends": backends,
        "memory_mib": _memory(), "limit": limit}
    return {"schema": 1, "name": "bench", "date": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "version": version("elmo-fast"), "machine": machine(), "settings": settings, "results": rounded(rows)}


def _backends(embedder: Embedder) -> dict[str, str]:
    """The backend of every op of a model that was opened with the backend `auto`."""
    if str(embedder.model.device) != "cpu":
        weight = embedder.model.encode_tensors(["a"])
        return {op: resolve(op, "auto", weight) for op in OPS}
    return dict.fromkeys(OPS, "native" if isinstance(embedder.model, NativeModel) else "reference")


def _read(text_file: str | os.PathLike | None, reading: dict) -> list[list[str]]:
    if text_file is None:
        return generated_sentences(_MOST_SENTENCES)
    with open_texts(text_file, **reading) as texts:
        return [list(text.tokens) for text in itertools.islice(texts, _MOST_SENTENCES)]


def _embed(embedder: Embedder, sentences: list[list[str]]) -> list[np.ndarray]:
    return list(embedder.stream(sentences, SLOTS))


def _check(reference: Embedder, variants: dict[str, Embedder], limit: float) -> dict[str, float]:
    """The largest difference of each variant from the reference, relative to the largest value."""
    sentences = generated_sentences(8)
    results = {name: _embed(embedder, sentences) for name, embedder in variants.items()}
    expected = _embed(reference, sentences)
    largest, errors = max(float(np.abs(vectors).max()) for vectors in expected), {}
    for name, actual in results.items():
        errors[name] = max(float(np.abs(a - b).max()) for a, b in zip(actual, expected)) / largest
        if not errors[name] <= limit:
            raise RuntimeError(f"{name}: expected numbers within {limit:.0e} of the reference's, got "
                               f"{errors[name]:.1e}; please report this")
    return errors


def _fitting(variants: dict[str, Embedder], text: list[list[str]], seconds: float) -> list[list[str]]:
    """The sentences of a round: as many as all rounds, and one to warm up, run in `seconds`."""
    sample = text[:SLOTS]
    once = sum(_seconds(functools.partial(_embed, embedder, sample)) for embedder in variants.values())
    return text[: max(int(len(sample) * 0.7 * seconds / (ROUNDS + 1) / once), len(sample))]


def _time(variants: dict[str, Embedder], sentences: list[list[str]], progress: bool) -> list[dict]:
    sentence = next(tokens for tokens in generated_sentences(_MOST_SENTENCES) if len(tokens) == SENTENCE_TOKENS)
    tokens, turns, rows = sum(map(len, sentences)), {}, []
    for name, embedder in variants.items():
        turns[name, "text"] = functools.partial(_seconds, functools.partial(_embed, embedder, sentences))
        turns[name, "sentence"] = lambda embedder=embedder: min(
            _seconds(functools.partial(_embed, embedder, [sentence])) for _ in range(5))
    with progress_bar((1 + ROUNDS) * len(turns), "measurements", progress) as bar:
        for turn in turns.values():
            turn()
            bar.update()
        samples = take_turns(turns, ROUNDS, lambda _: bar.update())
    for name in variants:
        slow, seconds, fast = np.percentile(samples[name, "text"], [75, 50, 25]).tolist()
        rows.append({"variant": name, "tokens_per_s": tokens / seconds, "quartiles": [tokens / slow, tokens / fast],
                     "sentence_ms": 1e3 * float(np.median(samples[name, "sentence"]))})
    return rows


def _seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def _memory() -> dict[str, float]:
    """Peak memory in MiB: of the process, where the system reports it, and of the GPU."""
    peak = peak_memory()
    memory = {} if peak is None else {"process": peak / 2**20}
    torch = sys.modules.get("torch")
    if torch and torch.cuda.is_available():
        memory["gpu"] = torch.cuda.max_memory_allocated() / 2**20
    return rounded(memory)


def report(document: dict) -> Iterator[str]:
    """The document as lines for a terminal."""
    host, facts = document["machine"], document["settings"]
    chip = host["gpu"]["name"] if facts["device"].startswith("cuda") else host["cpu"]["model"]
    precision, computes_in = facts["precision"], facts["computes_in"]
    memory = ", ".join(f"{name} {mib:,.0f} MiB" for name, mib in facts["memory_mib"].items())
    torch = host["torch"] and f"torch {host['torch']}"
    yield f"{chip}, {host['cpu']['cores']} cores, {torch or 'no torch'}, {facts['threads']} threads"
    yield (f"model {facts['model']}, {facts['parameters'] / 1e6:.1f} M parameters, {precision}"
           + ("" if precision == computes_in else f" (runs as {computes_in})"))
    yield "backends " + ", ".join(f"{op}: {backend}" for op, backend in facts["backends"].items())
    yield f"text {facts['text']}: {facts['sentences']:,} sentences, {facts['tokens']:,} tokens"
    yield f"{'':16}{'tokens/s':>12}{'one sentence':>16}{'difference':>14}"
    for row in document["results"]:
        yield f"{row['variant']:16}{row['tokens_per_s']:>12,.0f}{row['sentence_ms']:>13.2f} ms{row['error']:>14.1e}"
    yield f"peak memory: {memory or 'not known on this system'}"
    yield "difference: from the reference, of the largest value"


def command(model: str, device: str | None, precision: str, text_file: str | None, json_file: str | None,
            seconds: float, progress: bool, **reading) -> Iterator[str]:
    """Run the subcommand: the lines of `report`; also write the document if a file is given."""
    if json_file is not None:
        check_target(json_file, "--json")
    with contextlib.nullcontext() if json_file is None else atomic_path(json_file) as part:
        document = bench(model, device, precision, seconds, text_file, progress=progress, **reading)
        if part is not None:
            write_part(part, json_file, (json.dumps(document, indent=1) + "\n").encode())
    yield from report(document)
