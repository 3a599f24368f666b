"""Words drawn by a log-uniform law, each once, and how often each was to be expected.

The law is that of TensorFlow's log-uniform candidate sampler, which bilm-tf trains with: word k of V, most frequent
first, has probability log((k + 2) / (k + 1)) / log(V + 1).
"""

import numpy as np


def probabilities(words: np.ndarray, size: int) -> np.ndarray:
    """Probability of each word number under the law over `size` words: float64, the shape of `words`."""
    return np.log1p(1 / (np.asarray(words, dtype=np.float64) + 1)) / np.log1p(size)


def draw_unique(generator: np.random.Generator, count: int, size: int) -> tuple[np.ndarray, int]:
    """`count` different words below `size`, in the order they were drawn, and the draws it took: int64 [count], int.

    Words are drawn with replacement until `count` different ones have come. Raises `ValueError` when there are fewer.
    """
    if count > size:
        raise ValueError(f"n_negative_samples_batch: expected at most the {size} words of the vocabulary, got {count}")
    drawn = np.empty(0, dtype=np.int64)
    while True:
        more = np.expm1(generator.random(max(2 * count, drawn.size)) * np.log1p(size)).astype(np.int64)
        drawn = np.concatenate([drawn, np.minimum(more, size - 1)])
        words, first = np.unique(drawn, return_index=True)
        if len(words) >= count:
            order = np.argsort(first)[:count]
            return words[order], int(first[order[-1]]) + 1


def log_expected_count(words: np.ndarray, size: int, draws: int) -> np.ndarray:
    """Log of the probability that a word is among the different words of `draws` draws: float32."""
    return np.log(-np.expm1(draws * np.log1p(-probabilities(words, size)))).astype(np.float32)
