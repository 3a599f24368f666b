"""The subcommands `score` and `substitutes`, which read the language model."""

from elmo_fast.arguments import DIRECTIONS
from elmo_fast.cli.flags import FORMATS_HELP, NUMERICS, add_command
from elmo_fast.model.sources import DEFAULT_MODEL


def add_commands(commands) -> None:
    """Add the subcommands to an argparse collection; each sets `run`, a function of the parsed arguments."""
    shared, defaults = ("--model", "--state", *NUMERICS), {"model": DEFAULT_MODEL, "state": "warm"}
    score = add_command(commands, "score", "elmo_fast.embed.scoring:score_file", "print log-probabilities of the "
                        "sentences of a text, in both directions", *shared, **defaults)
    substitutes = add_command(commands, "substitutes", "elmo_fast.embed.scoring:substitute_file", "print the likeliest "
                              "words in place of each token of a text", *shared, **defaults)
    for add in (score.add_argument, substitutes.add_argument):
        add("input_file", metavar="INPUT", help="UTF-8 text, one tokenized sentence a line, or "
            f"{FORMATS_HELP}")
        add("--softmax-file", metavar="FILE", help="HDF5 softmax, as export --softmax writes it (default: softmax.hdf5 "
            "beside the weights)")
        add("--vocab-file", metavar="FILE", help="its vocabulary (default: vocab.txt beside the weights)")
    score.add_argument("--tokens", action="store_true", help="a line for each token")
    add = substitutes.add_argument
    add("--top", type=int, default=10, metavar="K", help="words a token (default: %(default)s)")
    add("--word", dest="words", action="append", metavar="WORD", help="only in place of WORD; repeatable")
    add("--direction", choices=DIRECTIONS, default="both", help="(default: %(default)s)")
