"""Accepted values and defaults of arguments, and their checks.

Imports no torch: the command's help reads it.
"""

import dataclasses
import os
from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral
from typing import Any, Literal, TypeVar, get_args

_Options = TypeVar("_Options")
_Choice = TypeVar("_Choice", bound=str)

FreeState = Literal["zero", "warm"]  # a text's vectors then depend on that text only, not on order or batch mates
StateName = Literal["carry", FreeState]
LayerName = Literal["all", "top", "average"]
Layers = LayerName | int | Sequence[float]
Pool = Literal["mean", "max", "first_last"]
Precision = Literal["highest", "high", "medium", "low"]

BACKENDS = ("auto", "reference", "torch", "native")
ACTIVATIONS = ("relu", "tanh")  # implemented in ops/char_cnn/activations.py
STATES: tuple[str, ...] = get_args(StateName)
FREE_STATES: tuple[str, ...] = get_args(FreeState)
LAYERS: tuple[str, ...] = get_args(LayerName)
UNKNOWN = ("encode", "error", "unk")  # for words outside a token table: encode, raise an error, or use <UNK>'s vector
STORAGES = ("float32", "float16")  # of stored vectors
DIRECTIONS = ("both", "forward", "backward")  # of the language model that gives substitutes
TOKENIZERS = ("auto", "whitespace", "penn", "simple")
SEQVEC_LAYERS = ("sum", "all", "CNN", "LSTM1", "LSTM2")
# LSTM cells, projection and highway layers of the published models.
SIZES = {"small": (1024, 128, 1), "medium": (2048, 256, 1), "original": (4096, 512, 2)}

# Larger than in any known model: without a limit a wrong number costs hours and all memory before another check fails.
MOST_CELLS = 1 << 20  # in an LSTM layer
DEFAULT_BATCH_SIZE, MOST_SENTENCES = 64, 1 << 20  # sentences in a batch
SEQVEC_BATCH_SIZE = 15000  # residues


def shown(value: object) -> str:
    """The value as text for a message: one line of at most 80 characters, also for arrays."""
    return " ".join(f"{value!r:.400}".split())[:80]


def listed(words: Iterable[str], conjunction: str = "or") -> str:
    """The words as an enumeration: `a, b or c`."""
    *first, last = words
    return f"{', '.join(first)} {conjunction} {last}" if first else last


def counted(number: int, noun: str) -> str:
    """`1 text`, `1,234 texts`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def check_choice(name: str, value: _Choice, choices: Sequence[str], error: type[ValueError] = ValueError) -> _Choice:
    """Return the value; an error names the argument if the value is not in `choices`."""
    if not isinstance(value, str) or value not in choices:
        raise error(f"{name}: expected one of {', '.join(choices)}, got {shown(value)}")
    return value


def check_count(name: str, value: int, error: type[ValueError] = ValueError, most: int | None = None) -> int:
    """Return the value; an error names the argument unless the value is an integer from 1 to `most`."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < 1:
        raise error(f"{name}: expected an integer of at least 1, got {shown(value)}")
    if most is not None and value > most:
        raise error(f"{name}: expected an integer of at most {most:,}, got {value:,}")
    return value


def gathered(kind: type[_Options], options: Mapping[str, Any], base: _Options | None = None) -> _Options:
    """The dataclass `kind` of keyword arguments, which replace the fields of `base`, by default the fields' defaults.

    `TypeError` names the nearest field for a name that is not a field.
    """
    names = [field.name for field in dataclasses.fields(kind)]
    for name in options:
        if name not in names:
            from difflib import get_close_matches

            nearest, = get_close_matches(name, names, n=1, cutoff=0)
            raise TypeError(f"{name}: expected one of the options {', '.join(names)}, got another; did you mean "
                            f"{nearest}?")
    return kind(**options) if base is None else dataclasses.replace(base, **options)


def check_path(name: str, value: str | os.PathLike, error: type[ValueError] = ValueError) -> str:
    """Return `local_path` of the value; an error names the argument unless the value is a string or a path of text."""
    if not isinstance(value, (str, os.PathLike)) or not isinstance(os.fspath(value), str) or "\0" in os.fspath(value):
        raise error(f"{name}: expected a path or URL, got {shown(value)}")
    return local_path(value)


def check_file(name: str, value: str | os.PathLike, error: type[ValueError] = ValueError) -> str:
    """As `check_path`, for a file to read: `OSError` names the argument for a directory and for a missing file."""
    path = check_path(name, value, error)
    if os.path.isdir(path):
        raise IsADirectoryError(f"{name}: expected a file, got the directory {path}")
    if not os.path.exists(path):
        raise FileNotFoundError(f"{name}: expected a file, found nothing at {path}")
    return path


def local_path(value: str | os.PathLike) -> str:
    """The path as a string: `~` or `~user` at its beginning becomes the home directory, a `file:` URL becomes its path.

    Other URLs are unchanged.
    """
    path = os.fspath(value)
    if path.startswith("file:/") and "::" not in path:
        from urllib.request import url2pathname  # takes milliseconds, and the command's help must start fast

        path = url2pathname(path.removeprefix("file:").removeprefix("//localhost").removeprefix("//"))
    return os.path.expanduser(path)
