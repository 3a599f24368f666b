"""The subcommands `score` and `substitutes`: their arguments, and the functions they call."""

import argparse

from elmo_fast.embed.scoring import load_head, score_lines, substitute_lines
from elmo_fast.model.softmax_head import DIRECTIONS
from elmo_fast.model.sources import DEFAULT_MODEL, MODEL_NAMES
from elmo_fast.model.states import STATES
from elmo_fast.ops.backend import BACKENDS
from elmo_fast.ops.precision import PRECISIONS


def add_commands(commands) -> None:
    """Add the two subcommands to an argparse collection; each sets `run`, a function of the parsed arguments."""
    for name, add, run, summary in (
        ("score", _add_score, _score, "print log-probabilities of the sentences of a text, in both directions"),
        ("substitutes", _add_substitutes, _substitutes, "print the likeliest words in place of each token of a text"),
    ):
        parser = commands.add_parser(name, help=summary, description=summary[0].upper() + summary[1:] + ".")
        parser.add_argument("input_file", metavar="INPUT", type=argparse.FileType(encoding="utf-8"),
                            help="text file, UTF-8, one tokenized sentence a line; - is stdin")
        add(parser)
        _add_model(parser)
        parser.set_defaults(run=run)


def _add_model(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", default=DEFAULT_MODEL, help=f"{', '.join(MODEL_NAMES)}, a directory, a ZIP or a URL "
                        "(default: %(default)s)")
    parser.add_argument("--softmax-file", metavar="FILE", help="HDF5 softmax, as export --softmax writes it (default: "
                        "softmax.hdf5 beside the weights)")
    parser.add_argument("--vocab-file", metavar="FILE", help="its vocabulary (default: vocab.txt beside the weights)")
    parser.add_argument("--state", choices=STATES, default="warm", help="where a sentence starts (default: %(default)s)")
    parser.add_argument("--precision", choices=PRECISIONS, default="highest", help="(default: %(default)s)")
    parser.add_argument("--backend", choices=BACKENDS, default="auto", help="(default: %(default)s)")


def _add_score(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--tokens", action="store_true", help="a line for each token")


def _add_substitutes(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--top", type=int, default=10, metavar="K", help="words for each token (default: %(default)s)")
    parser.add_argument("--word", action="append", metavar="WORD", help="only in place of WORD; may be given often")
    parser.add_argument("--direction", choices=DIRECTIONS, default="both", help="(default: %(default)s)")


def _head(parsed: argparse.Namespace):
    return load_head(parsed.model, parsed.softmax_file, parsed.vocab_file, state=parsed.state,
                     precision=parsed.precision, backend=parsed.backend)


def _score(parsed: argparse.Namespace) -> None:
    with parsed.input_file as file:
        for line in score_lines(_head(parsed), file, parsed.tokens):
            print(line)


def _substitutes(parsed: argparse.Namespace) -> None:
    words = frozenset(parsed.word) if parsed.word else None
    with parsed.input_file as file:
        for line in substitute_lines(_head(parsed), file, parsed.top, parsed.direction, words):
            print(line)
