"""The subcommand `cache`."""

from elmo_fast.arguments import STORAGES
from elmo_fast.cli.flags import MODEL_FILES, NUMERICS, add_command, taken


def add_commands(commands) -> None:
    """Add the subcommand to an argparse collection; it sets `run`, a function of the parsed arguments."""
    parser = add_command(commands, "cache", _cache, "encode the words of a vocabulary once, into a token table for "
                         "embed", *MODEL_FILES, *NUMERICS, "--cuda-device", "--quiet")
    parser.epilog = ("After an interruption the same command resumes. embed refuses a table of a lower precision than "
                     "its own.")
    add = parser.add_argument
    add("vocabulary", metavar="VOCAB", help="vocabulary file, one word a line, with <S> and </S>")
    add("output_file", metavar="OUT", help="HDF5 file")
    add("--corpus", action="store_true", help="VOCAB is a text (INPUT of embed): cache every word of it")
    add("--storage", choices=STORAGES, default="float32", help="(default: %(default)s)")


def _cache(**flags) -> None:
    from elmo_fast.embed.jobs import ModelChoice, TableJob, write_table

    write_table(TableJob(model=taken(ModelChoice, flags), **flags))
