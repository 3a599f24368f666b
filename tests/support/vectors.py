"""Texts with vectors, and files of them, for the tests of layouts."""

import itertools
from importlib.util import find_spec

import numpy as np
import pytest

from elmo_fast.vectors.layouts import join, place, segment
from elmo_fast.vectors.layouts.parts import part_name
from elmo_fast.vectors.layouts.table import is_directory
from elmo_fast.vectors.layouts.text_vectors import TextVectors
from elmo_fast.vectors.spec import OutputSpec

LIBRARY = [pytest.mark.long, pytest.mark.skipif(not find_spec("pyarrow"),
                                                reason="pyarrow is not installed: make test-integrations")]
# Layout and name of every kind of output. Names without a suffix are directories of parts.
_KINDS = [("allennlp", "out.hdf5"), ("npz", "out.npz"), ("npy", "out.npy"), ("parquet", "out.parquet"),
          ("parquet", "parts"), ("arrow", "out.arrow"), ("arrow", "parts")]
STORES_TEXTS = ("parquet", "arrow", "allennlp")


def kinds(*pairs, without=()):
    """Parameters of tests of layout and name, all or some; those with pyarrow are for `make test-integrations`."""
    return [pytest.param(*pair, marks=LIBRARY if pair[0] in ("parquet", "arrow") else ())
            for pair in pairs or _KINDS if pair[1] not in without]


def make_items(form, count=30, seed=0, layers=3, dim=8, longest=12, keys=str):
    """Texts of 0 to `longest` tokens, from 1 where they are pooled."""
    rng = np.random.default_rng(seed)
    items = []
    for number in range(count):
        tokens = [f"wörd{rng.integers(6)}" for _ in range(rng.integers(form.pool is not None, longest + 1))]
        vectors = rng.standard_normal((layers, len(tokens), dim), dtype=np.float32)
        out = form.apply(vectors, tokens)
        items.append(TextVectors(keys(number), f"{' '.join(tokens)} {number}", tokens, out.positions, out.vectors))
    return items


def items_of(model, form, texts):
    """Texts with the vectors of a model, as a run of the command writes them."""
    items = []
    for number, (text, vectors) in enumerate(zip(texts, model.embed(texts))):
        out = form.apply(vectors, text.split())
        items.append(TextVectors(str(number), text, text.split(), out.positions, out.vectors))
    return items


def write(layout, target, form, items, cuts=(), **options):
    """Write items in parts, cut at some numbers, and put the joined file, or the directory, in its place."""
    bounds, paths = [0, *cuts, len(items)], []
    folder = target if is_directory(layout, target) else target.parent / "work.part"
    folder.mkdir()
    for number, (begin, end) in enumerate(itertools.pairwise(bounds)):
        paths.append(folder / part_name(layout, number))
        with segment(layout, paths[-1], target, form, **options) as writer:
            for item in items[begin:end]:
                writer.write(item)
    if folder == target:
        return target
    join(layout, paths, folder / "whole", target, form, **options)
    place(layout, folder / "whole", target)
    for part in folder.iterdir():
        part.unlink()
    folder.rmdir()
    return target


FORMS = [OutputSpec(), OutputSpec("top", dtype="float16"), OutputSpec("average"),
         OutputSpec((0.5, -1, 2), dtype="float16"), OutputSpec("all", "mean"),
         OutputSpec("top", "max", "float16"), OutputSpec((1, 0, 1), "first_last"),
         OutputSpec(targets={"wörd3"}), OutputSpec("average", targets={"wörd0", "wörd1"}, dtype="float16")]


def holds(layout, form):
    """Whether the layout can hold the form."""
    return layout != "npy" or bool(form.pool and form.layers != "all")
