"""The command `elmo-fast`. A subcommand calls one function, whose module is imported when the subcommand runs."""

import argparse
import difflib
import errno
import importlib
import io
import itertools
import logging
import os
import pkgutil
import re
import sys
from collections.abc import Callable, Sequence

import elmo_fast
from elmo_fast.environment import extra
from elmo_fast.errors import UnavailableError
from elmo_fast.files import stops

DONE, FAILED, REFUSED = 0, 1, 2
COMMANDS = {  # module -> its subcommands
    "embed": ["embed"], "cache": ["cache"], "info": ["info", "models", "doctor"], "pictures": ["compare", "nearest"],
    "score": ["score", "substitutes"], "train": ["vocab", "train", "perplexity", "export", "import-tf"],
    "serve": ["serve"], "seqvec": ["seqvec"], "bench": ["bench"]}
_FLAG = re.compile("--?[A-Za-z]").match
_REFUSALS = (ValueError, FileNotFoundError, IsADirectoryError, NotADirectoryError, PermissionError)
_UNOPENED = (errno.ELOOP, errno.ENXIO, errno.ENAMETOOLONG)  # a link to itself, a socket, a name of 256 letters


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a subcommand and return its exit status (see `run_command`)."""
    return run_command(lambda: _run(arguments))


def run_command(run: Callable[[], None], program: str = "elmo-fast") -> int:
    """Run a command and return its exit status: 0 for success, 2 for bad usage or input, 1 for other failures.

    A failure prints one line on stderr, and below it a line for each address of a model that cannot be downloaded.
    """
    _write_utf8()
    try:
        with stops.stoppable(terminate=True, in_command=True):
            run()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except KeyboardInterrupt as interrupt:
        return _report(program, str(interrupt) or "interrupted; no output was left behind", FAILED)
    except (ValueError, OSError, ImportError, RuntimeError, MemoryError) as error:
        is_refusal = isinstance(error, _REFUSALS) or getattr(error, "errno", None) in _UNOPENED
        return _report(program, error, REFUSED if is_refusal else FAILED)
    return DONE


def make_parser(command: str | None = None) -> argparse.ArgumentParser:
    """Make the parser of a subcommand, by default of all, whose modules take a tenth of a second to import.

    A subcommand sets `run`, a function of its arguments or the name of one.
    """
    parser = Parser(prog="elmo-fast", description="Run and train ELMo models.")
    parser.add_argument("--version", action="version", version=f"elmo-fast {elmo_fast.__version__}")
    parser.add_argument("-v", "--verbose", action="store_true", help="log which backends are unavailable, and why")
    parser.add_argument("--print-completion", action=_PrintCompletion, choices=("bash", "zsh", "tcsh"),
                        default=argparse.SUPPRESS, help="print a script by which the shell completes commands, "
                        "flags and files")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    modules = [module for module, names in COMMANDS.items() if command in names] or COMMANDS
    for module in modules:
        importlib.import_module(f"elmo_fast.cli.{module}").add_commands(commands)
    return parser


def _run(arguments: Sequence[str] | None) -> None:
    from elmo_fast.cli.flags import join_weights

    words = join_weights(sys.argv[1:] if arguments is None else arguments)
    parser = make_parser(next((word for word in words if not word.startswith("-")), None))
    parsed = vars(parser.parse_args(words))
    if "run" not in parsed:
        parser.print_help(sys.stderr)
        parser.exit(REFUSED)
    run, verbose = parsed.pop("run"), parsed.pop("verbose")
    logging.basicConfig(level=logging.INFO if verbose else logging.WARNING, format="%(levelname)s: %(message)s")
    run = pkgutil.resolve_name(run) if isinstance(run, str) else run
    for line in run(**parsed) or ():
        _write(f"{line}\n")
    _write("", flush=True)


def _write(text: str, flush: bool = False) -> None:
    """Write to stdout. An error names it, and drops the rest of its buffer, which would fail again at the exit."""
    try:
        print(text, end="", flush=flush)
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        error.filename = "stdout"
        raise


def _write_utf8() -> None:
    """Encode output in UTF-8, as all texts are; on Windows, files and pipes default to the system's code page."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and "PYTHONIOENCODING" not in os.environ:
            stream.reconfigure(encoding="utf-8", errors=stream.errors)


def _report(program: str, error: BaseException | str, status: int) -> int:
    first, *lines = str(error).splitlines() if isinstance(error, UnavailableError) else [str(error)]
    print(f"{program}: error: {' '.join(first.split()) or type(error).__name__}", *lines, sep="\n", file=sys.stderr)
    return status


class _PrintCompletion(argparse.Action):
    """Prints the script of the library shtab. A value that is neither converted nor a choice is completed as a file."""

    def __call__(self, parser, namespace, shell, flag=None):
        with extra("completion"):
            import shtab
        (commands,) = parser._subparsers._group_actions
        for action in itertools.chain.from_iterable(command._actions for command in commands.choices.values()):
            if action.nargs != 0 and action.type is None and action.choices is None:
                action.complete = shtab.FILE
        _write(f"{shtab.complete(parser, shell)}\n", flush=True)
        parser.exit()


class Parser(argparse.ArgumentParser):
    """A parser that reports errors in one line, without the usage, which would push the reason off the screen."""

    program = "elmo-fast"
    _words: Sequence[str] = ()

    def _check_value(self, action: argparse.Action, value) -> None:
        """argparse's check; for an unknown command the error names the nearest one, else all of them."""
        if isinstance(action, argparse._SubParsersAction) and value not in action.choices:
            near = difflib.get_close_matches(value, action.choices, n=1) or [
                name for name in action.choices if value and name.startswith(value)]
            hint = f"did you mean {near[0]}?" if near else f"expected one of {', '.join(action.choices)}"
            raise argparse.ArgumentError(None, f"unknown command {value!r}: {hint}")
        super()._check_value(action, value)

    def parse_known_args(self, args=None, namespace=None):
        """argparse's method, except that a subcommand refuses what it does not know itself."""
        self._words = list(sys.argv[1:] if args is None else args)
        parsed, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return parsed, unknown

    def _nearest(self) -> list[str]:
        """The flags nearest to those that the command does not have."""
        known, flags = self._option_string_actions, [word.partition("=")[0] for word in self._words if _FLAG(word)]
        unknown = [flag for flag in flags if flag[:2] not in known and not any(name.startswith(flag) for name in known)]
        names = {name.lstrip("-"): name for name in known}
        return [names[near] for flag in unknown for near in difflib.get_close_matches(flag.lstrip("-"), names, n=1)]

    def error(self, message: str):
        unknown = message.removeprefix("unrecognized arguments: ").split() if "unrecognized" in message else []
        if nearest := self._nearest():
            message += f"; did you mean {', '.join(nearest)}?"
        elif unknown and self._subparsers is not None:
            message += "; flags of a command come after its name"
        elif any(os.sep in name or "." in name for name in unknown if not name.startswith("-")):
            message += "; quote a glob ('*.txt'), else the shell replaces it by the names of its files"
        self.exit(REFUSED, f"{self.program}: error: {message} (see {self.prog} --help)\n")
