"""Bounds of files, rooms, functions and argument lists, of the whole, and the table of CONTRIBUTING.md; and limits of
accuracy, which come from the tables of tolerances alone."""

import ast
import re

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


ERRORS, LIMITS = {"relative_error", "error_of", "error"}, re.compile("limits?|tolerances?", re.IGNORECASE)


def literal_limits(text: str) -> list[int]:
    """Lines with a number where a limit of an error is expected; float64's own, below 1e-9, may be numbers."""
    lines = set()
    for node in ast.walk(ast.parse(text)):
        names: set[str] = set()
        if isinstance(node, ast.Compare):
            calls = (part.func for part in ast.walk(node) if isinstance(part, ast.Call))
            names = ERRORS & {getattr(function, "id", getattr(function, "attr", "")) for function in calls}
        elif isinstance(node, ast.Assign):
            names = {part.id for target in node.targets for part in ast.walk(target) if isinstance(part, ast.Name)}
        elif isinstance(node, ast.FunctionDef):
            names = {node.name}
        if (names & ERRORS and isinstance(node, ast.Compare)) or any(map(LIMITS.fullmatch, names)):
            lines |= {part.lineno for part in ast.walk(node) if isinstance(part, ast.Constant)
                      and isinstance(part.value, float) and 1e-9 < part.value < 0.2}
    return sorted(lines)


@pytest.mark.parametrize("text", [
    "assert relative_error(a, b) < 2e-3", "assert 2e-3 > testing.relative_error(a, b)", "assert error_of(a, b) <= 0.1",
    "assert all(error(*pair) < 1e-6 for pair in pairs)", "limit = {'low': 5e-2, 'high': 1e-4}[precision]",
    "dtype, tolerance = half, 3e-3", "def limits(self):\n    return 5e-3, GRADIENT"])
def test_a_number_as_a_limit_is_found(text):
    assert literal_limits(text) == [1 + text.count("\n")]


@pytest.mark.parametrize("text", [
    "assert relative_error(a, b) < AGAINST_FLOAT64['ieee']", "limit = 10", "limit = 1e-12", "assert cosine(a) < 1e-3"])
def test_a_table_is_no_number(text):
    assert literal_limits(text) == []


def test_limits_of_accuracy_come_from_the_tables():
    """A number that one processor keeps, another one does not."""
    found = {str(path.relative_to(ROOT)): lines for path in (ROOT / "tests").rglob("*.py")
             if (lines := literal_limits(path.read_text(encoding="utf-8")))}
    assert not found
