"""Flags that several subcommands share, each declared once, and the types of their values."""

import argparse
from collections.abc import Callable
from typing import Any

from elmo_fast.choices import BACKENDS, PRECISIONS, STATES
from elmo_fast.model.sources import DEFAULT_MODEL, MODEL_NAMES

_MODEL = f"{', '.join(MODEL_NAMES)}, a directory, a ZIP or a URL"
_SHARED: dict[str, dict[str, Any]] = {
    "MODEL": {"dest": "model", "nargs": "?", "metavar": "MODEL", "help": _MODEL},
    "--model": {"help": f"{_MODEL} (default: {DEFAULT_MODEL})"},
    "--options-file": {"metavar": "FILE", "help": "options.json, a path or URL, given with --weight-file"},
    "--weight-file": {"metavar": "FILE", "help": "HDF5 weights, a path or URL"},
    "--state": {"choices": STATES, "default": "carry", "help": "initial state of a sentence (default: %(default)s)"},
    "--precision": {"choices": PRECISIONS, "default": "highest", "help": "(default: %(default)s)"},
    "--backend": {"choices": BACKENDS, "default": "auto", "help": "(default: %(default)s)"},
    "--cuda-device": {"type": int, "default": -1, "help": "number of the GPU; -1 is the CPU (default)"},
    "--quiet": {"action": "store_true", "help": "no progress bar"},
}


def add_command(commands, name: str, run: Callable[[argparse.Namespace], None], summary: str,
                *shared: str, **defaults: Any) -> argparse.ArgumentParser:
    """Add a subcommand that calls `run`, with some of the shared flags; `defaults` replace theirs."""
    parent = argparse.ArgumentParser(add_help=False)
    for flag in shared:
        keywords = _SHARED[flag]
        parent.add_argument(*([flag] if flag.startswith("-") else []), **keywords)
    description = summary[0].upper() + summary[1:] + "."
    parser = commands.add_parser(name, help=summary, description=description, parents=[parent])
    parser.set_defaults(run=run, **defaults)
    return parser


def at_least(least: int) -> Callable[[str], int]:
    """An argparse type: an integer of at least `least`."""
    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = least - 1
        if value < least:
            raise argparse.ArgumentTypeError(f"expected an integer of at least {least}, got {text!r}")
        return value
    return parse
