"""The subcommand `cache`."""

from elmo_fast.arguments import STORAGES
from elmo_fast.cli.flags import MODEL_FILES, NUMERICS, TEXTS, add_command, pop_fields, say


def add_commands(commands) -> None:
    """Add the subcommand `cache`."""
    parser = add_command(commands, "cache", _cache, "encode the words of a vocabulary into a token table for "
                         "embed --token-table", *MODEL_FILES, *NUMERICS, *TEXTS, "--device", "--quiet")
    parser.epilog = "embed refuses a table of a lower precision than its own."
    add = parser.add_argument
    add("vocabulary", metavar="VOCAB", help="vocabulary file, one word per line, with <S> and </S>")
    add("output_file", metavar="OUT", help="HDF5 file to write")
    add("--corpus", action="store_true", help="VOCAB is a text, as INPUT of embed; cache all of its words")
    add("--storage", choices=STORAGES, default="float32", help="data type of the table (default: %(default)s)")


def _cache(**flags) -> None:
    from elmo_fast.embed.jobs import ModelChoice, write_table

    line = write_table(model=pop_fields(ModelChoice, flags), **flags)
    if flags["progress"]:
        say(line)
