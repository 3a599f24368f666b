"""Words drawn for a sampled softmax: the law, the counts, the hits."""

import numpy as np
import pytest

from elmo_fast.train.data import draw_samples
from elmo_fast.train.loss import draw_unique, log_expected_count, probabilities


def test_the_law_is_the_log_uniform_one():
    for size in (1, 5, 1000):
        words = np.arange(size)
        np.testing.assert_allclose(probabilities(words, size), (np.log(words + 2) - np.log(words + 1)) / np.log(size + 1))
        assert probabilities(words, size).sum() == pytest.approx(1)


def test_draws_are_unique_follow_the_law_and_are_counted():
    size, count, rounds = 50, 6, 4000
    seen, expected = np.zeros(size), np.zeros(size)
    for number in range(rounds):
        words, draws = draw_unique(np.random.default_rng([1, number]), count, size)
        assert len(set(words.tolist())) == count <= draws and 0 <= words.min() and words.max() < size
        seen[words] += 1
        expected += np.exp(log_expected_count(np.arange(size), size, draws))
    # How often each word came, and what the counts of draws predict, over the same rounds.
    spread = np.sqrt(np.maximum(expected * (1 - expected / rounds), 1))
    assert (abs(seen - expected) / spread).max() < 5
    first = np.array([draw_unique(np.random.default_rng([2, number]), 1, size)[0][0] for number in range(rounds)])
    found = np.bincount(first, minlength=size) / rounds
    law = probabilities(np.arange(size), size)
    assert (abs(found - law) / np.sqrt(law / rounds)).max() < 5


def test_the_count_of_draws_is_where_the_last_new_word_came():
    generator, again = np.random.default_rng(3), np.random.default_rng(3)
    words, draws = draw_unique(generator, 8, 30)
    raw = np.minimum(np.expm1(again.random(16) * np.log(31)).astype(int), 29).tolist()
    while len(set(raw)) < 8:
        raw += np.minimum(np.expm1(again.random(16) * np.log(31)).astype(int), 29).tolist()
    assert list(dict.fromkeys(raw))[:8] == words.tolist()
    assert raw.index(words[-1]) + 1 == draws


def test_every_word_can_be_drawn_and_no_more():
    words, _ = draw_unique(np.random.default_rng(0), 40, 40)
    assert sorted(words.tolist()) == list(range(40))
    with pytest.raises(ValueError, match="n_negative_samples_batch: expected at most the 40 words .*, got 41"):
        draw_unique(np.random.default_rng(0), 41, 40)


def test_samples_are_by_direction_and_their_hits_complete():
    targets = np.random.default_rng(0).integers(0, 30, (2, 25))
    samples = draw_samples(targets, 12, 30, [4])
    words = samples.words.numpy()
    assert (words[samples.targets.numpy()] == targets).all() and (np.diff(words) > 0).all()
    drawn = words[samples.drawn.numpy()]
    assert sorted(drawn[0]) != sorted(drawn[1])
    for k in range(2):
        expected = {(s, n) for s in range(25) for n in range(12) if drawn[k][n] == targets[k][s]}
        assert set(zip(*samples.hits[k].tolist())) == expected and expected
