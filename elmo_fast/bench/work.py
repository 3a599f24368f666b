"""Made-up running text, where there is no other, and the arithmetic that exact computation of a text cannot leave out.

The char encoder over windows with a real character and the first layer's input product, once per unique token; every
other product once per position, `<S>` and `</S>` included.
"""

from dataclasses import dataclass

import numpy as np

BOUNDARY_CHARACTERS = 3  # of <S> and </S>: begin of word, the boundary, end of word


@dataclass(frozen=True)
class Work:
    """`tokens` of the text, characters of every unique token int [R], batch sizes int [steps]."""

    tokens: int
    characters: np.ndarray
    batch_sizes: np.ndarray


def generated_sentences(count: int) -> list[list[str]]:
    """Made-up words drawn by Zipf's law, with English word and sentence lengths."""
    rng = np.random.default_rng(0)
    ranks = np.arange(20_000)
    # Mandelbrot's offset and this exponent repeat words as English does: 1 in 3 of 64 sentences' is unique
    weights = 1.0 / (ranks + 3.7) ** 1.25
    letters = np.array(list("etaoinshrdlucmfwypvbgk"))
    sizes = np.clip(rng.poisson(2 + np.log2(ranks + 2) / 3), 1, 16)
    words = ["".join(rng.choice(letters, size)) for size in sizes]
    lengths = np.clip(rng.gamma(4.0, 6.4, count).astype(int), 1, 120)
    drawn = rng.choice(len(words), lengths.sum(), p=weights / weights.sum())
    return [[words[i] for i in part] for part in np.split(drawn, np.cumsum(lengths)[:-1])]


def work_of_slots(sentences: list[list[str]], slots: int) -> Work:
    """Sentence i in slot i mod `slots`, back to back; tokens are unique in the stream."""
    positions = np.zeros(slots, dtype=np.int64)
    np.add.at(positions, np.arange(len(sentences)) % slots, [len(sentence) + 2 for sentence in sentences])
    batch_sizes = (positions > np.arange(positions.max())[:, None]).sum(1)
    unique = {token for sentence in sentences for token in sentence}
    characters = [len(token.encode("utf-8", "replace")) + 2 for token in unique] + [BOUNDARY_CHARACTERS] * 2
    return Work(sum(map(len, sentences)), np.array(characters), batch_sizes)


def step_weights(options: dict) -> int:
    """Weights that one step of one layer reads, both directions: recurrent and cell projection."""
    cells, projection = options["lstm"]["dim"], options["lstm"]["projection_dim"]
    return 2 * (4 * cells * projection + (cells * projection if cells != projection else 0))


def encoder_flop(options: dict, characters: np.ndarray) -> float:
    """Convolutions over real characters, highways and projection of unique tokens with that many characters.

    Zero for a model that reads words.
    """
    if "char_cnn" not in options:
        return 0.0
    cnn, projection = options["char_cnn"], options["lstm"]["projection_dim"]
    most, dim = cnn["max_characters_per_token"], cnn["embedding"]["dim"]
    real = np.minimum(characters, most)
    windows = sum(count * width * dim * np.minimum(real, most - width + 1).sum() for width, count in cnn["filters"])
    filters = sum(count for _, count in cnn["filters"])
    dense = cnn["n_highway"] * 2 * filters**2 + (filters * projection if filters != projection else 0)
    return float(2 * (windows + dense * len(characters)))


def input_flop(options: dict) -> int:
    """One layer's input product for one row, both directions."""
    return 2 * 2 * options["lstm"]["projection_dim"] * 4 * options["lstm"]["dim"]


def flop_outside_steps(options: dict, work: Work) -> float:
    """The arithmetic that does not wait for the step before: char encoder and input products."""
    upper = (options["lstm"]["n_layers"] - 1) * int(work.batch_sizes.sum())
    return encoder_flop(options, work.characters) + input_flop(options) * (len(work.characters) + upper)


def flop(options: dict, work: Work) -> float:
    """All arithmetic of the work."""
    steps = 2 * options["lstm"]["n_layers"] * step_weights(options) * int(work.batch_sizes.sum())
    return flop_outside_steps(options, work) + steps
