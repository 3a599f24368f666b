"""`python -m elmo_fast.train`, which is what `torchrun` can start: the arguments of `elmo-fast train`."""

import argparse
import logging

from elmo_fast.train.commands import add_train, run_train

if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s: %(message)s")
    parser = argparse.ArgumentParser(prog="python -m elmo_fast.train", description="Train a model; see elmo-fast train.")
    add_train(parser)
    run_train(parser.parse_args())
