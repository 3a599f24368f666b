"""The work of the subcommands `compare` and `nearest`: rows to print, and a picture.

Arguments and files are checked before torch, whose import takes seconds, is imported.
"""

import os
from collections.abc import Collection, Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from elmo_fast.arguments import counted, local_path
from elmo_fast.embed.jobs import ModelChoice
from elmo_fast.explore.pictures import CONTEXTS, MAPS, check_picture, named_maps, save_comparison, save_report
from elmo_fast.files.atomic import check_target
from elmo_fast.text.readers import open_texts

if TYPE_CHECKING:
    from elmo_fast.embed.api import LoadedElmo
    from elmo_fast.explore.comparison import Comparison
    from elmo_fast.explore.contexts import ContextIndex
    from elmo_fast.explore.nearest import Report

Result = tuple[Iterator[str], list[str]]  # the rows to print, and a line on every file that was written


@dataclass(frozen=True)
class CompareJob:
    """A run of `elmo-fast compare`: two sentences, the weights of a mixture of the layers, the file of the picture."""

    model: ModelChoice
    first: str
    second: str
    weights: tuple[float, ...] | None
    state: str
    output: str | None
    tokenizer: str


def compare_sentences(job: CompareJob) -> Result:
    """Tab-separated rows of cosines, one table per layer; the picture is written first."""
    if job.output is not None:
        check_picture(job.output, MAPS)
    elmo = job.model.load()
    from elmo_fast.explore.comparison import compare

    comparison = compare(elmo, job.first, job.second, job.state, job.tokenizer)
    rows, files = _table(comparison, job.weights), []
    if job.output is not None:
        save_comparison(comparison, job.output, job.weights)
        maps = len(comparison.layers()) + (job.weights is not None)
        size = f"{len(comparison.first_tokens)} x {len(comparison.second_tokens)}"
        files = [f"{job.output}: {maps} maps of {size} cosines"]
    return rows, files


def _table(comparison: "Comparison", weights: tuple[float, ...] | None) -> Iterator[str]:
    maps = named_maps(comparison, weights)

    def lines() -> Iterator[str]:
        for title, cosines in maps.items():
            yield "\t".join([title, *comparison.second_tokens])
            for token, row in zip(comparison.first_tokens, cosines.tolist()):
                yield "\t".join([token, *(f"{value:.4f}" for value in row)])
            yield ""

    return lines()


@dataclass(frozen=True)
class Search:
    """The arguments of `find_contexts`."""

    word: str
    sentence: str | None
    top: int
    queries: int
    any_word: bool
    center: bool


@dataclass(frozen=True)
class NearestJob:
    """A run of `elmo-fast nearest`. `layer` and `state` need a text as corpus; `save` and `output` are files."""

    model: ModelChoice
    search: Search
    corpus: str
    layer: str | tuple[float, ...] | None
    state: str | None
    save: str | None
    output: str | None
    tokenizer: str


def nearest_contexts(job: NearestJob) -> Result:
    """The tab-separated rows of a report; the index and the picture are written first."""
    corpus, word = local_path(job.corpus), job.search.word
    for name, path in (("-o", job.output), ("--save", job.save)):
        path = path and local_path(path)
        if path and os.path.exists(path) and os.path.exists(corpus) and os.path.samefile(path, corpus):
            raise ValueError(f"{name}: expected a file other than CORPUS, got {path}")
    if job.output is not None:
        check_picture(job.output, CONTEXTS)
    if job.save is not None:
        check_target(job.save, "--save")
    if not os.path.isdir(corpus):  # a directory may hold vectors
        open_texts(corpus).close()
    elmo = job.model.load()
    from elmo_fast.explore.nearest import find_contexts, report_lines

    words, files = None if job.search.any_word or job.save else [word], []
    index = _index(elmo, corpus, words, job.layer, job.state, job.tokenizer)
    if job.save is not None:
        index.save(job.save)
        files.append(f"{job.save}: {counted(len(index), 'vector')} of {index.vectors.shape[1]} values in "
                     f"{index.vectors.dtype}")
    report = find_contexts(elmo, index, **asdict(job.search))
    if job.output is not None:
        name = "stdin" if corpus == "-" else os.path.basename(corpus)
        save_report(report, job.output, f"Nearest contexts of \u201c{word}\u201d in {name}")
        files.append(f"{job.output}: {_size(report)}")
    return report_lines(report), files


def _size(report: "Report") -> str:
    contexts = sum(len(group.neighbours) for group in report.groups)
    return f"{counted(contexts, 'context')}; the word occurs {counted(report.count, 'time')}"


def _index(elmo: "LoadedElmo", corpus: str, words: Collection[str] | None, layer: str | tuple[float, ...] | None,
           state: str | None, tokenizer: str) -> "ContextIndex":
    from elmo_fast.explore.contexts import ContextIndex
    from elmo_fast.explore.nearest import open_index

    if corpus != "-" and (index := open_index(corpus, words=words)) is not None:
        if layer or state:
            raise ValueError(f"--layer, --weights, --state: expected a text as CORPUS, got the vectors in {corpus}")
        return index
    layers, dtype = _layers(layer, elmo.num_layers), "float16" if words is None else "float32"
    with open_texts(corpus, allow_blank=True, tokenizer=tokenizer) as texts:
        return ContextIndex.build(elmo, texts, words=words, layers=layers, state=state or "warm", dtype=dtype)


def _layers(layer: str | tuple[float, ...] | None, count: int) -> str | int | tuple[float, ...]:
    if layer in (None, "average", "top") or isinstance(layer, tuple):
        return layer or "average"
    if not layer.isdecimal() or int(layer) >= count:
        raise ValueError(f"--layer: expected average, top or a number from 0 to {count - 1}, got {layer}")
    return int(layer)
