"""Write a tiny model with random weights, to try every command; its vectors are meaningless.

    python examples/tiny_model.py DIRECTORY
"""

import argparse
import json
from pathlib import Path

from elmo_fast import Options, random_weights, write_weights

OPTIONS = {
    "lstm": {"dim": 64, "projection_dim": 16, "n_layers": 2, "use_skip_connections": True, "cell_clip": 3,
             "proj_clip": 3},
    "char_cnn": {"embedding": {"dim": 8}, "filters": [[1, 8], [2, 16], [3, 32], [4, 64]], "n_highway": 2,
                 "n_characters": 262, "max_characters_per_token": 50, "activation": "relu"},
}
WORDS = ["<S>", "</S>", "<UNK>", "the", ".", ",", "of", "and"]


def write_tiny_model(directory: Path) -> Path:
    """Write `options.json`, `weights.hdf5` and a short `vocab.txt`, and return the directory."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "options.json").write_text(json.dumps(OPTIONS, indent=2) + "\n", encoding="utf-8")
    (directory / "vocab.txt").write_text("\n".join(WORDS) + "\n", encoding="utf-8")
    write_weights(directory / "weights.hdf5", random_weights(Options.from_dict(OPTIONS)))
    return directory


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("directory", type=Path, help="where options.json, weights.hdf5 and vocab.txt go")
    directory = write_tiny_model(parser.parse_args().directory)
    print(f"A tiny model with random weights is in {directory}")


if __name__ == "__main__":
    main()
