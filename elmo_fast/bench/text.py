"""Made-up running text, where there is no other."""

import numpy as np


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
