"""Training data, loss and gradients in plain Python and float64, to compare the trainer with."""

import copy

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


def softmax_loss(h, target, weights, samples=None, direction=0, position=0):
    """Cross entropy of word `target` at output h [P], among all words or among the samples of a position."""
    w, b = (weights[name].astype(np.float64) for name in SOFTMAX)
    if samples is None:
        scores = w @ h + b
        return np.log(np.exp(scores - scores.max()).sum()) + scores.max() - scores[target]
    words = samples.words.numpy()
    sampled_words = words[samples.drawn[direction].numpy()]
    assert words[samples.targets[direction][position]] == target
    expected = dict(zip(sampled_words, samples.log_drawn[direction].numpy().astype(np.float64)))
    scores = [w[target] @ h + b[target] - float(samples.log_targets[direction][position])]
    scores += [w[word] @ h + b[word] - expected[word] for word in sampled_words if word != target]
    return np.log(np.exp(scores).sum()) - scores[0]


def losses(weights, config, batch, states, masks=None):
    """Mean loss of every direction and the states of every row after the batch, position by position."""
    count, steps, size = config.training.batch_size, config.training.unroll_steps, config.model.lstm.projection_dim
    n_layers, means, after, model = config.model.lstm.n_layers, [], [], PlainElmo(config.model, weights)
    for k, numbers in enumerate(batch.rows):
        total, ends = np.zeros(steps * count), []
        for row in range(count):
            positions = np.arange(steps) * count + row
            x = torch.stack([model.encode(i) for i in batch.tokens[numbers[positions]]])
            half = slice(k * size, (k + 1) * size)
            of_layers = masks and [torch.from_numpy(masks[layer][positions][:, half]) for layer in range(n_layers)]
            (*_, x), end = model.run_direction(x, states[k][row], k, of_layers)
            x = x.numpy() if masks is None else x.numpy() * masks[n_layers + k][positions]
            for h, position in zip(x, positions):
                target = int(batch.targets[k][position])
                total[position] = softmax_loss(h, target, weights, batch.samples, k, position)
            ends.append(end)
        means.append(total.mean())
        after.append(ends)
    assert model.counts.cell > 0 and (model.counts.projection > 0 or not config.model.lstm.is_projected)
    return np.array(means), after


def adagrad(model, updater, batch, sums):
    """Train on a batch from zero states, with dropout; returns Adagrad's next weights and `sums` in float64 by the
    gradients of the reference, these gradients, and their norm."""
    training, grads = model.config.training, gradients(model, batch, Masks())
    weights = {name: value.astype(np.float64) for name, value in model.weights().items()}
    if training.share_embedding_softmax:
        grads.pop("embedding")  # the same tensor as the softmax's W
    norm = np.sqrt(sum(float((gradient**2).sum()) for gradient in grads.values()))
    assert abs(update(model, updater, batch, Masks())[1] / norm - 1) < 1e-5
    for name, gradient in grads.items():
        grads[name] = gradient = gradient.numpy() * min(1, training.all_clip_norm_val / norm)
        sums[name] = sums[name] + gradient**2
        weights[name] -= training.learning_rate * gradient / np.sqrt(sums[name])
    return weights, sums, grads, norm


def gradients(language_model, batch, drop=None):
    """Gradients of the loss times the steps: autograd in float64, reference ops, a softmax over complete tables."""
    drop = drop or (lambda x: x)
    twin = copy.deepcopy(language_model).double()
    twin.backend = "reference"
    training = twin.config.training
    state = twin.zero_state(training.batch_size)
    tops, _ = twin.outputs(batch.tokens, batch.rows, training.unroll_steps, state, drop)
    tops = twin.by_direction(tops, training.unroll_steps, batch.rows.shape[1])
    losses = []
    for k, top in enumerate(tops):
        targets = batch.targets[k]
        scores = drop(top) @ twin.softmax_w.t() + twin.softmax_b
        if batch.samples is not None:
            sampled_words = batch.samples.words[batch.samples.drawn[k]]
            target_scores = scores.gather(1, targets[:, None]) - batch.samples.log_targets[k][:, None]
            sample_scores = scores[:, sampled_words] - batch.samples.log_drawn[k]
            sample_scores = sample_scores.masked_fill(sampled_words == targets[:, None], -torch.inf)
            scores, targets = torch.cat([target_scores, sample_scores], 1), torch.zeros_like(targets)
        losses.append(torch.nn.functional.cross_entropy(scores, targets))
    (torch.stack(losses).mean() * training.unroll_steps).backward()
    return {name: parameter.grad for name, parameter in twin.by_name().items()}
