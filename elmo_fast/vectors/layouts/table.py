"""The table of layouts, and functions that need only the table.

To add a layout, add a module to this folder and a row to `LAYOUTS`. The module has `segment`, `join` and a subclass of
`Embeddings` that reads files; if an output has several files, also `check` and `place`.
"""

import os
from pathlib import Path
from typing import Any, NamedTuple

from elmo_fast.arguments import check_choice, listed
from elmo_fast.errors import ConfigurationError
from elmo_fast.files.hdf5 import MAGIC
from elmo_fast.vectors.spec import OutputSpec


class Layout(NamedTuple):
    """Properties of a layout that are known without its module, which may need an optional library.

    `source` is the class that reads files; `magic` are the first bytes of a file.
    """

    module: str
    source: str
    kind: str  # kind of file, for messages
    suffixes: tuple[str, ...]
    magic: bytes
    is_any_suffix_taken: bool = False  # except suffixes of other layouts
    can_be_in_parts: bool = False  # a directory of files
    has_unique_keys: bool = False
    are_targets_keys: bool = False  # with targets, keys are the target words
    options: tuple[str, ...] = ()  # options of `segment` and `join` besides `fingerprint`


LAYOUTS = {
    "allennlp": Layout("allennlp", "AllennlpSource", "HDF5", (".h5", ".hdf5"), MAGIC, is_any_suffix_taken=True,
                       has_unique_keys=True, options=("forget_sentences", "use_sentence_keys", "original_ids")),
    "parquet": Layout("columns", "ColumnsSource", "Parquet", (".parquet",), b"PAR1", can_be_in_parts=True),
    "arrow": Layout("columns", "ColumnsSource", "Arrow", (".arrow", ".feather"), b"ARROW1", can_be_in_parts=True),
    "npz": Layout("arrays", "NpzSource", ".npz", (".npz",), b"PK", has_unique_keys=True, are_targets_keys=True),
    "npy": Layout("arrays", "NpySource", ".npy", (".npy",), b"\x93NUMPY")}
IN_PARTS = tuple(name for name, row in LAYOUTS.items() if row.can_be_in_parts)
SUFFIXES = tuple(dict.fromkeys(suffix for row in LAYOUTS.values() for suffix in row.suffixes))


def layout_of(target: str | os.PathLike, layout: str | None = None) -> str:
    """The name of a file's layout: `layout` if given, else by suffix, `allennlp` for a name without suffix.

    `ConfigurationError` for a suffix of another layout, and without `layout` for an unknown suffix.
    """
    suffix = Path(target).suffix
    if layout is None:
        if os.fspath(target).endswith(("/", os.sep)):
            raise ConfigurationError(f"layout: expected {listed(IN_PARTS)} for a directory, got none for "
                                     f"{os.fspath(target)}")
        by_suffix = next((name for name, row in LAYOUTS.items() if suffix in row.suffixes), None)
        if suffix and not by_suffix:
            raise ConfigurationError(f"output: expected a name that ends in {listed(SUFFIXES)}, or without a suffix "
                                     f"(HDF5), or a layout beside it (--layout), got {os.fspath(target)}")
        return by_suffix or "allennlp"
    row = LAYOUTS[check_choice("layout", layout, tuple(LAYOUTS), ConfigurationError)]
    is_taken = row.is_any_suffix_taken or is_directory(layout, target)
    if suffix not in row.suffixes and (suffix in SUFFIXES or not is_taken):
        raise ConfigurationError(f"layout: expected a file that ends in {' or '.join(row.suffixes)} for {layout}, got "
                                 f"{os.fspath(target)}")
    return layout


def is_directory(layout: str, target: str | os.PathLike) -> bool:
    """Whether the target is a directory of files: its name has no suffix or ends in a slash."""
    return layout in IN_PARTS and (os.fspath(target).endswith(("/", os.sep)) or not Path(target).suffix)


def has_unique_keys(layout: str, form: OutputSpec) -> bool:
    """Whether the keys of the texts in a file must be unique."""
    row = LAYOUTS[layout]
    return row.has_unique_keys and not (row.are_targets_keys and form.targets is not None)


def options_of(layout: str, **options: Any) -> dict[str, Any]:
    """Select the options that the layout has."""
    return {name: value for name, value in options.items() if name in LAYOUTS[layout].options}


def by_first_bytes(start: bytes) -> str | None:
    """The name of the layout whose files begin with `start`, or None."""
    return next((name for name, row in LAYOUTS.items() if start.startswith(row.magic)), None)
