"""Models for the tests, from this project's own initializer."""

import numpy as np
import torch

from elmo_fast import BiLm, Options, batch_to_ids, random_weights, write_weights
from elmo_fast.testing import SHAPES, TINY, options
from tests.support.files import paths, write_model

__all__ = ["SENTENCES", "SHAPES", "WORD_IDS", "bilm", "files", "layers", "options", "texts", "weights",
           "word_bilm"]

WORD_IDS = Options.from_dict({"lstm": TINY["lstm"], "n_tokens_vocab": 9})

SENTENCES = [
    "The children play in the garden behind the old house .".split(),
    ["One"],
    "naïve café — 東京 is Ωmega 🙂 .".split(),
    [],
    ["x" * 60, "y" * 48, "z" * 49, "", "a"],
    "It rained and rained and rained and it rained .".split(),
]


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
