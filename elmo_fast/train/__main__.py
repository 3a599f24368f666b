"""`python -m elmo_fast.train`, which `torchrun` can start: the same as `elmo-fast train`."""

import sys

from elmo_fast.cli import main

if __name__ == "__main__":
    sys.exit(main(["train", *sys.argv[1:]]))
