"""The subcommands `compare` and `nearest`, which draw vectors and print the numbers."""

from collections.abc import Iterator

from elmo_fast.arguments import FREE_STATES
from elmo_fast.cli.flags import NUMERICS, TEXTS, add_command, add_weights, at_least, pop_fields, say
from elmo_fast.weights.sources import DEFAULT_MODEL

_SHARED = "--model", *NUMERICS, "--device"


def add_commands(commands) -> None:
    """Add the subcommands `compare` and `nearest`."""
    parser = add_command(commands, "compare", _compare, "print the cosine similarities of the tokens of two "
                         "sentences in every layer, and draw them", *_SHARED, "--tokenizer", model=DEFAULT_MODEL,
                         tokenizer="auto")
    parser.epilog = "Rows are tab-separated. .png, .svg and .pdf need matplotlib."
    add = parser.add_argument
    add("first", metavar="FIRST", help="the sentence of the rows")
    add("second", metavar="SECOND", help="the sentence of the columns")
    add_weights(parser, "also compare in a weighted sum of the layers: 0.2,0.3,0.5")
    add("--state", choices=FREE_STATES, default="warm", help="initial state of a sentence (default: %(default)s)")
    add("-o", "--output", metavar="FILE", help="file of the picture: .png, .svg, .pdf or .html")
    parser = add_command(commands, "nearest", _nearest, "print the contexts in a corpus whose vectors are nearest to "
                         "that of a word in context, and draw them", *_SHARED, *TEXTS, model=DEFAULT_MODEL)
    parser.epilog = ("Rows are tab-separated: cosine, line, token (both from 1) and context. .png, .svg and .pdf need "
                     "matplotlib.")
    add = parser.add_argument
    add("corpus", metavar="CORPUS", help="texts, as INPUT of embed; or a file of vectors written by --save or embed")
    add("--word", required=True, help="the word; case is ignored")
    add("--sentence", help="sentence with the word; its nearest contexts are searched (default: occurrences in the "
        "corpus)")
    add("--top", type=at_least(1), default=10, metavar="K", help="contexts per query (default: %(default)s)")
    add("--queries", type=at_least(1), default=3, metavar="N", help="without --sentence: occurrences that are "
        "used as queries (default: %(default)s)")
    add("--any-word", action="store_true", help="search all tokens, not only occurrences of the word")
    add("--center", action="store_true", help="subtract the mean of the searched vectors first")
    layers = parser.add_mutually_exclusive_group()
    layers.add_argument("--layer", type=lambda text: int(text) if text.isdecimal() else text, metavar="L",
                        help="average (default), top, or the number of a layer, from 0")
    add_weights(layers, "a weighted sum of the layers: 0.2,0.3,0.5", dest="layer")
    add("--state", choices=FREE_STATES, help="initial state of a sentence (default: warm)")
    add("--save", metavar="FILE", help="also store the vectors of all tokens (HDF5, float16); FILE can then be CORPUS")
    add("-o", "--output", metavar="FILE", help="file of the picture: .html, .png, .svg or .pdf; or of the rows: .txt")


def _compare(**flags) -> Iterator[str]:
    from elmo_fast.embed.jobs import ModelChoice
    from elmo_fast.explore.jobs import compare_sentences

    return _reported(*compare_sentences(pop_fields(ModelChoice, flags), **flags))


def _nearest(**flags) -> Iterator[str]:
    from elmo_fast.embed.jobs import ModelChoice
    from elmo_fast.explore.jobs import nearest_contexts

    search = {name: flags.pop(name) for name in ("word", "sentence", "top", "queries", "any_word", "center")}
    return _reported(*nearest_contexts(pop_fields(ModelChoice, flags), search=search, **flags))


def _reported(rows: Iterator[str], files: list[str]) -> Iterator[str]:
    """The rows, then a line on stderr for every file that was written."""
    yield from rows
    for line in files:
        say(line)
