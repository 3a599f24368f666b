"""Flags that several subcommands share, each declared once, and the types of their values."""

import argparse
import contextlib
import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

from elmo_fast.arguments import BACKENDS, STATES, listed
from elmo_fast.model.sources import DEFAULT_MODEL, MODEL_NAMES
from elmo_fast.ops.precision import PRECISIONS
from elmo_fast.text.records import FORMATS

_MODEL = f"{', '.join(MODEL_NAMES)}, a directory, a ZIP or tar, or a URL"
_SHARED: dict[str, dict[str, Any]] = {
    "model": {"nargs": "?", "metavar": "MODEL", "help": _MODEL},
    "--model": {"help": f"{_MODEL} (default: {DEFAULT_MODEL})"},
    "--options-file": {"metavar": "FILE", "help": "options.json, a path or URL, given with --weight-file"},
    "--weight-file": {"metavar": "FILE", "help": "HDF5 weights, a path or URL"},
    "--state": {"choices": STATES, "default": "carry", "help": "initial state of a sentence (default: %(default)s)"},
    "--precision": {"choices": PRECISIONS, "default": "highest", "help": "(default: %(default)s)"},
    "--backend": {"choices": BACKENDS, "default": "auto", "help": "(default: %(default)s)"},
    "--cuda-device": {"type": int, "default": -1, "help": "number of the GPU; -1 is the CPU (default)"},
    "--allow-nonfinite": {"action": "store_true", "help": "load weights that are NaN or infinite, which are an error "
                          "otherwise"},
    "--quiet": {"dest": "progress", "action": "store_false", "help": "no progress bar"},
}
# Every format of input files but text.
FORMATS_HELP = (f"by its suffix {listed([row.title for kind, row in FORMATS.items() if kind != 'text'])}, also "
                "compressed; a glob; - is stdin")
MODEL_FILES = "--model", "--options-file", "--weight-file"
NUMERICS = "--precision", "--backend", "--allow-nonfinite"


def add_command(commands, name: str, run: Callable[..., Iterable[str] | None] | str, summary: str, *shared: str,
                **defaults: Any) -> argparse.ArgumentParser:
    """Add a subcommand with shared flags; `defaults` replace theirs. `run` or `module:function` may return lines."""
    parser = commands.add_parser(name, help=summary, description=summary[0].upper() + summary[1:] + ".")
    for flag in shared:
        parser.add_argument(flag, **_SHARED[flag])
    parser.set_defaults(run=run, **defaults)
    return parser


def shared(flag: str) -> dict[str, Any]:
    """Arguments of `add_argument` for a shared flag of a parser that `add_command` did not make."""
    return dict(_SHARED[flag])


def taken(job: type, flags: dict[str, Any]) -> Any:
    """A dataclass made of the flags that are named as its fields; they are removed from `flags`."""
    return job(**{field.name: flags.pop(field.name) for field in dataclasses.fields(job) if field.name in flags})


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
