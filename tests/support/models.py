"""Models of every shape for the tests, from this project's own initializer."""

import json
from typing import Any

import numpy as np

from elmo_fast import BiLm, Options, random_weights, write_weights

SENTENCES = [
    "The children play in the garden behind the old house .".split(),
    ["One"],
    "naïve café — 東京 is Ωmega 🙂 .".split(),
    [],
    ["x" * 60, "y" * 48, "z" * 49, "", "a"],
    "It rained and rained and rained and it rained .".split(),
]


def options(lstm: dict[str, Any] | None = None, char_cnn: dict[str, Any] | None = None) -> Options:
    """Options of a small model with odd sizes; the arguments replace keys of the two sections."""
    return Options.from_dict({
        "lstm": {"dim": 37, "projection_dim": 11, "n_layers": 2, "use_skip_connections": True, "cell_clip": 3,
                 "proj_clip": 3, **(lstm or {})},
        "char_cnn": {"embedding": {"dim": 5}, "filters": [[1, 3], [2, 6], [3, 9], [5, 7]], "n_highway": 2,
                     "n_characters": 262, "max_characters_per_token": 50, "activation": "relu", **(char_cnn or {})},
    })


def weights(of: Options, seed: int = 0) -> dict[str, np.ndarray]:
    """Random weights with biases and gates that are not the neutral ones of an initializer."""
    generator = np.random.default_rng(seed + 1000)
    drawn = random_weights(of, seed)
    for name, values in drawn.items():
        scale = 2.0 if "W_cnn" in name else 1.0
        noise = generator.normal(0, 0.3, values.shape) if values.ndim == 1 else 0
        drawn[name] = (scale * values + noise).astype(np.float32)
    return drawn


def bilm(of: Options | None = None, seed: int = 0, **arguments) -> BiLm:
    """A random model."""
    of = of or options()
    return BiLm(of, weights(of, seed), **arguments)


def files(folder, of: Options, seed: int = 0):
    """A model as two files in a folder: the paths of its options and of its weights."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = folder / "options.json", folder / "weights.hdf5"
    paths[0].write_text(json.dumps(of.to_dict()), encoding="utf-8")
    write_weights(paths[1], weights(of, seed))
    return paths


# Every shape of model that the formats allow, by name.
SHAPES: dict[str, Options] = {
    "two layers": options(),
    "one layer": options({"n_layers": 1}),
    "four layers": options({"n_layers": 4}),
    "tanh": options(char_cnn={"activation": "tanh"}),
    "no highway": options(char_cnn={"n_highway": 0}),
    "no skip connections": options({"use_skip_connections": False}),
    "no projection": options({"dim": 11}),
    "no clips": options({"cell_clip": None, "proj_clip": None}),
    "filters as wide as the projection": options(char_cnn={"filters": [[1, 4], [4, 7]]}),
    "clips that fire": options({"cell_clip": 0.3, "proj_clip": 0.05}),
    "short tokens": options(char_cnn={"max_characters_per_token": 9}),
    "one filter as wide as a token": options(char_cnn={"filters": [[7, 8]], "max_characters_per_token": 7}),
}
