"""Counts the FLOP that an exact computation of a text needs at least.

The char encoder, over windows with a real character, and the input GEMM of the first layer count once per unique token.
All other matrix products count once per position, `<S>` and `</S>` included.
"""

from dataclasses import dataclass

import numpy as np

BOUNDARY_CHARACTERS = 3  # in <S> and in </S>: begin of word, the boundary, end of word


@dataclass(frozen=True)
class Work:
    """Problem size: number of tokens, characters of every unique token int [R], batch sizes int [steps]."""

    tokens: int
    characters: np.ndarray
    batch_sizes: np.ndarray


def work_of_slots(sentences: list[list[str]], slots: int) -> Work:
    """Return the work of a stream: sentence i runs in slot i mod `slots`, and a token is encoded once per stream."""
    positions = np.zeros(slots, dtype=np.int64)
    np.add.at(positions, np.arange(len(sentences)) % slots, [len(sentence) + 2 for sentence in sentences])
    batch_sizes = (positions > np.arange(positions.max())[:, None]).sum(1)
    unique = {token for sentence in sentences for token in sentence}
    characters = [len(token.encode("utf-8", "replace")) + 2 for token in unique] + [BOUNDARY_CHARACTERS] * 2
    return Work(sum(map(len, sentences)), np.array(characters), batch_sizes)


def step_weights(options: dict) -> int:
    """Return how many weights a step of a layer reads in both directions: recurrent weights and projection."""
    cells, projection = options["lstm"]["dim"], options["lstm"]["projection_dim"]
    return 2 * (4 * cells * projection + (cells * projection if cells != projection else 0))


def encoder_flop(options: dict, characters: np.ndarray) -> float:
    """Return the FLOP of the char encoder for tokens with `characters` characters int [R]; 0 for a model of word ids.

    Counts convolutions over real characters, highway layers and the projection.
    """
    if "char_cnn" not in options:
        return 0.0
    cnn, projection = options["char_cnn"], options["lstm"]["projection_dim"]
    limit, dim = cnn["max_characters_per_token"], cnn["embedding"]["dim"]
    real = np.minimum(characters, limit)
    windows = sum(count * width * dim * np.minimum(real, limit - width + 1).sum() for width, count in cnn["filters"])
    filters = sum(count for _, count in cnn["filters"])
    dense = cnn["n_highway"] * 2 * filters**2 + (filters * projection if filters != projection else 0)
    return float(2 * (windows + dense * len(characters)))


def input_flop(options: dict) -> int:
    """Return the FLOP of a layer's input GEMM per row, both directions."""
    return 2 * 2 * options["lstm"]["projection_dim"] * 4 * options["lstm"]["dim"]


def flop_outside_steps(options: dict, work: Work) -> float:
    """Return the FLOP that do not depend on the previous step: char encoder and input GEMMs."""
    upper_rows = (options["lstm"]["n_layers"] - 1) * int(work.batch_sizes.sum())
    return encoder_flop(options, work.characters) + input_flop(options) * (len(work.characters) + upper_rows)


def flop(options: dict, work: Work) -> float:
    """Return all FLOP of the work."""
    steps = 2 * options["lstm"]["n_layers"] * step_weights(options) * int(work.batch_sizes.sum())
    return flop_outside_steps(options, work) + steps
