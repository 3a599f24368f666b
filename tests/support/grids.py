"""Products of parameters: enough combinations for every pair of values run in `make test`, the rest is `long`."""

import itertools

import pytest


def pairwise(*axes):
    """`pytest.param` of every combination of the axes' values, for a test of as many arguments."""
    product = list(itertools.product(*(range(len(axis)) for axis in axes)))
    uncovered = {pair for combination in product for pair in _pairs(combination)}
    quick = set()
    while uncovered:
        best = max(product, key=lambda combination: len(uncovered & _pairs(combination)))
        quick.add(best)
        uncovered -= _pairs(best)
    return [pytest.param(*(axis[at] for axis, at in zip(axes, combination)),
                         marks=[] if combination in quick else [pytest.mark.long]) for combination in product]


def _pairs(combination):
    return set(itertools.combinations(enumerate(combination), 2))
