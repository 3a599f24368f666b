"""The work of the subcommands `compare` and `nearest`: rows to print, and a picture."""

import os
from collections.abc import Collection, Iterator
from dataclasses import asdict, dataclass

from elmo_fast.arguments import local_path
from elmo_fast.embed.api import LoadedElmo
from elmo_fast.embed.jobs import ModelChoice
from elmo_fast.explore.contexts import ContextIndex, compare
from elmo_fast.explore.nearest import find_contexts, open_index, report_lines
from elmo_fast.explore.pictures import CONTEXTS, MAPS, check_picture, named_maps, save_comparison, save_report
from elmo_fast.files.atomic import check_target
from elmo_fast.text.readers import open_texts


@dataclass(frozen=True)
class CompareJob:
    """A run of `elmo-fast compare`: two sentences, the weights of a mixture of the layers, the file of the picture."""

    model: ModelChoice
    first: str
    second: str
    weights: list[float] | None
    state: str
    output: str | None
    tokenizer: str


def compare_sentences(job: CompareJob) -> Iterator[str]:
    """Tab-separated rows of cosines, one table per layer; the picture is written first."""
    if job.output is not None:
        check_picture(job.output, MAPS)
    comparison = compare(job.model.load(), job.first, job.second, job.state, job.tokenizer)
    maps = named_maps(comparison, job.weights)
    if job.output is not None:
        save_comparison(comparison, job.output, job.weights)
    for title, cosines in maps.items():
        yield "\t".join([title, *comparison.second_tokens])
        for token, row in zip(comparison.first_tokens, cosines.tolist()):
            yield "\t".join([token, *(f"{value:.4f}" for value in row)])
        yield ""


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
    layer: str | list[float] | None
    state: str | None
    save: str | None
    output: str | None
    tokenizer: str


def nearest_contexts(job: NearestJob) -> Iterator[str]:
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
    elmo = job.model.load()
    index = _index(elmo, corpus, None if job.search.any_word or job.save else [word], job.layer, job.state,
                   job.tokenizer)
    if job.save is not None:
        index.save(job.save)
    report = find_contexts(elmo, index, **asdict(job.search))
    if job.output is not None:
        name = "stdin" if corpus == "-" else os.path.basename(corpus)
        save_report(report, job.output, f"Nearest contexts of \u201c{word}\u201d in {name}")
    return report_lines(report)


def _index(elmo: LoadedElmo, corpus: str, words: Collection[str] | None, layer: str | list[float] | None,
           state: str | None, tokenizer: str) -> ContextIndex:
    if corpus != "-" and (index := open_index(corpus, words=words)) is not None:
        if layer or state:
            raise ValueError(f"--layer, --weights, --state: expected a text as CORPUS, got the vectors in {corpus}")
        return index
    layers, dtype = _layers(layer, elmo.bilm.num_layers), "float16" if words is None else "float32"
    with open_texts(corpus, allow_blank=True, tokenizer=tokenizer) as texts:
        return ContextIndex.build(elmo, texts, words=words, layers=layers, state=state or "warm", dtype=dtype)


def _layers(layer: str | list[float] | None, count: int) -> str | list[float]:
    if layer in (None, "average", "top") or isinstance(layer, list):
        return layer or "average"
    if not layer.isdecimal() or int(layer) >= count:
        raise ValueError(f"--layer: expected average, top or a number from 0 to {count - 1}, got {layer}")
    return [float(number == int(layer)) for number in range(count)]
