"""Next-token cross entropy against sampled words, or against the whole vocabulary."""

import torch
from torch.autograd.function import once_differentiable

_AT_ONCE = 1 << 22  # scores in memory at a time


def sampled_cross_entropy(states: torch.Tensor, table: torch.Tensor, bias: torch.Tensor, targets: torch.Tensor,
                          drawn: torch.Tensor, log_targets: torch.Tensor, log_drawn: torch.Tensor,
                          hits: torch.Tensor) -> torch.Tensor:
    """Mean over positions of the cross entropy of each target among itself and the drawn words.

    `states` [S, P], `table` [R, P] and `bias` [R] the rows that take part, `targets` int64 [S] and `drawn` int64 [K]
    their numbers, `log_targets` [S] and `log_drawn` [K] the logs of their expected counts, which are subtracted from
    the scores, `hits` int64 [2, H] the (position, drawn word) pairs that are the target itself and do not count.
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
        own_part = (own - highest).exp()
        total = scores.sum(1) + own_part
        ctx.save_for_backward(states, table, targets, drawn, scores, total, own_part)
        return (total.log() + highest - own).mean()

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient):
        states, table, targets, drawn, scores, total, own_part = ctx.saved_tensors
        share = gradient / len(states)
        d_scores = scores * (share / total)[:, None]  # [S, K]
        d_own = (own_part / total - 1) * share  # [S]
        d_states = torch.addcmul(d_scores @ table[drawn], d_own[:, None], table[targets])
        d_table = torch.zeros_like(table).index_add_(0, targets, d_own[:, None] * states)
        d_table.index_add_(0, drawn, d_scores.t() @ states)
        d_bias = d_own.new_zeros(len(table)).index_add_(0, targets, d_own).index_add_(0, drawn, d_scores.sum(0))
        return d_states, d_table, d_bias, None, None, None, None, None


def full_cross_entropy(states: torch.Tensor, table: torch.Tensor, bias: torch.Tensor,
                       targets: torch.Tensor) -> torch.Tensor:
    """Cross entropy of each target among the whole vocabulary, with gradients: states [S, P], table [V, P] -> [S]."""
    return torch.nn.functional.cross_entropy(torch.addmm(bias, states, table.t()), targets, reduction="none")


@torch.no_grad()
def full_cross_entropy_in_pieces(states: torch.Tensor, table: torch.Tensor, bias: torch.Tensor,
                                 targets: torch.Tensor) -> torch.Tensor:
    """As `full_cross_entropy`, without gradients, in memory for some millions of scores."""
    rows = max(1, _AT_ONCE // len(table))
    room = states.new_empty(min(rows, len(states)), len(table))
    losses = []
    for own, wanted in zip(states.split(rows), targets.split(rows)):
        scores = torch.addmm(bias, own, table.t(), out=room[: len(own)])
        right = scores.gather(1, wanted[:, None]).squeeze(1)
        highest = scores.amax(1)
        losses.append(scores.sub_(highest[:, None]).exp_().sum(1).log() + (highest - right))
    return torch.cat(losses)
