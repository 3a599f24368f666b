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


@pytest.mark.parametrize("path, text, breach", [
    ("elmo_fast/a.py", "x = 1\n" * 351, "elmo_fast/a.py: 351 lines"),
    ("csrc/cpu/a.h", "// a\n" * 351, "csrc/cpu/a.h: 351 lines"),
    ("elmo_fast/a.py", "def f():\n" + "    x = 1\n" * 40, "elmo_fast/a.py:1: f has 41 lines"),
    ("elmo_fast/a.py", f"class A:\n    def f(self, {', '.join('abcdefghijk')}):\n        pass\n",
     "elmo_fast/a.py:2: f has 11 arguments"),
    ("elmo_fast/a.py", f"def f(*, {', '.join('abcdefghijk')}):\n    pass\n", "elmo_fast/a.py:1: f has 11 arguments"),
])
def test_a_planted_breach_is_found(path, text, breach):
    assert weight.breaches({path: text}) == [breach]


def test_a_planted_room_is_found_and_what_fits_is_not():
    room = {f"kernels/k{number}.py": "x = 1\n" for number in range(13)}
    assert weight.breaches(room) == ["kernels/: 13 files"]
    room.pop("kernels/k0.py")
    fits = {"elmo_fast/a.py": f"def f(self, {', '.join('abcdefghij')}):\n" + "    x = 1\n" * 39 + "y = 1\n" * 310}
    assert weight.breaches({**room, **fits, "tests/a.py": "x = 1\n" * 999}) == []


def test_a_table_that_is_off_is_found():
    found = {("product", "csrc"): 1000, ("tests", "tests/a"): 50}
    page = f"before\n<!-- weight -->\n{weight.table(found)}\n<!-- /weight -->\n"
    assert weight.read_table(page) == found
    assert weight.differences(found, {**found, ("product", "csrc"): 1030}) == []
    assert weight.differences(found, {**found, ("product", "csrc"): 1040}) == [
        "product, csrc: 1,000 in the table, 1,040 in the tree"]
    assert weight.differences(found, {("product", "csrc"): 1000}) == ["tests, tests/a: 50 in the table, 0 in the tree"]
