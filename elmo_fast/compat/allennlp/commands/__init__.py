"""`allennlp.commands`: `main`, with the subcommand `elmo`."""

import argparse
from collections.abc import Mapping
from typing import Any

from elmo_fast.compat.allennlp.registry import import_submodules

__all__ = ["main"]


def main(prog: str | None = None, subcommand_overrides: Mapping[str, Any] | None = None) -> None:
    """Run the subcommand `elmo` of the command line. From AllenNLP's `main`, without its other subcommands.

    Exits with status 2 for bad usage; later errors are raised. Without a subcommand it prints the help.
    `subcommand_overrides` are more subcommands by name, with AllenNLP's method `add_subparser(name, parsers)`.
    """
    from elmo_fast.compat.allennlp.commands.elmo import Elmo

    parser = argparse.ArgumentParser(prog=prog, description="AllenNLP's ELMo command, run by elmo-fast")
    parsers = parser.add_subparsers(title="Commands", metavar="COMMAND")
    for name, subcommand in {"elmo": Elmo(), **(subcommand_overrides or {})}.items():
        subcommand.add_subparser(name, parsers).add_argument("--include-package", action="append", default=[],
                                                             help="a package to import first; repeatable")
    arguments = parser.parse_args()
    if not hasattr(arguments, "func"):
        parser.print_help()
        return
    for package in arguments.include_package:
        import_submodules(package)
    arguments.func(arguments)
