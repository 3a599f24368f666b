"""Flags that several subcommands share, each declared once, the types of their values, and the input file."""

import argparse
import contextlib
import sys
from collections.abc import Callable, Iterable
from typing import IO, Any

from elmo_fast import stops
from elmo_fast.choices import BACKENDS, PRECISIONS, STATES
from elmo_fast.model.options import ConfigurationError
from elmo_fast.model.sources import DEFAULT_MODEL, MODEL_NAMES

_MODEL = f"{', '.join(MODEL_NAMES)}, a directory, a ZIP or a URL"
_SHARED: dict[str, dict[str, Any]] = {
    "model": {"nargs": "?", "metavar": "MODEL", "help": _MODEL},
    "--model": {"help": f"{_MODEL} (default: {DEFAULT_MODEL})"},
    "--options-file": {"metavar": "FILE", "help": "options.json, a path or URL, given with --weight-file"},
    "--weight-file": {"metavar": "FILE", "help": "HDF5 weights, a path or URL"},
    "--state": {"choices": STATES, "default": "carry", "help": "initial state of a sentence (default: %(default)s)"},
    "--precision": {"choices": PRECISIONS, "default": "highest", "help": "(default: %(default)s)"},
    "--backend": {"choices": BACKENDS, "default": "auto", "help": "(default: %(default)s)"},
    "--cuda-device": {"type": int, "default": -1, "help": "number of the GPU; -1 is the CPU (default)"},
    "--quiet": {"dest": "progress", "action": "store_false", "help": "no progress bar"},
}
NUMERICS = "--precision", "--backend"


def add_command(commands, name: str, run: Callable[..., Iterable[str] | None] | str, summary: str, *shared: str,
                **defaults: Any) -> argparse.ArgumentParser:
    """Add a subcommand with shared flags; `defaults` replace theirs. `run` or `module:function` may return lines."""
    parser = commands.add_parser(name, help=summary, description=summary[0].upper() + summary[1:] + ".")
    for flag in shared:
        parser.add_argument(flag, **_SHARED[flag])
    parser.set_defaults(run=run, **defaults)
    return parser


def value_of(kind: Callable[[str], Any], expected: str, accepts: Callable[[Any], bool]) -> Callable[[str], Any]:
    """An argparse type: what `kind` reads and `accepts` admits; `expected` are the words for it."""
    def parse(text: str) -> Any:
        with contextlib.suppress(ValueError):
            if accepts(value := kind(text)):
                return value
        raise argparse.ArgumentTypeError(f"expected {expected}, got {text!r}")
    return parse


def at_least(least: int) -> Callable[[str], int]:
    """An argparse type: an integer of at least `least`."""
    return value_of(int, f"an integer of at least {least}", lambda value: value >= least)


def open_input(name: str) -> IO[str]:
    """A text file, or stdin for -; a stop ends the wait for it."""
    if name == "-" and sys.stdin is None:
        raise ConfigurationError("input file: expected text on stdin, which is closed")
    file = sys.stdin.fileno() if name == "-" else name
    return stops.interruptible(open)(file, encoding="utf-8", closefd=name != "-")
