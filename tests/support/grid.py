"""Grids of test parameters, of which `make test` runs what meets every pair of values and `make test-all` the rest."""

import itertools

import pytest


def grid(*choices, together: int = 2) -> list:
    """The product of `choices` for `pytest.mark.parametrize`. Rows without a new combination of the values of
    `together` parameters are long tests."""
    everything = list(itertools.product(*(range(len(values)) for values in choices)))
    met = {row: set(itertools.combinations(enumerate(row), together)) for row in everything}
    missing, quick = set().union(*met.values()), set()
    while missing:
        best = max(everything, key=lambda row: len(missing & met[row]))
        quick.add(best)
        missing -= met[best]
    return [pytest.param(*(values[k] for values, k in zip(choices, row)),
                         marks=() if row in quick else pytest.mark.long) for row in everything]
