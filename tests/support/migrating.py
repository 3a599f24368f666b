"""The tables of docs/migrating.md, and the tests that run the calls of their rows."""

import re

from tests.support.files import ROOT

SYSTEMS = {  # part of the name of a module in tests/compat -> the headings above the tables that it runs
    "bilm": ("bilm-tf", "bilm-tf's training"),
    "allennlp": ("AllenNLP", "What stays with AllenNLP"),
    "others": ("SeqVec", "simple_elmo", "ELMoForManyLangs"),
}
TEXT = (ROOT / "docs" / "migrating.md").read_text(encoding="utf-8")


def tables():
    """The first cell of every row by the heading above its table; a heading and a row come once."""
    found = {}
    for part in re.split(r"^#+ ", TEXT, flags=re.MULTILINE):
        heading, _, body = part.partition("\n")
        cells = [line.split(" | ")[0].removeprefix("| ") for line in body.splitlines() if line.startswith("| ")]
        if cells:
            assert heading not in found and len(set(cells)) == len(cells)
            found[heading] = cells[1:]
    return found


class Rows:
    """Marks the tests of a module in `SYSTEMS` by the rows that they run: `@row("`Batcher(", "`TokenBatcher(")`.

    A row is named by the beginning of its first cell, or by all of it.
    """

    def __init__(self, module):
        self.cells = [cell for heading in SYSTEMS[module] for cell in tables()[heading]]
        self._beginnings = []

    def __call__(self, *beginnings):
        self._beginnings += beginnings
        return lambda test: test

    def check(self):
        """Every row is run by one test, and every test runs a row."""
        matches = {cell: [each for each in self._beginnings if cell == each or (
            cell.startswith(each) and each not in self.cells)] for cell in self.cells}
        assert {cell: found for cell, found in matches.items() if len(found) != 1} == {}, "rows without one test"
        used = [found[0] for found in matches.values()]
        assert sorted(used) == sorted(self._beginnings), "tests without a row of their own"
