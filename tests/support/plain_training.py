"""Training data, loss and gradients in plain Python and float64, to compare the trainer with."""

import numpy as np
import torch

from elmo_fast.nn.softmax_head import SOFTMAX
from tests.support.plain_elmo import PlainElmo
from tests.support.training import update


def sentences(folder, reverse=False):
    """Every sentence with its boundaries, files in the order of their names."""
    lines = [line for path in sorted(folder.glob("part-*.txt"))
             for line in path.read_text(encoding="utf-8").splitlines()]
    return [["<S>", *line.split(), "</S>"][:: -1 if reverse else 1] for line in lines]


def rows(sentences, rows, steps, batches=None):
    """Batches packed position by position: a row takes the next sentence when its last token has been a target.

    Gives all batches that can be filled, or the first `batches`.
    """
    source, open_rows, count, batches = iter(sentences), [[]] * rows, batches, []
    while len(batches) != count:
        batch = []
        for row in range(rows):
            pairs = []
            while len(pairs) < steps:
                if len(open_rows[row]) < 2:
                    open_rows[row] = next(source, None)
                    if open_rows[row] is None:
                        return batches
                pairs.append(tuple(open_rows[row][:2]))
                open_rows[row] = open_rows[row][1:]
            batch.append(pairs)
        batches.append(batch)
    return batches


class Masks:
    """Dropout with a new mask in every call; `drawn` has all masks."""

    def __init__(self, keep=0.7, seed=0):
        self.generator, self.keep, self.drawn = np.random.default_rng(seed), keep, []

    def __call__(self, x):
        mask = (self.generator.random(tuple(x.shape)) < self.keep) / self.keep
        self.drawn.append(mask)
        return x * torch.from_numpy(mask).to(x)


def zero_states(config, rows=None):
    """Zero (h, c) of every direction, row and layer."""
    lstm = config.model.lstm
    layers = [(torch.zeros(lstm.projection_dim).double(), torch.zeros(lstm.dim).double())] * lstm.n_layers
    return [[list(layers) for _ in range(rows or config.training.batch_size)] for _ in range(1 + config.bidirectional)]


def softmax_loss(h, target, model, samples=None, direction=0, position=0):
    """Cross entropy of word `target` at output h [P], among all words or among the samples of a position."""
    w, b = (model.weights[name] for name in SOFTMAX)
    if samples is None:
        return torch.nn.functional.cross_entropy(w @ h + b, torch.tensor(target))
    words = samples.words[samples.drawn[direction]]
    assert samples.words[samples.targets[direction][position]] == target
    score = w[target] @ h + b[target] - samples.log_targets[direction][position].double()
    others = (w[words] @ h + b[words] - samples.log_drawn[direction].double())[words != target]
    return torch.cat([score[None], others]).logsumexp(0) - score


def losses(model, config, batch, states, masks=None):
    """Mean loss of every direction of a `PlainElmo`, [D], and the states of every row after the batch, position by
    position."""
    count, steps, size = config.training.batch_size, config.training.unroll_steps, config.model.lstm.projection_dim
    n_layers, means, after = config.model.lstm.n_layers, [], []
    for k, numbers in enumerate(batch.rows):
        total, ends = [], []
        for row in range(count):
            positions = np.arange(steps) * count + row
            x = torch.stack([model.encode(i) for i in batch.tokens[numbers[positions]]])
            half = slice(k * size, (k + 1) * size)
            of_layers = masks and [torch.from_numpy(masks[layer][positions][:, half]) for layer in range(n_layers)]
            (*_, x), end = model.run_direction(x, states[k][row], k, of_layers)
            x = x if masks is None else x * torch.from_numpy(masks[n_layers + k][positions])
            total += [softmax_loss(h, int(batch.targets[k][position]), model, batch.samples, k, position)
                      for h, position in zip(x, positions)]
            ends.append(end)
        means.append(torch.stack(total).mean())
        after.append(ends)
    assert model.counts.cell > 0 and (model.counts.projection > 0 or not config.model.lstm.is_projected)
    return torch.stack(means), after


def adagrad(model, updater, batch, sums):
    """Train on a batch from zero states, with dropout in two directions; returns Adagrad's next weights and `sums` in
    float64 by the gradients of the plain model, these gradients, and their norm."""
    training, weights, masks = model.config.training, model.weights(), Masks() if model.config.bidirectional else None
    _, actual_norm = update(model, updater, batch, masks)
    grads = gradients(weights, model.config, batch, masks and masks.drawn)
    weights = {name: value.astype(np.float64) for name, value in weights.items()}
    if training.share_embedding_softmax:
        grads.pop("embedding")  # the same tensor as the softmax's W
    norm = np.sqrt(sum(float((gradient**2).sum()) for gradient in grads.values()))
    assert abs(actual_norm / norm - 1) < 1e-5
    for name, gradient in grads.items():
        grads[name] = gradient = gradient.numpy() * min(1, training.all_clip_norm_val / norm)
        sums[name] = sums[name] + gradient**2
        weights[name] -= training.learning_rate * gradient / np.sqrt(sums[name])
    return weights, sums, grads, norm


def gradients(weights, config, batch, masks=None):
    """Gradients of the loss times the steps, from zero states, by dataset name."""
    model = PlainElmo(config.model, weights, trained=True)
    if config.training.share_embedding_softmax:
        model.weights["embedding"] = model.weights[SOFTMAX[0]]
    means, _ = losses(model, config, batch, zero_states(config), masks)
    (means.mean() * config.training.unroll_steps).backward()
    return {name: value.grad for name, value in model.weights.items()}
