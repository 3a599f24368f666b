"""The subcommand `evaluate`."""

from elmo_fast.arguments import TASKS
from elmo_fast.cli.flags import NUMERICS, add_command, at_least
from elmo_fast.model.sources import DEFAULT_MODEL


def add_commands(commands) -> None:
    """Add the subcommand `evaluate`."""
    parser = add_command(commands, "evaluate", "elmo_fast.evaluate.tasks:command", "measure what a model's vectors are "
                         "worth in a task, beside baselines and published figures", "model", *NUMERICS,
                         model=DEFAULT_MODEL)
    parser.epilog = "Needs scikit-learn. docs/evaluation.md says which files each task reads."
    add = parser.add_argument
    add("--task", required=True, choices=TASKS, help="the task")
    add("--data", required=True, metavar="FOLDER", help="folder with the task's published files, as they come")
    add("--limit", type=at_least(1), metavar="N", help="texts of the training part to use at most, evenly spaced "
        "(default: all; of secondary_structure 1000)")
    add("--device", metavar="NAME", help="cpu, cuda, cuda:1 (default: the first GPU if there is one)")
