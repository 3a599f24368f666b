"""The subcommand `serve`."""

import dataclasses

from elmo_fast.arguments import DEFAULT_BATCH_SIZE, FREE_STATES
from elmo_fast.cli.flags import add_command, at_least, checked_type, pop_fields
from elmo_fast.environment import VERSION
from elmo_fast.serve.limits import Limits
from elmo_fast.weights.sources import DEFAULT_MODEL


def add_commands(commands) -> None:
    """Add the subcommand `serve`."""
    parser = add_command(commands, "serve", _serve, "serve embeddings over HTTP, also in the format of OpenAI's API",
                         "--model", "--precision", "--backend", "--device", "--tokenizer", model=DEFAULT_MODEL,
                         tokenizer="auto")
    parser.epilog = "Routes, limits and deployment: docs/serving.md. On SIGTERM the server finishes running requests."
    add = parser.add_argument
    add("--state", choices=FREE_STATES, default="warm", help="initial state of a text (default: %(default)s)")
    add("--host", default="127.0.0.1", help="address to listen on; 0.0.0.0 for all interfaces (default: %(default)s)")
    port = checked_type(int, "a port, 0 to 65535", lambda number: 0 <= number < 1 << 16)
    add("--port", type=port, default=8000, help="port to listen on; 0 for any free port (default: %(default)s)")
    add("--name", help="name of the model in answers (default: --model)")
    add("--api-key-file", metavar="FILE", help="file with the key that clients must send (default: no key)")
    add("--slots", type=at_least(1), default=DEFAULT_BATCH_SIZE, help="texts at a time (default: %(default)s)")
    add("--index", metavar="FILE", help="indexed corpus for the page at /")
    add = parser.add_argument_group("limits").add_argument
    for field in dataclasses.fields(Limits):
        add(f"--{field.name.replace('_', '-')}", type=at_least(1), default=field.default, metavar="N",
            help=f"{field.metadata['help']} (default: %(default)s)")


def _serve(host, port, **flags) -> None:
    from elmo_fast.embed.jobs import ModelChoice
    from elmo_fast.serve.server import run

    run(pop_fields(ModelChoice, flags), pop_fields(Limits, flags), VERSION, address=(host, port), **flags)
