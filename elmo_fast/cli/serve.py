"""The subcommand `serve`."""

import dataclasses

import elmo_fast
from elmo_fast.arguments import DEFAULT_BATCH_SIZE, FREE_STATES, TOKENIZERS
from elmo_fast.cli.flags import add_command, at_least, taken
from elmo_fast.model.sources import DEFAULT_MODEL
from elmo_fast.serve.limits import Limits


def add_commands(commands) -> None:
    """Add the subcommand to an argparse collection; it sets `run`, a function of the parsed arguments."""
    parser = add_command(commands, "serve", _serve, "serve embeddings over HTTP, with a route in OpenAI's shape",
                         "--model", "--precision", "--backend", "--cuda-device", model=DEFAULT_MODEL)
    parser.epilog = "Routes, limits and deployment: docs/serving.md. SIGTERM ends it when running requests have ended."
    add = parser.add_argument
    add("--state", choices=FREE_STATES, default="warm", help="initial state of a text (default: %(default)s)")
    add("--host", default="127.0.0.1", help="address to listen at; 0.0.0.0 is all of them (default: %(default)s)")
    add("--port", type=int, default=8000, help="0 takes any free port (default: %(default)s)")
    add("--name", help="the model's name in answers (default: that of --model)")
    add("--api-key-file", metavar="FILE", help="a file with the key that clients have to send (default: none needed)")
    add("--slots", type=at_least(1), default=DEFAULT_BATCH_SIZE, help="texts at a time (default: %(default)s)")
    add("--tokenizer", default=TOKENIZERS[0], help="of texts that come as strings: whitespace, simple (words and "
        "punctuation apart), or package.module:function (default: %(default)s)")
    add("--index", metavar="FILE", help="indexed corpus for the page at /")
    add = parser.add_argument_group("limits").add_argument
    for field in dataclasses.fields(Limits):
        add(f"--{field.name.replace('_', '-')}", type=at_least(1), default=field.default, metavar="N",
            help=f"{field.metadata['help']} (default: %(default)s)")


def _serve(**flags) -> None:
    from elmo_fast.embed.jobs import ModelChoice
    from elmo_fast.serve.server import ServeJob, run

    run(ServeJob(taken(ModelChoice, flags), taken(Limits, flags), version=elmo_fast.__version__, **flags))
