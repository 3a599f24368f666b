"""Layouts of files of vectors, selected by name or by the suffix of the file."""

import contextlib
import importlib
import os
from collections.abc import Sequence
from pathlib import Path

from elmo_fast.arguments import check_path
from elmo_fast.errors import ConfigurationError
from elmo_fast.files.atomic import check_target, replace
from elmo_fast.vectors.layouts.table import LAYOUTS, is_directory
from elmo_fast.vectors.spec import OutputSpec


def check_output(layout: str, target: str | os.PathLike, form: OutputSpec, name: str = "output") -> None:
    """Raise `ConfigurationError` or `OSError`, before any work is done, if `target` cannot be written."""
    module = _module(layout)
    target = check_path(name, target)
    if hasattr(module, "check"):
        module.check(target, form, name)
    if is_directory(layout, target):
        target = target.rstrip(f"/{os.sep}")
        if os.path.lexists(target):
            raise ConfigurationError(f"{name}: expected a new directory, found {target} there already")
    check_target(target, name)


def segment(layout: str, path: Path, target: str | os.PathLike, form: OutputSpec,
            **options) -> contextlib.AbstractContextManager:
    """A context manager that writes consecutive texts into a complete file at `path`; yields a `write(text_vectors)`.

    Errors name `target`. Options: `fingerprint`, JSON values to store, and the options of the layout.
    """
    return _module(layout).segment(path, target, form, layout=layout, **options)


def join(layout: str, segments: Sequence[Path], part: Path, target: str | os.PathLike, form: OutputSpec,
         **options) -> None:
    """Join segments into the file `part`, equal to that of a single writer. A single segment is moved.

    Options as in `segment`.
    """
    if len(segments) > 1:
        _module(layout).join(segments, part, target, form, layout=layout, **options)
    else:
        place(layout, segments[0], part)


def place(layout: str, part: Path, target: str | os.PathLike) -> None:
    """Rename the output of `join`, or a segment, to its target."""
    module = _module(layout)
    if hasattr(module, "place"):
        module.place(part, target)
    else:
        replace(part, Path(os.path.realpath(target)))


def source_of(layout: str) -> type:
    """The subclass of `Embeddings` that reads files of the layout."""
    return getattr(_module(layout), LAYOUTS[layout].source)


def _module(layout: str):
    return importlib.import_module(f"{__name__}.{LAYOUTS[layout].module}")
