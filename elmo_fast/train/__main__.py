"""`python -m elmo_fast.train`, which `torchrun` can start: the arguments of `elmo-fast train`."""

import argparse
import logging
import sys

from elmo_fast.cli.train import add_train_arguments, train


def main() -> None:
    """Train. Errors of the input and interruptions are a line on stderr and exit status 1."""
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s: %(message)s")
    parser = argparse.ArgumentParser(prog="python -m elmo_fast.train", description="As elmo-fast train.")
    add_train_arguments(parser)
    try:
        train(**vars(parser.parse_args()))
    except (ValueError, OSError, ImportError, KeyboardInterrupt) as error:
        sys.exit(f"elmo_fast.train: error: {' '.join(str(error).split()) or type(error).__name__}")


if __name__ == "__main__":
    main()
