"""`elmo-fast bench`: speed, latency and memory of a model on this machine, behind a check of its numbers."""

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import torch

from elmo_fast.bench import work
from elmo_fast.bench.machine import machine, version_of
from elmo_fast.bench.timing import rounded, take_turns
from elmo_fast.bench.work import generated_sentences
from elmo_fast.embed.api import LoadedElmo, load
from elmo_fast.environment import extra, peak_memory
from elmo_fast.errors import ConfigurationError
from elmo_fast.files.atomic import atomic_path, check_target
from elmo_fast.ops.backend import OPS, resolve
from elmo_fast.ops.numerics import numerics, type_of
from elmo_fast.ops.precision import PRECISIONS, has_16_bit_operands
from elmo_fast.ops.projected_lstm.cuda import choice, persistent

SLOTS, SENTENCE_TOKENS, ROUNDS = 64, 25, 5
_PRODUCT = 1536  # rows and columns of the ceiling's matrices; on a GPU 8192


@dataclass(frozen=True)
class Variant:
    """A way to run the model: a backend, and on a GPU a path of the LSTM."""

    name: str
    backend: str = "auto"
    path: str | None = None

    @contextlib.contextmanager
    def active(self, elmo: LoadedElmo) -> Iterator[None]:
        """Run the model this way inside the body."""
        before, elmo.bilm.backend = elmo.bilm.backend, self.backend
        if self.path:
            os.environ[choice.VARIABLE] = self.path
        try:
            yield
        finally:
            elmo.bilm.backend = before
            if self.path:
                del os.environ[choice.VARIABLE]


def variants(elmo: LoadedElmo) -> list[Variant]:
    """The default choice, and its alternatives: on a GPU every path of the LSTM, on a CPU plain torch."""
    device = next(elmo.bilm.parameters()).device
    if device.type != "cuda":
        runs_native = any(resolve(op, "auto", next(elmo.bilm.parameters())) == "native" for op in OPS)
        return [Variant("engine"), Variant("torch", "torch")] if runs_native else [Variant("torch", "torch")]
    has_persistent = has_16_bit_operands(elmo.bilm.computes_in) and not persistent.lacks(device)
    paths = [choice.GRAPH, *([choice.PERSISTENT] if has_persistent else [])]
    return [Variant("engine"), *(Variant(f"{path} path", path=path) for path in paths)]


def bench(model: str | os.PathLike = "bundled", device: str | None = None, precision: str = "highest",
          seconds: float = 30.0) -> dict:
    """Measure a model for about `seconds`: a document with the machine, the settings and one row per variant.

    Every variant is first compared with the reference path; `RuntimeError` if the difference exceeds the precision's
    `model_tolerance`. The text is generated; 64 sentences run at a time, in the warm state. Variants are timed by turns
    in five rounds.
    """
    elmo = load(model, device=device, precision=precision)
    chosen = variants(elmo)
    errors = _check(elmo, chosen, precision)
    sentences, sentence = _texts(elmo, chosen, seconds)
    rows = _time(elmo, chosen, sentences, sentence, _flop(elmo, sentences))
    facts = {"model": Path(model).name, "precision": precision, "computes_in": elmo.bilm.computes_in,
             "device": str(next(elmo.bilm.parameters()).device), "state": "warm", "slots": SLOTS,
             "text": "generated (Zipf)", "sentences": len(sentences), "tokens": sum(map(len, sentences)),
             "sentence_tokens": SENTENCE_TOKENS, "rounds": ROUNDS,
             "parameters": sum(values.numel() for values in elmo.bilm.parameters()),
             "backends": {op: resolve(op, "auto", next(elmo.bilm.parameters())) for op in OPS},
             "limit": PRECISIONS[precision].model_tolerance, "memory_mib": _memory(elmo)}
    for row in rows:
        row["error"] = errors.get(row["variant"])
    return {"schema": 1, "name": "bench", "date": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "version": version_of("elmo-fast"), "machine": machine(), "settings": facts, "results": rounded(rows)}


def _embed(elmo: LoadedElmo, variant: Variant, sentences: list[list[str]]) -> list[np.ndarray]:
    with variant.active(elmo):
        return list(elmo.vectors(sentences, SLOTS))


def _check(elmo: LoadedElmo, chosen: list[Variant], precision: str) -> dict[str, float]:
    some = generated_sentences(8)
    expected = _embed(elmo, Variant("reference", "reference"), some)
    largest, errors = max(float(np.abs(vectors).max()) for vectors in expected), {}
    limit = PRECISIONS[precision].model_tolerance
    for variant in chosen:
        actual = _embed(elmo, variant, some)
        errors[variant.name] = max(float(np.abs(a - b).max()) for a, b in zip(actual, expected)) / largest
        if not errors[variant.name] <= limit:
            raise RuntimeError(f"{variant.name}: expected numbers within {limit:.0e} of the reference "
                               f"path's, got {errors[variant.name]:.1e}; please report this")
    return errors


def _texts(elmo: LoadedElmo, chosen: list[Variant], seconds: float) -> tuple[list[list[str]], list[str]]:
    """The sentences of a round, as many as fit `seconds`, and the sentence that runs alone."""
    text = generated_sentences(8192)
    alone = next(tokens for tokens in text if len(tokens) == SENTENCE_TOKENS)
    once = sum(_seconds(lambda variant=variant: _embed(elmo, variant, text[:SLOTS])) for variant in chosen)
    count = int(SLOTS * 0.7 * seconds / (ROUNDS + 1) / once)
    return text[: min(max(count, SLOTS), len(text))], alone


def _time(elmo: LoadedElmo, chosen: list[Variant], sentences: list[list[str]], sentence: list[str],
          flop: float | None) -> list[dict]:
    tokens, turns = sum(map(len, sentences)), {}
    for variant in chosen:
        turns[variant.name, "text"] = lambda variant=variant: _seconds(lambda: _embed(elmo, variant, sentences))
        turns[variant.name, "sentence"] = lambda variant=variant: min(
            _seconds(lambda: _embed(elmo, variant, [sentence])) for _ in range(5))
    turns["ceiling"] = _ceiling(elmo)
    for turn in turns.values():
        turn()
    samples = take_turns(turns, ROUNDS)
    ceiling, rows = float(np.median(samples["ceiling"])), []
    for variant in chosen:
        slow, seconds, fast = np.percentile(samples[variant.name, "text"], [75, 50, 25]).tolist()
        row = {"variant": variant.name, "tokens_per_s": tokens / seconds, "quartiles": [tokens / slow, tokens / fast],
               "sentence_ms": 1e3 * float(np.median(samples[variant.name, "sentence"]))}
        if flop:
            row |= {"flop_per_s": flop / seconds, "ceiling_flop_per_s": ceiling, "share": flop / seconds / ceiling}
        rows.append(row)
    return rows


def _seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def _flop(elmo: LoadedElmo, sentences: list[list[str]]) -> float | None:
    """The floating-point operations of the text; None for a model whose options `options.json` cannot express."""
    try:
        options = elmo.bilm.options.to_dict()
    except ConfigurationError:
        return None
    return work.flop(options, work.work_of_slots(sentences, SLOTS))


def _ceiling(elmo: LoadedElmo) -> Callable[[], float]:
    """A function that measures the FLOP/s of PyTorch's product of large matrices in the precision's operand type."""
    device = next(elmo.bilm.parameters()).device
    row = PRECISIONS[elmo.bilm.computes_in]
    dtype = type_of(row.bounded if device.type == "cuda" else row.cpu)
    size = 8192 if device.type == "cuda" else _PRODUCT
    a, b = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))

    def measure() -> float:
        with numerics("high" if row.gpu == "tf32" else "highest", device):
            return 2.0 * size**3 / min(_seconds(lambda: float((a @ b)[0, 0])) for _ in range(3))

    return measure


def _memory(elmo: LoadedElmo) -> dict[str, float]:
    """Peak memory in MiB: of the process, where the system reports it, and of the GPU."""
    peak = peak_memory()
    memory = {} if peak is None else {"process": peak / 2**20}
    if torch.cuda.is_available():
        memory["gpu"] = torch.cuda.max_memory_allocated() / 2**20
    return rounded(memory)


def report(document: dict) -> Iterator[str]:
    """The document as lines for a terminal."""
    cpu, facts = document["machine"]["cpu"], document["settings"]
    gpu = document["machine"]["gpu"]
    chip = gpu["name"] if facts["device"].startswith("cuda") else cpu["model"]
    threads = document["machine"]["torch_threads"]
    yield f"{chip}, {cpu['cores']} cores, torch {document['machine']['torch']}, {threads} threads"
    yield f"model {facts['model']}, {facts['parameters'] / 1e6:.1f} M parameters, {facts['precision']}" + (
        f" (runs as {facts['computes_in']})" if facts["computes_in"] != facts["precision"] else "")
    yield "backends " + ", ".join(f"{op}: {backend}" for op, backend in facts["backends"].items())
    yield f"{'':16}{'tokens/s':>12}{'one sentence':>16}{'of the ceiling':>16}{'difference':>14}"
    for row in document["results"]:
        share = f"{row['share']:.0%}" if "share" in row else "-"
        yield (f"{row['variant']:16}{row['tokens_per_s']:>12,.0f}{row['sentence_ms']:>13.2f} ms{share:>16}"
               f"{row['error']:>14.1e}")
    memory = ", ".join(f"{name} {mib:,.0f} MiB" for name, mib in facts["memory_mib"].items())
    yield f"peak memory: {memory or 'not known on this system'}"
    if "ceiling_flop_per_s" in document["results"][0]:
        ceiling = document["results"][0]["ceiling_flop_per_s"] / 1e9
        yield (f"ceiling: {ceiling:,.0f} GFLOP/s, PyTorch's product of large matrices in this run; "
               "difference: from the reference path, of the largest value")


def plot(document: dict, path: str | os.PathLike) -> None:
    """Draw tokens per second as bars, with the ceiling, to a `.png`, `.svg` or `.pdf` file; needs matplotlib."""
    from matplotlib.figure import Figure

    rows = document["results"][::-1]
    figure = Figure(figsize=(7, 1.2 + 0.5 * len(rows)), layout="constrained")
    axes = figure.subplots()
    bars = axes.barh([row["variant"] for row in rows], [row["tokens_per_s"] for row in rows], color="#4051b5")
    axes.bar_label(bars, [f"{row['tokens_per_s']:,.0f}" for row in rows], padding=4)
    if "share" in rows[-1]:
        most = rows[-1]["tokens_per_s"] / rows[-1]["share"]
        axes.axvline(most, color="0.4", linestyle="--", linewidth=1)
        axes.annotate("ceiling", (most, 1), (3, -2), xycoords=("data", "axes fraction"), textcoords="offset points",
                      va="top", color="0.4")
        axes.set_xlim(0, 1.15 * most)
    axes.set_xlabel("tokens per second")
    axes.set_title(f"{document['settings']['model']}, {document['settings']['precision']}", loc="left")
    axes.spines[["top", "right"]].set_visible(False)
    with atomic_path(path) as part:
        figure.savefig(part, format=Path(path).suffix[1:], dpi=150)


def command(model: str, device: str | None, precision: str, json_file: str | None, plot_file: str | None,
            seconds: float) -> Iterator[str]:
    """Run the subcommand: the lines of `report`; also write the document and the chart if files are given."""
    for path, name in ((json_file, "--json"), (plot_file, "--plot")):
        if path is not None:
            check_target(path, name)
    if plot_file is not None:
        _check_plot(plot_file)
    document = bench(model, device, precision, seconds)
    if json_file is not None:
        with atomic_path(json_file) as part:
            part.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    if plot_file is not None:
        plot(document, plot_file)
    yield from report(document)


def _check_plot(path: str) -> None:
    if Path(path).suffix not in (".png", ".svg", ".pdf"):
        raise ValueError(f"--plot: expected a file that ends in .png, .svg or .pdf, got {path}")
    with extra("plots"):
        import matplotlib  # noqa: F401
