"""Generates text to measure with, interleaves measurements, and rounds them."""

from collections.abc import Callable

import numpy as np


def rounded(value):
    """Round floats, also nested ones, to five significant digits: more would be noise."""
    if isinstance(value, dict):
        return {key: rounded(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [rounded(part) for part in value]
    return float(f"{value:.5g}") if isinstance(value, float) else value


def take_turns(measure: dict, rounds: int, after: Callable[[object], None] | None = None) -> dict[object, list[float]]:
    """Call every function once per round; the order rotates by one each round. `after(key)` runs after each call."""
    samples: dict[object, list[float]] = {key: [] for key in measure}
    order = list(measure)
    for _ in range(rounds):
        for key in order:
            samples[key].append(measure[key]())
            if after:
                after(key)
        order = order[1:] + order[:1]
    return samples


def generated_sentences(count: int) -> list[list[str]]:
    """Generate sentences of made-up words, drawn by Zipf's law, with English word and sentence lengths."""
    rng = np.random.default_rng(0)
    ranks = np.arange(20_000)
    # With Mandelbrot's offset and this exponent words repeat as in English: a third of 64 sentences' tokens are unique
    weights = 1.0 / (ranks + 3.7) ** 1.25
    letters = np.array(list("etaoinshrdlucmfwypvbgk"))
    sizes = np.clip(rng.poisson(2 + np.log2(ranks + 2) / 3), 1, 16)
    words = ["".join(rng.choice(letters, size)) for size in sizes]
    lengths = np.clip(rng.gamma(4.0, 6.4, count).astype(int), 1, 120)
    sample = rng.choice(len(words), lengths.sum(), p=weights / weights.sum())
    return [[words[i] for i in ids] for ids in np.split(sample, np.cumsum(lengths)[:-1])]
