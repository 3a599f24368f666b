"""The tables of docs/migrating.md, and the tests of tests/compat that run the calls of their rows."""

import ast
import re

from tests.support.files import ROOT

SYSTEMS = {  # beginning of the names of modules in tests/compat -> the headings above the tables whose rows they run
    "test_bilm": ("bilm-tf", "bilm-tf's training"),
    "test_allennlp": ("AllenNLP", "What stays with AllenNLP"),
    "test_seqvec": ("SeqVec",),
    "test_simple_elmo": ("simple_elmo",),
    "test_elmoformanylangs": ("ELMoForManyLangs",),
}
TEXT = (ROOT / "docs" / "migrating.md").read_text(encoding="utf-8")


def tables():
    """The first cell of every row by the heading above its table; headings and rows are unique."""
    rows = {}
    for part in re.split(r"^#+ ", TEXT, flags=re.MULTILINE):
        heading, _, body = part.partition("\n")
        cells = [line.split(" | ")[0].removeprefix("| ") for line in body.splitlines() if line.startswith("| ")]
        if cells:
            assert heading not in rows and len(set(cells)) == len(cells)
            rows[heading] = cells[1:]
    return rows


def runs(*beginnings):
    """Marks a test by the rows that it runs: `@runs("`Batcher(", "`TokenBatcher(")`.

    A row is named by the beginning of its first cell, or by all of it.
    """
    return lambda test: test


def marks(modules):
    """The beginnings that mark tests in the modules whose names begin with `modules`."""
    beginnings = []
    for path in sorted((ROOT / "tests" / "compat").glob(f"{modules}*.py")):
        for test in ast.parse(path.read_text(encoding="utf-8")).body:
            for mark in getattr(test, "decorator_list", ()):
                if isinstance(mark, ast.Call) and ast.unparse(mark.func) == "runs":
                    assert test.name.startswith("test_"), test.name
                    beginnings += map(ast.literal_eval, mark.args)
    return beginnings
