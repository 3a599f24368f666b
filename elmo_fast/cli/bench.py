"""The subcommand `bench`."""

from elmo_fast.cli.flags import DEVICE_HELP, FORMATS_HELP, TEXTS, add_command, checked_type
from elmo_fast.weights.sources import DEFAULT_MODEL


def add_commands(commands) -> None:
    """Add the subcommand `bench`."""
    parser = add_command(commands, "bench", "elmo_fast.bench.run:command", "measure speed, latency and memory of "
                         "a model on this machine, in about half a minute", "--model", "--precision", *TEXTS, "--quiet",
                         model=DEFAULT_MODEL)
    parser.epilog = "Before anything is timed, the results are compared with those of the reference path."
    add = parser.add_argument
    add("--text", dest="text_file", metavar="FILE", help="measure with the sentences of FILE, at most 8,192: UTF-8 "
        f"text, one tokenized sentence per line; {FORMATS_HELP} (default: generated text)")
    add("--device", metavar="NAME", help=DEVICE_HELP.format("the first GPU if there is one"))
    add("--json", dest="json_file", metavar="FILE", help="write the results and a description of the machine to FILE")
    add("--seconds", default=30.0,
        type=checked_type(float, "a number from 1 to 3600", lambda value: 1 <= value <= 3600),
        help="approximate time to measure (default: %(default)s)")
