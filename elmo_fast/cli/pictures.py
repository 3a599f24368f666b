"""The subcommands `compare` and `nearest`: pictures of vectors, and their numbers on stdout."""

import os
from collections.abc import Iterator

from elmo_fast.arguments import FREE_STATES, local_path
from elmo_fast.cli.flags import NUMERICS, add_command, at_least
from elmo_fast.model.sources import DEFAULT_MODEL

_SHARED = "--model", *NUMERICS, "--cuda-device"


def add_commands(commands) -> None:
    """Add the subcommands to an argparse collection; each sets `run`, a function of the parsed arguments."""
    parser = add_command(commands, "compare", _compare, "print the cosines of the tokens of two sentences, for each "
                         "layer, and draw them", *_SHARED, model=DEFAULT_MODEL)
    parser.epilog = "Sentences are split at spaces. Rows are tab-separated. .png, .svg and .pdf need elmo-fast[plots]."
    add = parser.add_argument
    add("first", metavar="FIRST", help="a sentence: the rows")
    add("second", metavar="SECOND", help="a sentence: the columns")
    add("--weights", type=float, nargs="+", metavar="W", help="also a mixture of the layers, a weight for each")
    add("--state", choices=FREE_STATES, default="warm", help="initial state of a sentence (default: %(default)s)")
    add("-o", "--output", metavar="FILE", help="the picture: .png, .svg, .pdf or .html")
    parser = add_command(commands, "nearest", _nearest, "print the contexts of a corpus that are nearest to a word in "
                         "its context, and draw them", *_SHARED, model=DEFAULT_MODEL)
    parser.epilog = ("Rows are tab-separated: cosine, line, token (both from 1) and context. .png, .svg and .pdf need "
                     "elmo-fast[plots].")
    add = parser.add_argument
    add("corpus", metavar="CORPUS", help="UTF-8 text, one tokenized sentence a line, a glob or - for stdin; or a file "
        "of vectors that --save or embed wrote")
    add("--word", required=True, help="the word, whatever its capitals")
    add("--sentence", help="a sentence with the word, to find the like of (default: occurrences in the corpus)")
    add("--top", type=at_least(1), default=10, metavar="K", help="contexts (default: %(default)s)")
    add("--queries", type=at_least(1), default=3, metavar="N", help="occurrences to find the like of, without "
        "--sentence (default: %(default)s)")
    add("--any-word", action="store_true", help="search all tokens, not the occurrences of the word alone")
    add("--center", action="store_true", help="subtract the mean of the searched vectors first")
    layers = parser.add_mutually_exclusive_group()
    layers.add_argument("--layer", metavar="L", help="average (default), top, or the number of a layer, from 0")
    layers.add_argument("--weights", type=float, nargs="+", metavar="W", help="a mixture of the layers")
    add("--state", choices=FREE_STATES, help="initial state of a sentence (default: warm)")
    add("--save", metavar="FILE", help="also store the vectors of all tokens (HDF5, float16), to be CORPUS later")
    add("-o", "--output", metavar="FILE", help="the picture: .html, .png, .svg or .pdf; or the rows: .txt")


def _compare(first, second, weights, state, output, **model) -> Iterator[str]:
    from elmo_fast.explore.contexts import compare
    from elmo_fast.explore.pictures import MAPS, check_picture, named_maps, save_comparison

    if output is not None:
        check_picture(output, MAPS)
    comparison = compare(_load(**model), first, second, state)
    maps = named_maps(comparison, weights)
    if output is not None:
        save_comparison(comparison, output, weights)
    for title, cosines in maps.items():
        yield "\t".join([title, *comparison.second_tokens])
        for token, row in zip(comparison.first_tokens, cosines.tolist()):
            yield "\t".join([token, *(f"{value:.4f}" for value in row)])
        yield ""


def _nearest(corpus, word, sentence, top, queries, any_word, center, layer, weights, state, save, output,
             **model) -> Iterator[str]:
    from elmo_fast.explore.nearest import find_contexts, report_lines
    from elmo_fast.explore.pictures import CONTEXTS, check_picture, save_report
    from elmo_fast.files.atomic import check_target

    corpus = local_path(corpus)
    for name, path in (("-o", output), ("--save", save)):
        path = path and local_path(path)
        if path and os.path.exists(path) and os.path.exists(corpus) and os.path.samefile(path, corpus):
            raise ValueError(f"{name}: expected a file other than CORPUS, got {path}")
    if output is not None:
        check_picture(output, CONTEXTS)
    if save is not None:
        check_target(save, "--save")
    elmo = _load(**model)
    index = _index(elmo, corpus, None if any_word or save else [word], weights or layer, state)
    if save is not None:
        index.save(save)
    report = find_contexts(elmo, index, word, sentence=sentence, top=top, queries=queries, any_word=any_word,
                           center=center)
    if output is not None:
        name = "stdin" if corpus == "-" else os.path.basename(corpus)
        save_report(report, output, f"Nearest contexts of \u201c{word}\u201d in {name}")
    return report_lines(report)


def _load(cuda_device, **model):
    from elmo_fast.embed.api import load
    from elmo_fast.embed.embedder import torch_device

    return load(device=torch_device(cuda_device), **model)


def _index(elmo, corpus, words, layer, state):
    from elmo_fast.explore.contexts import ContextIndex
    from elmo_fast.explore.nearest import open_index
    from elmo_fast.text.readers import open_texts

    if corpus != "-" and (index := open_index(corpus, words=words)) is not None:
        if layer or state:
            raise ValueError("--layer, --weights, --state: expected a text beside them, got the vectors in "
                             f"{corpus}")
        return index
    layers, dtype = _layers(layer, elmo.bilm.num_layers), "float16" if words is None else "float32"
    with open_texts(corpus, allow_blank=True) as texts:
        return ContextIndex.build(elmo, texts, words=words, layers=layers, state=state or "warm", dtype=dtype)


def _layers(layer: str | list[float] | None, count: int) -> str | list[float]:
    if layer in (None, "average", "top") or isinstance(layer, list):
        return layer or "average"
    if not layer.isdecimal() or int(layer) >= count:
        raise ValueError(f"--layer: expected average, top or a number from 0 to {count - 1}, got {layer}")
    return [float(number == int(layer)) for number in range(count)]
