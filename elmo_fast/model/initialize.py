"""Random weights for given options, spread as bilm-tf's initializers spread them (`bilm/training.py`)."""

import numpy as np

from elmo_fast.model.options import Options
from elmo_fast.model.weights import expected_shapes


def random_weights(options: Options, seed: int = 0) -> dict[str, np.ndarray]:
    """float32 weights by dataset name, the same for the same seed.

    Characters uniform in ±1, words and LSTM uniform by fan-in and fan-out (Glorot); convolutions uniform in ±0.05 for relu (Kim et al. 2015), else normal by fan-in;
    highway and projection normal by fan-in, carry bias -2.
    """
    generator = np.random.default_rng(seed)
    return {
        name: _initial(generator, name, shape, options).astype(np.float32)
        for name, shape in expected_shapes(options).items()
    }


def _initial(generator: np.random.Generator, name: str, shape: tuple[int, ...], options: Options) -> np.ndarray:
    leaf = name.rsplit("/", 1)[-1]
    if leaf == "char_embed":
        return generator.uniform(-1, 1, shape)
    if leaf == "b_carry":
        return np.full(shape, -2.0)
    if len(shape) == 1:
        return np.zeros(shape)
    if leaf.startswith("W_cnn_") and options.char_cnn.activation == "relu":
        return generator.uniform(-0.05, 0.05, shape)
    if leaf in ("embedding", "W_0", "W_P_0"):
        limit = np.sqrt(6 / sum(shape))
        return generator.uniform(-limit, limit, shape)
    return generator.normal(0, np.sqrt(1 / np.prod(shape[:-1])), shape)
