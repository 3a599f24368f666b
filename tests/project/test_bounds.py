"""Bounds of files, rooms, functions and argument lists, of the whole, and the table of CONTRIBUTING.md; and limits of
accuracy, which come from the tables of tolerances alone."""

import ast
import re

import pytest
from torch import nn

from elmo_fast import BiLm
from tests.support import weight
from tests.support.files import ROOT


@pytest.fixture(scope="module")
def files():
    return weight.tree()


def test_no_file_room_function_or_list_is_beyond_its_bound(files):
    assert weight.breaches(files) == []


def test_a_bilm_has_few_public_names_beside_those_of_modules():
    names = [name for name in vars(BiLm) if not name.startswith("_") and not hasattr(nn.Module, name)]
    assert len(names) <= 15, names


def test_the_whole_is_within_its_bounds(files):
    product, tests, words = weight.totals(files)
    assert product <= weight.PRODUCT and tests <= weight.TESTS and words <= weight.WORDS, (product, tests, words)


def test_the_table_of_contributing_is_true(files):
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    assert weight.differences(weight.read_table(page), weight.rooms(files)) == []


ERRORS, LIMITS = {"relative_error", "error_of", "error"}, re.compile("limits?|tolerances?", re.IGNORECASE)


def literal_limits(text):
    """Lines with a number where a limit of an error is expected; float64's own, below 1e-9, may be numbers."""
    for node in ast.walk(ast.parse(text)):
        parts = [*ast.walk(node)] if isinstance(node, (ast.Compare, ast.Assign, ast.FunctionDef)) else []
        called = {getattr(part.func, "id", getattr(part.func, "attr", "")) for part in parts
                  if isinstance(part, ast.Call)}
        names = [getattr(node, "name", None) or "", *(part.id for target in getattr(node, "targets", ())
                                                      for part in ast.walk(target) if isinstance(part, ast.Name))]
        if (isinstance(node, ast.Compare) and called & ERRORS) or any(map(LIMITS.fullmatch, names)):
            yield from (part.lineno for part in parts
                        if isinstance(part, ast.Constant) and isinstance(part.value, float) and 1e-9 < part.value < 0.2)


def test_limits_of_accuracy_come_from_the_tables():
    """A number that one processor keeps, another one does not."""
    files = {path: [*literal_limits(path.read_text(encoding="utf-8"))] for path in (ROOT / "tests").rglob("*.py")}
    assert not {path: lines for path, lines in files.items() if lines}
