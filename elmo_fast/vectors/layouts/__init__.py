"""Files of vectors: a layout is a way to store them, chosen by name or by the suffix of the file."""

import contextlib
import importlib
import os
from collections.abc import Sequence
from pathlib import Path

from elmo_fast.arguments import check_path
from elmo_fast.errors import ConfigurationError
from elmo_fast.files.atomic import check_target, replace
from elmo_fast.vectors.layouts import shards
from elmo_fast.vectors.layouts.table import LAYOUTS, is_directory
from elmo_fast.vectors.spec import OutputSpec


def check_output(layout: str, target: str | os.PathLike, form: OutputSpec, name: str = "output") -> None:
    """Raise `ConfigurationError` or `OSError` for what could not be written there, before any work is done for it."""
    module = _module(layout)
    target = check_path(name, target)
    if hasattr(module, "check"):
        module.check(target, form, name)
    if not is_directory(layout, target):
        check_target(target, name)
    elif os.path.lexists(target.rstrip(f"/{os.sep}")):
        raise ConfigurationError(f"{name}: expected a new directory, found {target} there already")
    else:
        check_target(target.rstrip(f"/{os.sep}"), name)


def segment(layout: str, path: Path, target: str | os.PathLike, form: OutputSpec,
            **options) -> contextlib.AbstractContextManager:
    """A writer, with `write(text_vectors)`, of consecutive texts into a complete file of the layout at `path`.

    Errors name `target`. Options: `fingerprint`, JSON values to keep, and those of the layout.
    """
    return _module(layout).segment(path, target, form, layout=layout, **options)


def join(layout: str, segments: Sequence[Path], part: Path, target: str | os.PathLike, form: OutputSpec,
         **options) -> None:
    """Make `part` out of segments, which may be used up: the file that one writer of all texts would have made.

    Options as in `segment`.
    """
    if is_directory(layout, target):
        shards.join(layout, segments, part, source_of(layout))
    elif len(segments) > 1:
        _module(layout).join(segments, part, target, form, layout=layout, **options)
    else:
        place(layout, segments[0], part)


def place(layout: str, part: Path, target: str | os.PathLike) -> None:
    """Rename what `join` made to its target, or a segment."""
    module = _module(layout)
    if hasattr(module, "place"):
        module.place(part, target)
    else:
        replace(part, Path(os.path.realpath(target)))


def source_of(layout: str) -> type:
    """The class that reads a file of the layout, an `Embeddings`."""
    return getattr(_module(layout), LAYOUTS[layout].source)


def _module(layout: str):
    return importlib.import_module(f"{__name__}.{LAYOUTS[layout].module}")
