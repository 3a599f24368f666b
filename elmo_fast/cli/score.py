"""The subcommands `score` and `substitutes`, which use the language model's softmax."""

from elmo_fast.arguments import DIRECTIONS
from elmo_fast.cli.flags import FORMATS_HELP, NUMERICS, TEXTS, add_command
from elmo_fast.weights.sources import DEFAULT_MODEL


def add_commands(commands) -> None:
    """Add the subcommands `score` and `substitutes`."""
    shared = "--model", "--state", *TEXTS, *NUMERICS, "--device"
    defaults = {"model": DEFAULT_MODEL, "state": "warm"}
    score = add_command(commands, "score", "elmo_fast.embed.scoring:score_file", "print log-probabilities of the "
                        "sentences of a text, in both directions", *shared, **defaults)
    substitutes = add_command(commands, "substitutes", "elmo_fast.embed.scoring:substitute_file", "print the most "
                              "likely substitutes of every token of a text", *shared, **defaults)
    for add in (score.add_argument, substitutes.add_argument):
        add("input_file", metavar="INPUT", help=f"UTF-8 text, one tokenized sentence per line; {FORMATS_HELP}")
        add("--softmax-file", metavar="FILE", help="HDF5 softmax, written by export --softmax (default: softmax.hdf5 "
            "beside the weights)")
        add("--vocab-file", metavar="FILE", help="vocabulary of the softmax (default: vocab.txt beside the weights)")
    score.add_argument("--tokens", action="store_true", help="print a line per token")
    add = substitutes.add_argument
    add("--top", type=int, default=10, metavar="K", help="words per token (default: %(default)s)")
    add("--word", dest="words", action="append", metavar="WORD", help="only print substitutes of WORD; repeatable")
    add("--direction", choices=DIRECTIONS, default="both", help="direction of the language model "
        "(default: %(default)s)")
