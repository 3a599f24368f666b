"""Files of vectors: a layout is a way to write them, chosen by name or by the suffix of the file."""

import contextlib
import importlib
import os
from collections.abc import Sequence
from pathlib import Path

from elmo_fast.arguments import LAYOUTS, check_choice, check_path
from elmo_fast.errors import ConfigurationError
from elmo_fast.files.atomic import check_target, replace
from elmo_fast.vectors.form import Form
from elmo_fast.vectors.layouts import arrays, shards
from elmo_fast.vectors.layouts.item import Item

__all__ = ["Item", "check_output", "is_directory", "join", "layout_of", "place", "segment"]
SUFFIXES = {".h5": "allennlp", ".hdf5": "allennlp", ".parquet": "parquet", ".arrow": "arrow", ".feather": "arrow",
            ".npz": "npz", ".npy": "npy"}
_MODULES = {"allennlp": "allennlp", "packed": "packed", "parquet": "columns", "arrow": "columns", "npz": "arrays",
            "npy": "arrays"}
_HDF5 = ("allennlp", "packed")


def layout_of(target: str | os.PathLike, layout: str | None = None) -> str:
    """The layout of a file: as given, else by its suffix, AllenNLP's where that says nothing.

    `ConfigurationError` for a suffix that is one of another layout.
    """
    suffix = Path(target).suffix
    named = SUFFIXES.get(suffix)
    if layout is None:
        if os.fspath(target).endswith(("/", os.sep)):
            raise ConfigurationError(f"layout: expected {', '.join(shards.SUFFIXES)} for a directory of shards, got "
                                     f"none for {os.fspath(target)}")
        return named or "allennlp"
    check_choice("layout", layout, LAYOUTS, ConfigurationError)
    suffixes = [each for each, of in SUFFIXES.items() if of == layout or {of, layout} == set(_HDF5)]
    if suffix not in suffixes and (named or layout in ("npz", "npy") or (suffix and layout not in _HDF5)):
        raise ConfigurationError(f"layout: expected a file that ends in {' or '.join(suffixes)} for {layout}, got "
                                 f"{os.fspath(target)}")
    return layout


def is_directory(layout: str, target: str | os.PathLike) -> bool:
    """Whether the target is a directory of shards: a name without a suffix, or that ends in a slash."""
    return layout in shards.SUFFIXES and (os.fspath(target).endswith(("/", os.sep)) or not Path(target).suffix)


def check_output(layout: str, target: str | os.PathLike, form: Form, name: str = "output") -> None:
    """Raise `ConfigurationError` or `OSError` for what could not be written there, before any work is done for it."""
    if layout == "npy" and (not form.pool or form.layers == "all"):
        raise ConfigurationError(f"{name}: expected .h5 or .npz for arrays of different lengths, got .npy, which is "
                                 "for a single vector a text (pooled; --protein)")
    _module(layout)
    target = check_path(name, target)
    if not is_directory(layout, target):
        check_target(target, name)
        if layout == "npy":
            check_target(arrays.names_of(target), name)
    elif os.path.lexists(target.rstrip(f"/{os.sep}")):
        raise ConfigurationError(f"{name}: expected a new directory, found {target} there already")
    else:
        check_target(target.rstrip(f"/{os.sep}"), name)


def segment(layout: str, path: Path, target: str | os.PathLike, form: Form,
            **options) -> contextlib.AbstractContextManager:
    """A writer, with `write(item)`, of consecutive texts into a complete file of the layout at `path`.

    Errors name `target`. Options: `fingerprint`, JSON values to keep; for AllenNLP's layout `use_sentence_keys`
    and `forget_sentences`.
    """
    return _module(layout).segment(path, target, form, layout=layout, **options)


def join(layout: str, segments: Sequence[Path], part: Path, target: str | os.PathLike, form: Form, **options) -> None:
    """Make `part` out of segments, which may be used up: the file that one writer of all texts would have made.

    Options as in `segment`.
    """
    if is_directory(layout, target):
        shards.join(layout, segments, part, _module(layout).Opened)
    elif len(segments) > 1:
        _module(layout).join(segments, part, target, form, layout=layout, **options)
    else:
        place(layout, segments[0], part)


def place(layout: str, part: Path, target: str | os.PathLike) -> None:
    """Rename what `join` made to its target, or a segment."""
    if layout == "npy":
        arrays.place(part, target)
    else:
        replace(part, Path(os.path.realpath(target)))


def _module(layout: str):
    return importlib.import_module(f"{__name__}.{_MODULES[layout]}")
