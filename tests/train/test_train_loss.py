"""The loss, its gradients and one update against NumPy in float64 and torch's autograd."""

import copy

import numpy as np
import pytest
import torch

from elmo_fast.model.softmax_head import SOFTMAX
from elmo_fast.text.vocabulary import Vocabulary
from elmo_fast.train.data import BatchStream, Numbering, load_batches
from elmo_fast.train.model import LanguageModel
from elmo_fast.train.replicas import Replicas
from elmo_fast.train.loss import full_cross_entropy, chunked_full_cross_entropy, sampled_cross_entropy
from elmo_fast.train.corpus import read_shards
from elmo_fast.train.data import Order
from elmo_fast.train.optimizer import Updater
from tests.support import plain
from elmo_fast.testing.tolerances import relative_error
from tests.support.training import TINY, WORD_INPUT, model, plan, write_corpus

KINDS = {
    "characters": (TINY, {}),
    "words": (WORD_INPUT, {}),
    "one direction": (TINY, {"bidirectional": False}),
    "one direction, even rows": (TINY, {"bidirectional": False, "batch_size": 4}),
    "one direction, one row": (WORD_INPUT, {"bidirectional": False, "batch_size": 1}),
    "full softmax": (TINY, {"sample_softmax": False}),
    "shared table": (WORD_INPUT, {"share_embedding_softmax": True}),
    "one layer": ({**TINY, "lstm": {**TINY["lstm"], "n_layers": 1}}, {}),
    "three layers, no skip": ({**TINY, "lstm": {**TINY["lstm"], "n_layers": 3, "use_skip_connections": False}}, {}),
    "no projection": ({**TINY, "lstm": {**TINY["lstm"], "dim": 5}}, {}),
}


def batches_of(of, folder, count=3):
    pattern, vocabulary_file = write_corpus(folder)
    vocabulary = Vocabulary(vocabulary_file, validate_file=True)
    cnn, learning = of.model.char_cnn, of.training
    numbering = Numbering(vocabulary, cnn and cnn.max_characters_per_token,
                          learning.n_negative_samples_batch if learning.sample_softmax else None, learning.seed)
    orders = [Order(5, False), Order(5, True)][: 2 if of.bidirectional else 1]
    stream = BatchStream(read_shards(pattern, "train"), numbering, orders, learning.batch_size, learning.unroll_steps)
    source = load_batches(stream, 0, False)
    return vocabulary, [next(source) for _ in range(count)]


def set_up(kind, folder, **changes):
    content, own = KINDS[kind]
    of = plan(content, words=28, **{**own, **changes})
    return of, model(of), *batches_of(of, folder)


class Masks:
    """A dropout with masks drawn ahead, one a call, that can be looked at."""

    def __init__(self, keep=0.7, seed=0):
        self.generator, self.keep, self.drawn = np.random.default_rng(seed), keep, []

    def __call__(self, x):
        mask = (self.generator.random(tuple(x.shape)) < self.keep) / self.keep
        self.drawn.append(mask)
        return x * torch.from_numpy(mask).to(x)


def plain_softmax_loss(h, target, weights, samples, k, position):
    w, b = (weights[name].astype(np.float64) for name in SOFTMAX)
    if samples is None:
        scores = w @ h + b
        return np.log(np.exp(scores - scores.max()).sum()) + scores.max() - scores[target]
    words, drawn = samples.words.numpy(), samples.words.numpy()[samples.drawn[k].numpy()]
    assert words[samples.targets[k][position]] == target
    expected = {word: value for word, value in zip(drawn, samples.log_drawn[k].numpy().astype(np.float64))}
    scores = [w[target] @ h + b[target] - float(samples.log_targets[k][position])]
    scores += [w[word] @ h + b[word] - expected[word] for word in drawn if word != target]
    return np.log(np.exp(scores).sum()) - scores[0]


def plain_losses(weights, of, batch, states, masks=None):
    """Mean loss of each direction and the states of every row after the batch, position by position."""
    rows, lstm, losses, after, counts = of.training.batch_size, of.model.lstm, [], [], plain.Counts()
    steps = of.training.unroll_steps
    for k, numbers in enumerate(batch.rows.numpy()):
        total = np.zeros(steps * rows)
        ends = []
        for row in range(rows):
            positions = np.arange(steps) * rows + row
            ids = batch.tokens[numbers[positions]].numpy()
            table = weights.get("embedding")
            x = np.array([table[i - 1].astype(np.float64) if table is not None else
                          plain.token_vector(i, weights, of.model) for i in ids])
            half = slice(k * lstm.projection_dim, (k + 1) * lstm.projection_dim)
            x = x if masks is None else x * masks[0][positions][:, half]
            end = []
            for layer in range(lstm.n_layers):
                x = x if masks is None or not layer else x * masks[layer][positions][:, half]
                name = f"RNN_{k}/RNN/MultiRNNCell/Cell{layer}/LSTMCell"
                w_p = weights[f"{name}/W_P_0"].astype(np.float64) if lstm.is_projected else None
                out, state = plain.run_direction(x, states[k][row][layer], weights[f"{name}/W_0"].astype(np.float64),
                                                 weights[f"{name}/B"].astype(np.float64), w_p, of.model, counts)
                x = out + x if layer and lstm.use_skip_connections else out
                end.append(state)
            x = x if masks is None else x * masks[lstm.n_layers + k][positions]
            for h, position in zip(x, positions):
                total[position] = plain_softmax_loss(h, int(batch.targets[k][position]), weights, batch.samples, k,
                                                     position)
            ends.append(end)
        losses.append(total.mean())
        after.append(ends)
    assert counts.cell > 0 and (counts.projection > 0 or not lstm.is_projected)
    return np.array(losses), after


def zero_states(of):
    lstm = of.model.lstm
    one = [(np.zeros(lstm.projection_dim), np.zeros(lstm.dim))] * lstm.n_layers
    return [[one] * of.training.batch_size] * (2 if of.bidirectional else 1)


@pytest.mark.parametrize("kind", KINDS)
def test_losses_are_the_plain_ones_over_carried_batches(kind, tmp_path):
    of, language_model, _, batches = set_up(kind, tmp_path)
    weights = language_model.weights()
    state, plain_state = language_model.zero_state(of.training.batch_size), zero_states(of)
    for batch in batches:
        losses, state, _ = language_model.losses(batch, state, None)
        expected, plain_state = plain_losses(weights, of, batch, plain_state)
        np.testing.assert_allclose(losses.detach().numpy(), expected, rtol=2e-6)


@pytest.mark.parametrize("kind", ["characters", "one layer", "three layers, no skip", "words"])
def test_dropout_is_on_every_layers_input_and_the_top_and_skips_add_what_it_left(kind, tmp_path):
    of, language_model, _, batches = set_up(kind, tmp_path)
    drop = Masks()
    losses, _, _ = language_model.losses(batches[0], language_model.zero_state(of.training.batch_size), drop)
    assert len(drop.drawn) == of.model.lstm.n_layers + 2
    expected, _ = plain_losses(language_model.weights(), of, batches[0], zero_states(of), drop.drawn)
    np.testing.assert_allclose(losses.detach().numpy(), expected, rtol=2e-6)


def plain_gradients(language_model, batch, drop, unroll):
    """Gradients by torch's autograd in float64: reference ops, and a softmax put together from whole tables."""
    twin = copy.deepcopy(language_model).double()
    twin.backend = "reference"
    of = twin.config
    state = twin.zero_state(of.training.batch_size)
    tops, _ = twin.outputs(batch.tokens, batch.rows, of.training.unroll_steps, state, drop)
    tops = twin.by_direction(tops, of.training.unroll_steps, batch.rows.shape[1])
    losses = []
    for k, top in enumerate(tops):
        top, targets = drop(top), batch.targets[k]
        scores = top @ twin.softmax_w.t() + twin.softmax_b
        if batch.samples is not None:
            drawn = batch.samples.words[batch.samples.drawn[k]]
            own = scores.gather(1, targets[:, None]) - batch.samples.log_targets[k][:, None]
            others = scores[:, drawn] - batch.samples.log_drawn[k]
            others = others.masked_fill(drawn == targets[:, None], -torch.inf)
            losses.append(torch.nn.functional.cross_entropy(torch.cat([own, others], 1), torch.zeros_like(targets)))
        else:
            losses.append(torch.nn.functional.cross_entropy(scores, targets))
    (torch.stack(losses).mean() * unroll).backward()
    return {name: each.grad for name, each in twin.by_name().items()}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("clip", [10.0, 0.05])
def test_an_update_is_adagrads_with_the_gradients_of_the_reference(kind, clip, tmp_path):
    of, language_model, _, batches = set_up(kind, tmp_path, all_clip_norm_val=clip)
    before, unroll = language_model.weights(), of.training.unroll_steps
    expected = plain_gradients(language_model, batches[0], Masks(), unroll)
    updater = Updater(language_model, of.training, Replicas(torch.device("cpu")))
    losses, _, touched = language_model.losses(batches[0], language_model.zero_state(of.training.batch_size), Masks())
    (losses.mean() * unroll).backward()
    norm = updater.step(touched, 0.2)
    after = language_model.weights()
    if of.training.share_embedding_softmax:
        expected.pop("embedding")  # the same tensor as the softmax's W
    expected_norm = torch.stack([each.norm() for each in expected.values()]).norm()
    assert abs(float(norm / expected_norm) - 1) < 1e-5
    scale = min(1, clip / float(expected_norm))
    assert (scale < 1) == (clip < 1)
    for name, gradient in expected.items():
        gradient = gradient.numpy() * scale
        change = before[name] - 0.2 * gradient / np.sqrt(1 + gradient**2)
        np.testing.assert_allclose(after[name], change, atol=3e-7 + 2e-5 * abs(gradient).max(), err_msg=name)
        assert abs(gradient).max() > 0, name


def test_adagrad_adds_nothing_to_the_root_and_sums_squares(tmp_path):
    of, language_model, _, batches = set_up("characters", tmp_path, learning_rate=0.3)
    updater = Updater(language_model, of.training, Replicas(torch.device("cpu")))
    plain_weights = {name: value.astype(np.float64) for name, value in language_model.weights().items()}
    sums = {name: np.ones_like(value) for name, value in plain_weights.items()}
    for batch in batches:
        gradients = plain_gradients(language_model, batch, lambda x: x, of.training.unroll_steps)
        losses, _, touched = language_model.losses(batch, language_model.zero_state(3), None)
        (losses.mean() * of.training.unroll_steps).backward()
        updater.step(touched, 0.3)
        norm = np.sqrt(sum(float((each**2).sum()) for each in gradients.values()))
        for name, gradient in gradients.items():
            gradient = gradient.numpy() * min(1, 10 / norm)
            sums[name] += gradient**2
            plain_weights[name] -= 0.3 * gradient / np.sqrt(sums[name])
    for name, value in language_model.weights().items():
        np.testing.assert_allclose(value, plain_weights[name], atol=2e-5, err_msg=name)


def test_adamw_decays_matrices_alone_and_moves_untouched_rows_too(tmp_path):
    of, language_model, _, batches = set_up("characters", tmp_path, optimizer="adamw", weight_decay=0.1)
    updater = Updater(language_model, of.training, Replicas(torch.device("cpu")))
    before = language_model.weights()
    gradients = plain_gradients(language_model, batches[0], lambda x: x, of.training.unroll_steps)
    losses, _, touched = language_model.losses(batches[0], language_model.zero_state(3), None)
    (losses.mean() * of.training.unroll_steps).backward()
    updater.step(touched, 0.01)
    norm = np.sqrt(sum(float((each**2).sum()) for each in gradients.values()))
    for name, value in language_model.weights().items():
        gradient = gradients[name].numpy() * min(1, 10 / norm)
        kept = before[name] * (1 - 0.01 * 0.1 * (value.ndim > 1))
        expected = kept - 0.01 * gradient / (abs(gradient) + 1e-8)
        sure = abs(gradient) > 1e-4  # at the first step Adam follows the sign, which rounding decides near 0
        np.testing.assert_allclose(value[sure], expected[sure], atol=1e-5, err_msg=name)
        np.testing.assert_allclose(value[gradient == 0], kept[gradient == 0], atol=1e-6, err_msg=name)


def test_sampled_cross_entropy_has_the_gradients_of_its_definition():
    generator = torch.Generator().manual_seed(0)
    s, p, r, k = 6, 4, 9, 5
    drawn, targets = torch.tensor([1, 8, 3, 0, 5]), torch.tensor([1, 2, 2, 7, 5, 8])
    hits = torch.tensor([[0, 4, 5], [0, 4, 1]])
    states, table, bias = (torch.randn(*shape, generator=generator, dtype=torch.float64, requires_grad=True)
                           for shape in ((s, p), (r, p), (r,)))
    logs = torch.randn(s, generator=generator), torch.randn(k, generator=generator)
    torch.autograd.gradcheck(lambda a, b, c: sampled_cross_entropy(a, b, c, targets, drawn, *logs, hits),
                             (states, table, bias))


def test_scores_far_apart_are_no_trouble():
    states, table = torch.tensor([[300.0], [-300.0]]), torch.tensor([[1.0], [-1.0], [0.5]])
    hits = torch.zeros(2, 0, dtype=torch.int64)
    loss = sampled_cross_entropy(states, table, torch.zeros(3), torch.tensor([1, 1]), torch.tensor([0, 2]),
                                 torch.zeros(2), torch.zeros(2), hits)
    assert float(loss) == pytest.approx(300.0)  # (600 + 0) / 2


@pytest.mark.parametrize("kind", ["characters", "one direction"])
def test_full_losses_in_pieces_are_the_whole_ones(kind, tmp_path, monkeypatch):
    states, table, bias = torch.randn(50, 6), torch.randn(31, 6), torch.randn(31)
    targets = torch.randint(0, 31, (50,))
    expected = full_cross_entropy(states.double(), table.double(), bias.double(), targets)
    for at_once in (1, 100, 1 << 20):
        monkeypatch.setattr("elmo_fast.train.loss._MAX_SCORES", at_once)
        assert relative_error(chunked_full_cross_entropy(states, table, bias, targets), expected) < 1e-6


@pytest.mark.parametrize("optimizer", ["adagrad", "adamw"])
def test_an_update_is_seen_by_what_was_packed_from_the_weights(optimizer, tmp_path):
    """The native engine packs weights once for each version of them; some of torch's optimizers count no version."""
    of, language_model, _, batches = set_up("characters", tmp_path, optimizer=optimizer)
    updater = Updater(language_model, of.training, Replicas(torch.device("cpu")))

    def tops(each):
        with torch.no_grad():
            found, _ = each.outputs(batches[0].tokens, batches[0].rows, of.training.unroll_steps, each.zero_state(3))
        return torch.cat(found, dim=1)

    before = tops(language_model)
    losses, _, touched = language_model.losses(batches[0], language_model.zero_state(3), None)
    (losses.mean() * 20).backward()
    updater.step(touched, 0.1)
    fresh = LanguageModel(of, language_model.weights())
    assert relative_error(tops(language_model), tops(fresh)) < 1e-6
    assert relative_error(tops(language_model), before) > 1e-3
