"""The work of the subcommands `compare` and `nearest`: rows to print, and a picture."""

import os
from collections.abc import Collection, Iterator
from typing import Any

import numpy as np

from elmo_fast.arguments import Layers, counted, local_path
from elmo_fast.embed.api import LoadedElmo
from elmo_fast.embed.jobs import ModelChoice
from elmo_fast.explore.comparison import Comparison, compare
from elmo_fast.explore.contexts import ContextIndex
from elmo_fast.explore.nearest import find_contexts, open_index, report_lines
from elmo_fast.explore.pictures import CONTEXTS, MAPS, check_picture, named_maps, save_comparison, save_report
from elmo_fast.files.atomic import check_target
from elmo_fast.text.readers import open_texts

Result = tuple[Iterator[str], list[str]]  # the rows to print, and a line on every file that was written


def compare_sentences(model: ModelChoice, first: str, second: str, weights: tuple[float, ...] | None, state: str,
                      output: str | None, tokenizer: str) -> Result:
    """Tab-separated rows of cosines, a table for each layer and for the mixture of `weights`; the picture `output` is
    written first.
    """
    if output is not None:
        check_picture(output, MAPS)
    comparison = compare(model.load(), first, second, state, tokenizer)
    maps, files = named_maps(comparison, weights), []
    if output is not None:
        save_comparison(comparison, output, weights)
        size = f"{len(comparison.first_tokens)} x {len(comparison.second_tokens)}"
        files = [f"{output}: {len(maps)} maps of {size} cosines"]
    return _table(comparison, maps), files


def _table(comparison: Comparison, maps: dict[str, np.ndarray]) -> Iterator[str]:
    for title, cosines in maps.items():
        yield "\t".join([title, *comparison.second_tokens])
        for token, row in zip(comparison.first_tokens, cosines.tolist()):
            yield "\t".join([token, *(f"{value:.4f}" for value in row)])
        yield ""


def nearest_contexts(model: ModelChoice, corpus: str, search: dict[str, Any], layer: Layers | None,
                     state: str | None, save: str | None, output: str | None, **reading) -> Result:
    """The tab-separated rows of a report; the index `save` and the picture `output` are written first.

    `search` are arguments of `find_contexts`, `reading` those of `open_texts`. `layer` and `state` need a text as
    corpus.
    """
    corpus, word = local_path(corpus), search["word"]
    for name, path in (("-o", output), ("--save", save)):
        path = path and local_path(path)
        if path and os.path.exists(path) and os.path.exists(corpus) and os.path.samefile(path, corpus):
            raise ValueError(f"{name}: expected a file other than CORPUS, got {path}")
    if output is not None:
        check_picture(output, CONTEXTS)
    if save is not None:
        check_target(save, "--save")
    if not os.path.isdir(corpus):  # a directory may hold vectors
        open_texts(corpus, **reading).close()
    elmo = model.load()
    words, files = None if search["any_word"] or save else [word], []
    index = _index(elmo, corpus, words, layer, state, reading)
    if save is not None:
        index.save(save)
        files.append(f"{save}: {counted(len(index), 'vector')} of {index.vectors.shape[1]} values in "
                     f"{index.vectors.dtype}")
    report = find_contexts(elmo, index, **search)
    if output is not None:
        name = "stdin" if corpus == "-" else os.path.basename(corpus)
        save_report(report, output, f"Nearest contexts of \u201c{word}\u201d in {name}")
        contexts = sum(len(group.neighbours) for group in report.groups)
        files.append(f"{output}: {counted(contexts, 'context')}; the word occurs {counted(report.count, 'time')}")
    return report_lines(report), files


def _index(elmo: LoadedElmo, corpus: str, words: Collection[str] | None, layer: Layers | None,
           state: str | None, reading: dict[str, Any]) -> ContextIndex:
    if corpus != "-" and (index := open_index(corpus, words=words)) is not None:
        if layer is not None or state:
            raise ValueError(f"--layer, --weights, --state: expected a text as CORPUS, got the vectors in {corpus}")
        return index
    layers, dtype = "average" if layer is None else layer, "float16" if words is None else "float32"
    with open_texts(corpus, allow_blank=True, **reading) as texts:
        return ContextIndex.build(elmo, texts, words=words, layers=layers, state=state or "warm", dtype=dtype)
