"""Bounds of files, rooms, functions and argument lists, of the whole, and the table of CONTRIBUTING.md."""

import pytest

from tests.support import weight
from tests.support.files import ROOT


@pytest.fixture(scope="module")
def files():
    return weight.tree()


def test_no_file_room_function_or_list_is_beyond_its_bound(files):
    assert weight.breaches(files) == []


def test_the_whole_is_within_its_bounds(files):
    product, tests, words = weight.totals(files)
    assert product <= weight.PRODUCT and tests <= weight.TESTS and words <= weight.WORDS, (product, tests, words)


def test_the_table_of_contributing_is_true(files):
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    assert weight.differences(weight.read_table(page), weight.rooms(files)) == []
