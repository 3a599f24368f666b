"""Do a task with a model's vectors, beside baselines and the published figure; benchmarks/README.md names the files.

    python -m benchmarks.evaluate bundled --task pos --data FOLDER
"""

import argparse
import sys
from collections.abc import Sequence

from benchmarks.common import positive
from benchmarks.evaluate.tasks import TASKS, evaluate
from elmo_fast.cli import run_command
from elmo_fast.engine.precision import PRECISIONS


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the report of a task; the status is 2 for missing or malformed data."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.evaluate", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("model", nargs="?", default="bundled", metavar="MODEL", help="as in elmo-fast embed (default: %(default)s)")
    add("--task", required=True, choices=TASKS)
    add("--data", required=True, metavar="FOLDER", help="folder with the task's published files, as they come")
    add("--limit", type=positive, metavar="N", help="texts of the training part to use at most, evenly spaced "
        "(default: all; of secondary_structure 1000)")
    add("--precision", choices=PRECISIONS, default="highest")
    add("--device", metavar="NAME", help="cpu, cuda, cuda:1 (default: the first GPU if there is one)")
    parsed = vars(parser.parse_args(arguments))
    return run_command(lambda: print(*evaluate(**parsed).lines(), sep="\n"), "benchmarks.evaluate")


if __name__ == "__main__":
    sys.exit(main())
