"""Grids of test parameters of which `make test` runs enough to meet every pair of values."""

import itertools

import pytest


def grid(*choices) -> list:
    """The product of `choices` for `pytest.mark.parametrize`; what adds no pair of two parameters' values is long."""
    everything = list(itertools.product(*(range(len(values)) for values in choices)))
    pairs = {row: set(itertools.combinations(enumerate(row), 2)) for row in everything}
    missing, quick = set().union(*pairs.values()), set()
    while missing:
        best = max(everything, key=lambda row: len(missing & pairs[row]))
        quick.add(best)
        missing -= pairs[best]
    return [pytest.param(*(values[k] for values, k in zip(choices, row)), marks=() if row in quick else pytest.mark.long)
            for row in everything]
