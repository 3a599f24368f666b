"""The subcommand `bench`."""

from elmo_fast.cli.flags import add_command, value_of
from elmo_fast.model.sources import DEFAULT_MODEL


def add_commands(commands) -> None:
    """Add the subcommand `bench`."""
    parser = add_command(commands, "bench", "elmo_fast.bench.run:command", "measure speed, latency and memory of a "
                         "model on this machine, in about half a minute", "--model", "--precision", model=DEFAULT_MODEL)
    parser.epilog = "Every way to run the model is compared with the reference path before it is timed."
    add = parser.add_argument
    add("--device", metavar="NAME", help="cpu, cuda, cuda:1 (default: the first GPU where there is one)")
    add("--json", dest="json_file", metavar="FILE", help="write all figures, with the machine, into FILE")
    add("--plot", dest="plot_file", metavar="FILE", help="draw them (.png, .svg, .pdf; elmo-fast[plots])")
    add("--seconds", type=value_of(float, "a number of at least 1", lambda value: 1 <= value < 3600), default=30.0,
        help="about how long to measure (default: %(default)s)")
