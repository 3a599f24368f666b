"""`elmo-fast bench`: speed, latency and memory of a model on this machine, behind a check of its numbers."""

import contextlib
import itertools
import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import torch

from elmo_fast.bench import precisions as accuracy
from elmo_fast.bench import work
from elmo_fast.bench.machine import machine, version_of
from elmo_fast.bench.timing import rounded, take_turns
from elmo_fast.bench.work import generated_sentences
from elmo_fast.embed.api import LoadedElmo
from elmo_fast.embed.progress import progress_bar
from elmo_fast.environment import extra, peak_memory
from elmo_fast.errors import ConfigurationError
from elmo_fast.files.atomic import atomic_path, check_target
from elmo_fast.model.families.models import open_bilm
from elmo_fast.model.opening import ModelOptions
from elmo_fast.model.sources import find_model, name_of
from elmo_fast.ops.backend import OPS, resolve
from elmo_fast.ops.device import available_device
from elmo_fast.ops.numerics import numerics, type_of
from elmo_fast.ops.precision import PRECISIONS, check_precision
from elmo_fast.text.readers import open_texts

SLOTS, SENTENCE_TOKENS, ROUNDS = 64, 25, 5
_MOST_SENTENCES = 8192
_EXACT = "smallest_cosine", "perplexity"  # figures whose sixth digit matters
_PRODUCT = 1536  # rows and columns of the ceiling's matrices; on a GPU 8192


@dataclass(frozen=True)
class Variant:
    """A way to run the model: a backend, and a precision if not the model's."""

    name: str
    backend: str = "auto"
    precision: str | None = None

    @contextlib.contextmanager
    def active(self, elmo: LoadedElmo) -> Iterator[None]:
        """Run the model this way inside the body."""
        bilm = elmo.bilm
        before = bilm.backend, bilm.precision
        bilm.backend, bilm.precision = self.backend, self.precision or bilm.precision
        try:
            yield
        finally:
            bilm.backend, bilm.precision = before


def variants(elmo: LoadedElmo) -> list[Variant]:
    """The default choice and plain torch, or plain torch alone where no native kernel runs."""
    runs_native = any(resolve(op, "auto", next(elmo.bilm.parameters())) == "native" for op in OPS)
    return [Variant("engine"), Variant("torch", "torch")] if runs_native else [Variant("torch", "torch")]


def bench(model: str | os.PathLike = "bundled", device: str | None = None, precision: str = "highest",
          seconds: float = 30.0, text_file: str | os.PathLike | None = None, *, progress: bool = False) -> dict:
    """Measure a model for about `seconds`: a document with the machine, the settings and one row per variant.

    Every variant is first compared with the reference path; `RuntimeError` if the difference exceeds the precision's
    `model_tolerance`. The text is generated unless a file is given; 64 sentences run at a time, in the warm state.
    Variants are timed by turns in five rounds. `progress` shows a bar if stderr is a terminal.
    """
    text = _read(text_file)
    elmo = _open(model, device, precision)
    chosen = variants(elmo)
    errors = _check(elmo, chosen)
    sentences = _fitting(elmo, chosen, text, seconds, ROUNDS + 1)
    rows = _time(elmo, chosen, sentences, _flop(elmo, sentences), progress)
    for row in rows:
        row["error"] = errors[row["variant"]]
    facts = {"model": name_of(model), "precision": precision, "computes_in": elmo.bilm.computes_in,
             **_facts(elmo, sentences, text_file), "limit": PRECISIONS[precision].model_tolerance}
    return _document(facts, rows)


def bench_precisions(model: str | os.PathLike = "bundled", device: str | None = None,
                     precisions: Sequence[str] = tuple(PRECISIONS), seconds: float = 30.0,
                     text_file: str | os.PathLike | None = None, *, progress: bool = False) -> dict:
    """Measure precisions as `bench` measures variants, and compare their vectors with those of `highest`.

    A row per precision also has what it runs as on this machine, the figures of `Accuracy`, and the perplexity of the
    same sentences if the model has a softmax beside its weights. Precisions that run as the same are measured once.
    """
    names = list(dict.fromkeys(map(check_precision, precisions)))
    text = _read(text_file)
    elmo = _open(model, device, "highest")
    same = {name: accuracy.runs_as(elmo, name) for name in names}
    chosen = [Variant(name, precision=name) for name in dict.fromkeys(same.values())]
    errors, head = _check(elmo, chosen), accuracy.head_beside(elmo, find_model(model))
    sentences = _fitting(elmo, chosen, text, seconds, ROUNDS + 2 + (head is not None))
    measured = {row["variant"]: row for row in _time(elmo, chosen, sentences, None, progress)}
    for name, figures in _compare(elmo, chosen, sentences, progress).items():
        measured[name] |= {"error": errors[name], **figures}
    if head is not None:
        for variant in chosen:
            with variant.active(elmo):
                measured[variant.name]["perplexity"] = accuracy.perplexity(head, sentences)
    rows = [{**measured[same[name]], "variant": name, "runs_as": same[name]} for name in names]
    return _document({"model": name_of(model), "precisions": names, **_facts(elmo, sentences, text_file)}, rows)


def _open(model: str | os.PathLike, device: str | None, precision: str) -> LoadedElmo:
    """As `load`, but the fp32 weights stay in memory: other backends and precisions read them."""
    target = available_device(device)
    return LoadedElmo(open_bilm(find_model(model), ModelOptions("warm", precision)).to(target))


def _facts(elmo: LoadedElmo, sentences: list[list[str]], text_file: str | os.PathLike | None) -> dict:
    weight = next(elmo.bilm.parameters())
    return {"device": str(weight.device), "state": "warm", "slots": SLOTS,
            "text": "generated (Zipf)" if text_file is None else Path(text_file).name, "sentences": len(sentences),
            "tokens": sum(map(len, sentences)), "sentence_tokens": SENTENCE_TOKENS, "rounds": ROUNDS,
            "parameters": sum(values.numel() for values in elmo.bilm.parameters()),
            "backends": {op: resolve(op, "auto", weight) for op in OPS}, "memory_mib": _memory()}


def _document(facts: dict, rows: list[dict]) -> dict:
    return {"schema": 1, "name": "bench", "date": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "version": version_of("elmo-fast"), "machine": machine(), "settings": facts,
            "results": [{**rounded(row), **{name: float(f"{row[name]:.9g}") for name in _EXACT if name in row}}
                        for row in rows]}


def _read(text_file: str | os.PathLike | None) -> list[list[str]]:
    if text_file is None:
        return generated_sentences(_MOST_SENTENCES)
    with open_texts(text_file) as texts:
        return [list(text.tokens) for text in itertools.islice(texts, _MOST_SENTENCES)]


def _embed(elmo: LoadedElmo, variant: Variant, sentences: list[list[str]]) -> list[np.ndarray]:
    with variant.active(elmo):
        return list(elmo.vectors(sentences, SLOTS))


def _check(elmo: LoadedElmo, chosen: list[Variant]) -> dict[str, float]:
    some = generated_sentences(8)
    found = {variant: _embed(elmo, variant, some) for variant in chosen}  # first: they use the first call's warm state
    expected = _embed(elmo, Variant("reference", "reference"), some)
    largest, errors = max(float(np.abs(vectors).max()) for vectors in expected), {}
    for variant, actual in found.items():
        limit = PRECISIONS[variant.precision or elmo.bilm.precision].model_tolerance
        errors[variant.name] = max(float(np.abs(a - b).max()) for a, b in zip(actual, expected)) / largest
        if not errors[variant.name] <= limit:
            raise RuntimeError(f"{variant.name}: expected numbers within {limit:.0e} of the reference "
                               f"path's, got {errors[variant.name]:.1e}; please report this")
    return errors


def _compare(elmo: LoadedElmo, chosen: list[Variant], sentences: list[list[str]],
             progress: bool) -> dict[str, dict]:
    """The figures of `Accuracy` of each variant against `highest`, by name."""
    found = {variant: accuracy.Accuracy(elmo.bilm.num_layers) for variant in chosen}
    with progress_bar(len(sentences), "sentences compared", progress) as bar:
        for first in range(0, len(sentences), 4 * SLOTS):  # bounds the vectors in memory
            some = sentences[first : first + 4 * SLOTS]
            truth = _embed(elmo, Variant("highest", precision="highest"), some)
            for variant, figures in found.items():
                figures.add(_embed(elmo, variant, some), truth)
            bar.update(len(some))
    return {variant.name: figures.figures() for variant, figures in found.items()}


def _fitting(elmo: LoadedElmo, chosen: list[Variant], text: list[list[str]], seconds: float,
             turns: int) -> list[list[str]]:
    """The sentences of a round: as many as all variants run `turns` times in `seconds`."""
    some = text[:SLOTS]
    once = sum(_seconds(lambda variant=variant: _embed(elmo, variant, some)) for variant in chosen)
    return text[: max(int(len(some) * 0.7 * seconds / turns / once), len(some))]


def _time(elmo: LoadedElmo, chosen: list[Variant], sentences: list[list[str]], flop: float | None,
          progress: bool) -> list[dict]:
    sentence = next(tokens for tokens in generated_sentences(_MOST_SENTENCES) if len(tokens) == SENTENCE_TOKENS)
    tokens, turns = sum(map(len, sentences)), {}
    for variant in chosen:
        turns[variant.name, "text"] = lambda variant=variant: _seconds(lambda: _embed(elmo, variant, sentences))
        turns[variant.name, "sentence"] = lambda variant=variant: min(
            _seconds(lambda: _embed(elmo, variant, [sentence])) for _ in range(5))
    if flop:
        turns["ceiling"] = _ceiling(elmo)
    with progress_bar((1 + ROUNDS) * len(turns), "measurements", progress) as bar:
        for turn in turns.values():
            turn()
            bar.update()
        samples, rows = take_turns(turns, ROUNDS, lambda _: bar.update()), []
    for variant in chosen:
        slow, seconds, fast = np.percentile(samples[variant.name, "text"], [75, 50, 25]).tolist()
        row = {"variant": variant.name, "tokens_per_s": tokens / seconds, "quartiles": [tokens / slow, tokens / fast],
               "sentence_ms": 1e3 * float(np.median(samples[variant.name, "sentence"]))}
        if flop:
            ceiling = float(np.median(samples["ceiling"]))
            row |= {"flop_per_s": flop / seconds, "ceiling_flop_per_s": ceiling, "share": flop / seconds / ceiling}
        rows.append(row)
    return rows


def _seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def _flop(elmo: LoadedElmo, sentences: list[list[str]]) -> float | None:
    """The floating-point operations of the text; None for a model whose options `options.json` cannot express, and for
    8-bit operands, since PyTorch's product of them is no ceiling."""
    if _operand_type(elmo) == torch.int8:
        return None
    try:
        options = elmo.bilm.options.to_dict()
    except ConfigurationError:
        return None
    return work.flop(options, work.work_of_slots(sentences, SLOTS))


def _operand_type(elmo: LoadedElmo) -> torch.dtype:
    row = PRECISIONS[elmo.bilm.computes_in]
    return type_of(row.bounded if next(elmo.bilm.parameters()).device.type == "cuda" else row.cpu)


def _ceiling(elmo: LoadedElmo) -> Callable[[], float]:
    """A function that measures the FLOP/s of PyTorch's product of large matrices in the precision's operand type."""
    device, dtype = next(elmo.bilm.parameters()).device, _operand_type(elmo)
    row = PRECISIONS[elmo.bilm.computes_in]
    size = 8192 if device.type == "cuda" else _PRODUCT
    a, b = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))

    def measure() -> float:
        with numerics("high" if row.gpu == "tf32" else "highest", device):
            return 2.0 * size**3 / min(_seconds(lambda: float((a @ b)[0, 0])) for _ in range(3))

    return measure


def _memory() -> dict[str, float]:
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
    precision = facts.get("precision", "several precisions")
    yield f"model {facts['model']}, {facts['parameters'] / 1e6:.1f} M parameters, {precision}" + (
        f" (runs as {facts['computes_in']})" if facts.get("computes_in", precision) != precision else "")
    yield "backends " + ", ".join(f"{op}: {backend}" for op, backend in facts["backends"].items())
    yield f"text {facts['text']}: {facts['sentences']:,} sentences, {facts['tokens']:,} tokens"
    yield from accuracy.table(document["results"]) if "precisions" in facts else _table(document["results"])
    memory = ", ".join(f"{name} {mib:,.0f} MiB" for name, mib in facts["memory_mib"].items())
    yield f"peak memory: {memory or 'not known on this system'}"
    if "ceiling_flop_per_s" in document["results"][0]:
        ceiling = document["results"][0]["ceiling_flop_per_s"] / 1e9
        yield (f"ceiling: {ceiling:,.0f} GFLOP/s, PyTorch's product of large matrices in this run; "
               "difference: from the reference path, of the largest value")


def _table(rows: list[dict]) -> Iterator[str]:
    yield f"{'':16}{'tokens/s':>12}{'one sentence':>16}{'of the ceiling':>16}{'difference':>14}"
    for row in rows:
        share = f"{row['share']:.0%}" if "share" in row else "-"
        yield (f"{row['variant']:16}{row['tokens_per_s']:>12,.0f}{row['sentence_ms']:>13.2f} ms{share:>16}"
               f"{row['error']:>14.1e}")


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
    facts = document["settings"]
    axes.set_title(f"{facts['model']}, {facts['precision']}" if "precision" in facts else facts["model"], loc="left")
    axes.spines[["top", "right"]].set_visible(False)
    with atomic_path(path) as part:
        figure.savefig(part, format=Path(path).suffix[1:], dpi=150)


def command(model: str, device: str | None, precision: str, precisions: list[str] | None, text_file: str | None,
            json_file: str | None, plot_file: str | None, seconds: float, progress: bool) -> Iterator[str]:
    """Run the subcommand: the lines of `report`; also write the document and the chart if files are given.

    `precisions` are None without the flag, and an empty list stands for all.
    """
    for path, name in ((json_file, "--json"), (plot_file, "--plot")):
        if path is not None:
            check_target(path, name)
    if plot_file is not None:
        _check_plot(plot_file)
    document = (bench(model, device, precision, seconds, text_file, progress=progress) if precisions is None else
                bench_precisions(model, device, precisions or tuple(PRECISIONS), seconds, text_file, progress=progress))
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
