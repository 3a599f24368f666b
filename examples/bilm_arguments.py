"""The arguments of the three usage examples: a model's files; without them a tiny random model is used."""

import argparse
import tempfile
from pathlib import Path
from typing import NamedTuple

from tiny_model import write_tiny_model


class Arguments(NamedTuple):
    """A model's files, and a folder for the output of the example."""

    options_file: Path
    weight_file: Path
    vocab_file: Path
    folder: Path


def parse(description: str, argv: list[str] | None = None) -> Arguments:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    parser.add_argument("--options-file", type=Path, help="options.json of a model (default: a tiny random model)")
    parser.add_argument("--weight-file", type=Path, help="weights of the model, HDF5")
    parser.add_argument("--vocab-file", type=Path, help="words with <S> and </S>, one per line (default: a few words)")
    parser.add_argument("--folder", type=Path, help="where the example writes (default: a new temporary folder)")
    given = parser.parse_args(argv)
    if (given.options_file is None) != (given.weight_file is None):
        parser.error("--options-file and --weight-file go together")
    folder = given.folder or Path(tempfile.mkdtemp(prefix="elmo-fast-"))
    tiny = write_tiny_model(folder / "tiny_model")
    return Arguments(given.options_file or tiny / "options.json", given.weight_file or tiny / "weights.hdf5",
                     given.vocab_file or tiny / "vocab.txt", folder)
