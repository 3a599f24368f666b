"""Next-token cross entropy against sampled words, or against the whole vocabulary.

Words are drawn as by TensorFlow's log-uniform candidate sampler, which bilm-tf trains with: word k of V, most frequent
first, has probability log((k + 2) / (k + 1)) / log(V + 1).
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch.autograd.function import once_differentiable

_MAX_SCORES = 1 << 22  # in memory at a time


class Samples(NamedTuple):
    """Words for a sampled softmax in D directions. `words` are vocabulary numbers, all other fields index `words`.

    `words` int64 [R], sorted: the table's rows that take part. `targets` int64 [D, S], `drawn` int64 [D, K]; the logs
    of the expected counts of both float32; `hits` int64 [2, H] per direction: positions where a drawn word is the
    target, and its number.
    """

    words: torch.Tensor
    targets: torch.Tensor
    drawn: torch.Tensor
    log_targets: torch.Tensor
    log_drawn: torch.Tensor
    hits: tuple[torch.Tensor, ...]


def draw_samples(targets: np.ndarray, count: int, size: int, seed: Sequence[int]) -> Samples:
    """Draw `count` different words of `size` for every direction of `targets` int64 [D, S]."""
    generator = np.random.default_rng(seed)
    draws = [draw_unique(generator, count, size) for _ in targets]
    drawn = np.stack([words for words, _ in draws])
    words, numbers = np.unique(np.concatenate([targets.ravel(), drawn.ravel()]), return_inverse=True)
    numbers = numbers.reshape(-1).astype(np.int64)
    hits = [np.stack(_hits(*pair)) for pair in zip(targets, drawn)]
    logs = [np.stack([log_expected_count(side, size, tries) for side, (_, tries) in zip(sides, draws)])
            for sides in (targets, drawn)]
    return Samples(torch.from_numpy(words), torch.from_numpy(numbers[: targets.size].reshape(targets.shape)),
                   torch.from_numpy(numbers[targets.size :].reshape(drawn.shape)), *map(torch.from_numpy, logs),
                   tuple(map(torch.from_numpy, hits)))


def _hits(targets: np.ndarray, drawn: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Positions [H], and numbers [H] of the drawn words that are their targets."""
    order = np.argsort(drawn)
    nearest = order[np.minimum(np.searchsorted(drawn, targets, sorter=order), len(drawn) - 1)]
    positions = np.flatnonzero(drawn[nearest] == targets)
    return positions, nearest[positions]


def draw_unique(generator: np.random.Generator, count: int, size: int) -> tuple[np.ndarray, int]:
    """`count` different words below `size`, in the order they were drawn, and the draws it took: int64 [count], int.

    Words are drawn with replacement until `count` different words have come. `ValueError` when there are fewer.
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


def probabilities(words: np.ndarray, size: int) -> np.ndarray:
    """Log-uniform probabilities of word numbers below `size`: float64, the shape of `words`."""
    return np.log1p(1 / (np.asarray(words, dtype=np.float64) + 1)) / np.log1p(size)


def log_expected_count(words: np.ndarray, size: int, draws: int) -> np.ndarray:
    """Log of the probability that a word is among the different words of `draws` draws: float32."""
    return np.log(-np.expm1(draws * np.log1p(-probabilities(words, size)))).astype(np.float32)


# ---- the loss ------------------------------------------------------------------------------


def sampled_cross_entropy(states: torch.Tensor, table: torch.Tensor, bias: torch.Tensor, targets: torch.Tensor,
                          drawn: torch.Tensor, log_targets: torch.Tensor, log_drawn: torch.Tensor,
                          hits: torch.Tensor) -> torch.Tensor:
    """Mean over positions of the cross entropy of the target among itself and the drawn words.

    `states` [S, P], `table` [R, P] and `bias` [R] the rows that take part, `targets` int64 [S] and `drawn` int64 [K]
    their numbers, `log_targets` [S] and `log_drawn` [K] the logs of their expected counts, which are subtracted from
    the scores, `hits` int64 [2, H] the (position, drawn word) pairs that are the target itself and are left out.
    As TensorFlow's `sampled_softmax_loss`; no gradient flows into the expected counts.
    """
    return _SampledCrossEntropy.apply(states, table, bias, targets, drawn, log_targets, log_drawn, hits)


class _SampledCrossEntropy(torch.autograd.Function):
    """One [S, K] array holds scores, then probabilities, then their gradients."""

    @staticmethod
    def forward(ctx, states, table, bias, targets, drawn, log_targets, log_drawn, hits):
        words = table[drawn]  # [K, P]
        scores = torch.addmm((bias[drawn] - log_drawn.to(bias)), states, words.t())
        scores[hits[0], hits[1]] = -torch.inf
        own = (states * table[targets]).sum(1) + bias[targets] - log_targets.to(bias)  # [S]
        highest = torch.maximum(scores.amax(1), own)
        scores.sub_(highest[:, None]).exp_()
        own_exp = (own - highest).exp()
        total = scores.sum(1) + own_exp
        ctx.save_for_backward(states, table, targets, drawn, scores, total, own_exp)
        return (total.log() + highest - own).mean()

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient):
        states, table, targets, drawn, scores, total, own_exp = ctx.saved_tensors
        scale = gradient / len(states)
        d_scores = scores * (scale / total)[:, None]  # [S, K]
        d_own = (own_exp / total - 1) * scale  # [S]
        d_states = torch.addcmul(d_scores @ table[drawn], d_own[:, None], table[targets])
        d_table = torch.zeros_like(table).index_add_(0, targets, d_own[:, None] * states)
        d_table.index_add_(0, drawn, d_scores.t() @ states)
        d_bias = d_own.new_zeros(len(table)).index_add_(0, targets, d_own).index_add_(0, drawn, d_scores.sum(0))
        return d_states, d_table, d_bias, None, None, None, None, None


def full_cross_entropy(states: torch.Tensor, table: torch.Tensor, bias: torch.Tensor,
                       targets: torch.Tensor) -> torch.Tensor:
    """Cross entropy of the targets among the whole vocabulary, with gradients: states [S, P], table [V, P] -> [S]."""
    return torch.nn.functional.cross_entropy(torch.addmm(bias, states, table.t()), targets, reduction="none")


@torch.no_grad()
def chunked_full_cross_entropy(states: torch.Tensor, table: torch.Tensor, bias: torch.Tensor,
                               targets: torch.Tensor) -> torch.Tensor:
    """As `full_cross_entropy`, without gradients, in memory for some millions of scores."""
    rows = max(1, _MAX_SCORES // len(table))
    buffer = states.new_empty(min(rows, len(states)), len(table))
    losses = []
    for chunk, wanted in zip(states.split(rows), targets.split(rows)):
        scores = torch.addmm(bias, chunk, table.t(), out=buffer[: len(chunk)])
        right = scores.gather(1, wanted[:, None]).squeeze(1)
        highest = scores.amax(1)
        losses.append(scores.sub_(highest[:, None]).exp_().sum(1).log() + (highest - right))
    return torch.cat(losses)
