"""docs/migrating.md: dotted names and imports resolve, and every public name of a drop-in is listed.

The calls of the page's tables run in tests of the other modules, which `runs` marks.
"""

import importlib
import pkgutil
import re

import pytest

from elmo_fast import compat
from tests.support.migrating import SYSTEMS, TEXT, marks, tables

MODULES = [module.name for module in pkgutil.walk_packages(compat.__path__, "elmo_fast.compat.")
           if not module.name.endswith("__main__")]


@pytest.mark.parametrize("name", sorted(set(re.findall(r"elmo_fast\.[\w.]*\w", TEXT))))
def test_a_name_of_the_page_resolves(name):
    assert pkgutil.resolve_name(name) is not None


@pytest.mark.parametrize("module, names", re.findall(r"`from (bilm[\w.]*|elmo_fast[\w.]*) import ([\w, ]+)`", TEXT))
def test_an_import_of_the_page(module, names):
    imported = importlib.import_module(re.sub("^bilm", "elmo_fast.compat.bilm", module))
    assert all(hasattr(imported, name.strip()) for name in names.split(","))


@pytest.mark.parametrize("module", MODULES)
def test_a_public_name_is_on_the_page(module):
    public = getattr(importlib.import_module(module), "__all__", ())
    assert [name for name in public if not re.search(rf"\b{name}\b", TEXT)] == []


@pytest.mark.parametrize("modules", SYSTEMS)
def test_every_row_is_run_by_one_test(modules):
    """Every mark of a test names one row."""
    cells, beginnings = [cell for heading in SYSTEMS[modules] for cell in tables()[heading]], marks(modules)
    matches = {cell: [mark for mark in beginnings if cell == mark or (cell.startswith(mark) and mark not in cells)]
               for cell in cells}
    assert {cell: marked for cell, marked in matches.items() if len(marked) != 1} == {}
    assert sorted(marked[0] for marked in matches.values()) == sorted(beginnings)


def test_every_table_belongs_to_a_module_that_runs_its_rows():
    assert sorted(heading for headings in SYSTEMS.values() for heading in headings) == sorted(tables())
