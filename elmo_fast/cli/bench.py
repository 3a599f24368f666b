"""The subcommand `bench`."""

from elmo_fast.cli.flags import add_command, checked_type
from elmo_fast.model.sources import DEFAULT_MODEL


def add_commands(commands) -> None:
    """Add the subcommand `bench`."""
    parser = add_command(commands, "bench", "elmo_fast.bench.run:command", "measure speed, latency and memory of a "
                         "model on this machine, in about half a minute", "--model", "--precision", model=DEFAULT_MODEL)
    parser.epilog = "Before anything is timed, the results are compared with those of the reference path."
    add = parser.add_argument
    add("--device", metavar="NAME", help="cpu, cuda, cuda:1 (default: the first GPU if there is one)")
    add("--json", dest="json_file", metavar="FILE", help="write the results and a description of the machine to FILE")
    add("--plot", dest="plot_file", metavar="FILE", help="draw the speeds to FILE (.png, .svg, .pdf; needs "
        "elmo-fast[plots])")
    add("--seconds", default=30.0,
        type=checked_type(float, "a number from 1 to 3600", lambda value: 1 <= value <= 3600),
        help="approximate time to measure (default: %(default)s)")
