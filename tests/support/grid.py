"""Test parameters: `make test` runs some, of grids enough for every pair of values, and `make test-all` the rest."""

import itertools
from collections.abc import Collection, Iterable

import pytest


def grid(*choices, together: int = 2, only_pairs: Collection = (), long: Collection = ()) -> list:
    """The product of `choices` for `pytest.mark.parametrize`. Rows without a new combination of the values of
    `together` parameters are long tests, and are left out if they have a value of `only_pairs`; so are those with a
    value of `long`."""
    everything = list(itertools.product(*(range(len(values)) for values in choices)))
    met = {row: set(itertools.combinations(enumerate(row), together)) for row in everything}
    missing, quick = set().union(*met.values()), set()
    while missing:
        best = max(everything, key=lambda row: len(missing & met[row]))
        quick.add(best)
        missing -= met[best]

    def has(row: tuple[int, ...], some: Collection) -> bool:
        return any(values[k] in some for values, k in zip(choices, row))

    return [pytest.param(*(values[k] for values, k in zip(choices, row)),
                         marks=() if row in quick and not has(row, long) else pytest.mark.long)
            for row in everything if row in quick or not has(row, only_pairs)]


def mostly_long(values: Iterable, quick: int = 1) -> list:
    """The values, tuples for several parameters, for `pytest.mark.parametrize`; those after the first `quick` are long
    tests."""
    return [pytest.param(*(value if type(value) is tuple else [value]), marks=() if k < quick else pytest.mark.long)
            for k, value in enumerate(values)]
