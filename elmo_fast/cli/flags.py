"""Flags that several subcommands share, and argparse types of their values."""

import argparse
import contextlib
import dataclasses
import math
import re
import sys
from collections.abc import Callable, Iterable
from typing import Any

from elmo_fast.arguments import BACKENDS, STATES, TOKENIZERS, listed
from elmo_fast.engine.precision import PRECISIONS
from elmo_fast.text.records import FORMATS
from elmo_fast.weights.sources import DEFAULT_MODEL, MODEL_NAMES

_NUMBER = r"[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?"
_NUMBERS = re.compile(rf"{_NUMBER}(,{_NUMBER})*,?", re.IGNORECASE).fullmatch
_MODEL = f"{', '.join(MODEL_NAMES)}, a directory, a ZIP or tar, or a URL"
SHARED: dict[str, dict[str, Any]] = {
    "model": {"nargs": "?", "metavar": "MODEL", "help": f"{_MODEL} (default: {DEFAULT_MODEL})"},
    "--model": {"help": f"{_MODEL} (default: {DEFAULT_MODEL})"},
    "--options-file": {"metavar": "FILE", "help": "options.json, a path or URL, given with --weight-file"},
    "--weight-file": {"metavar": "FILE", "help": "HDF5 weights, a path or URL"},
    "--state": {"choices": STATES, "default": "carry", "help": "initial state of a sentence (default: %(default)s)"},
    "--precision": {"choices": PRECISIONS, "default": "highest", "help": "numerical precision (default: %(default)s)"},
    "--backend": {"choices": BACKENDS, "default": "auto", "help": "implementation of the operations (default: "
                  "%(default)s)"},
    "--allow-nonfinite": {"action": "store_true", "help": "load weights that are NaN or infinite (otherwise an error)"},
    "--format": {"choices": FORMATS, "help": "format of the text (default: by suffix)"},
    "--field": {"metavar": "NAME", "help": "column or key of the texts in "
                f"{listed([row.title for row in FORMATS.values() if row.has_field], 'and')} (default: text)"},
    "--tokenizer": {"default": "whitespace", "metavar": "NAME", "help": f"{', '.join(TOKENIZERS)} or "
                    "package.module:function; auto splits tokenized texts at whitespace, raw ones by penn (default: "
                    "%(default)s)"},
    "--quiet": {"dest": "progress", "action": "store_false", "help": "print neither progress nor what was written"},
}
FILES_HELP = (f"or, by suffix, {listed([row.title for kind, row in FORMATS.items() if kind != 'text'])}; also "
              "compressed files and globs")
FORMATS_HELP = f"{FILES_HELP}; - is stdin"
DEVICE_HELP = "cpu, cuda, cuda:1 (default: {})"
TEXTS = "--format", "--field", "--tokenizer"
MODEL_FILES = "--model", "--options-file", "--weight-file"
NUMERICS = "--precision", "--backend", "--allow-nonfinite"


def add_command(commands, name: str, run: Callable[..., Iterable[str] | None] | str, summary: str, *shared: str,
                **defaults: Any) -> argparse.ArgumentParser:
    """Add a subcommand with the flags `shared`, whose default values `defaults` may replace.

    `run`, a function or its name `module:function`, may return lines to print.
    """
    parser = commands.add_parser(name, help=summary, description=summary[0].upper() + summary[1:] + ".")
    parser.add_argument("-v", "--verbose", action="store_true", default=argparse.SUPPRESS, help=argparse.SUPPRESS)
    for flag in shared:
        if flag == "--device":
            _add_device(parser)
        else:
            parser.add_argument(flag, **SHARED[flag])
    parser.set_defaults(run=run, **defaults)
    return parser


def _add_device(parser: argparse.ArgumentParser) -> None:
    group = parser.add_mutually_exclusive_group()
    parser.set_defaults(device="cpu")
    group.add_argument("--device", default=argparse.SUPPRESS, metavar="NAME", help=DEVICE_HELP.format("cpu"))
    number = checked_type(int, "-1 for the CPU or the number of a GPU", lambda value: value >= -1)
    group.add_argument("--cuda-device", dest="device", default=argparse.SUPPRESS, metavar="N", help="number of the "
                       "GPU, or -1 for the CPU: AllenNLP's flag",
                       type=lambda text: "cpu" if (value := number(text)) < 0 else f"cuda:{value}")


def pop_fields(job: type, flags: dict[str, Any]) -> Any:
    """Make a dataclass from the flags with the names of its fields, and remove them from `flags`."""
    return job(**{field.name: flags.pop(field.name) for field in dataclasses.fields(job) if field.name in flags})


def checked_type(kind: Callable[[str], Any], expected: str, accepts: Callable[[Any], bool]) -> Callable[[str], Any]:
    """Make an argparse type that converts with `kind` and checks with `accepts`; errors say what is `expected`."""
    def parse(text: str) -> Any:
        with contextlib.suppress(ValueError):
            if accepts(value := kind(text)):
                return value
        raise argparse.ArgumentTypeError(f"expected {expected}, got {text!r}")
    return parse


def at_least(least: int) -> Callable[[str], int]:
    """Make an argparse type for integers of at least `least`."""
    return checked_type(int, f"an integer of at least {least}", lambda value: value >= least)


def add_weights(group, meaning: str, dest: str = "weights") -> None:
    """Add the flag `--weights`, whose numbers `join_weights` has joined by commas."""
    factors = checked_type(lambda text: tuple(map(float, text.split(","))), "numbers, as 0.2,0.3,0.5 or 0.2 0.3 0.5",
                           lambda numbers: bool(numbers) and all(map(math.isfinite, numbers)))
    group.add_argument("--weights", dest=dest, type=factors, metavar="W", help=meaning)


def join_weights(arguments: Iterable[str]) -> list[str]:
    """Arguments of a command in which the numbers after `--weights` are one argument: `--weights=0.2,0.3,0.5`.

    Numbers are separated by commas, spaces or both. argparse alone would also take positional arguments after them.
    """
    words: list[str] = []
    may_go_on = False
    for argument in arguments:
        if may_go_on and _NUMBERS(argument):
            words[-1] += ("=" if words[-1] == "--weights" else ",") + argument.rstrip(",")
            may_go_on = "," not in argument.rstrip(",")  # a whole list is not continued
        else:
            may_go_on = argument == "--weights"
            words.append(argument)
    return words


def say(line: str) -> None:
    """Print a line on stderr, apart from the results."""
    print(f"elmo-fast: {line}", file=sys.stderr)
