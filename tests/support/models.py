"""Models for the tests, from this project's own initializer."""

import numpy as np
import torch

from elmo_fast import BiLm, Options, batch_to_ids, random_weights, write_weights
from elmo_fast.testing import TINY
from tests.support.files import paths, write_model

__all__ = ["SENTENCES", "SHAPES", "WORD_IDS", "bilm", "files", "layers", "options", "texts", "weights", "word_bilm"]

WORD_IDS = Options.from_dict({"lstm": TINY["lstm"], "n_tokens_vocab": 9})

SENTENCES = [
    "The children play in the garden behind the old house .".split(),
    ["One"],
    "naïve café — 東京 is Ωmega 🙂 .".split(),
    [],
    ["x" * 60, "y" * 48, "z" * 49, "", "a"],
    "It rained and rained and rained and it rained .".split(),
]


def options(lstm: dict | None = None, char_cnn: dict | None = None) -> Options:
    """Options of a small model with odd sizes; the arguments replace keys of the two sections."""
    return Options.from_dict({
        "lstm": {**TINY["lstm"], "dim": 37, "projection_dim": 11, **(lstm or {})},
        "char_cnn": {**TINY["char_cnn"], "embedding": {"dim": 5}, "filters": [[1, 3], [2, 6], [3, 9], [5, 7]],
                     "n_highway": 2, **(char_cnn or {})}})


SHAPES: dict[str, Options] = {
    "two layers": options(),
    "one layer": options({"n_layers": 1}),
    "four layers": options({"n_layers": 4}),
    "tanh": options(char_cnn={"activation": "tanh"}),
    "no highway": options(char_cnn={"n_highway": 0}),
    "no skip connections": options({"use_skip_connections": False}),
    "no projection": options({"dim": 11}),
    "projection above dim": options({"dim": 7, "cell_clip": 0.3, "proj_clip": 0.05}),
    "no clips": options({"cell_clip": None, "proj_clip": None}),
    "filters as wide as the projection": options(char_cnn={"filters": [[1, 4], [4, 7]]}),
    "clips that fire": options({"cell_clip": 0.3, "proj_clip": 0.05}),
    "short tokens": options(char_cnn={"max_characters_per_token": 9}),
    "one filter as wide as a token": options(char_cnn={"filters": [[7, 8]], "max_characters_per_token": 7}),
}


def weights(of: Options, seed: int = 0) -> dict[str, np.ndarray]:
    """Random weights whose biases and gates are not an initializer's neutral ones."""
    generator = np.random.default_rng(seed + 1000)
    parameters = random_weights(of, seed)
    for name, values in parameters.items():
        scale = 2.0 if "W_cnn" in name else 1.0
        noise = generator.normal(0, 0.3, values.shape) if values.ndim == 1 else 0
        parameters[name] = (scale * values + noise).astype(np.float32)
    return parameters


def bilm(of: Options | None = None, seed: int = 0, **arguments) -> BiLm:
    """A random model."""
    of = of or options()
    return BiLm(of, weights(of, seed), **arguments)


def word_bilm(**arguments) -> BiLm:
    """A random model that reads word ids."""
    return BiLm(WORD_IDS, random_weights(WORD_IDS), **arguments)


def texts(count: int, longest: int = 12, seed: int = 0) -> list[list[str]]:
    """Sentences of 0 to `longest` tokens, out of 60 words."""
    generator = np.random.default_rng(seed)
    return [[f"word{number}" for number in generator.integers(0, 60, length)]
            for length in generator.integers(0, longest + 1, count)]


def layers(model: BiLm, batch) -> torch.Tensor:
    """Layers of tokenized sentences, with boundaries: [L, B, T + 2, 2 P]."""
    ids = batch_to_ids(batch, *model.token_source.row_shape)
    return torch.stack(model(ids)["activations"]).detach()


def files(folder, of: Options, seed: int = 0):
    """A model as two files in a folder: the paths of its options and of its weights."""
    write_weights(write_model(folder, of.to_dict()) / "weights.hdf5", weights(of, seed))
    return paths(folder)
