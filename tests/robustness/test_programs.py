"""The first cases of `fuzz` and `kills`, which run more as programs: `python -m tests.robustness.fuzz --cases N`.

In processes of their own, as forks of this process would lack the threads of earlier tests; a few, as each first makes
undamaged files of every kind.
"""

import itertools

import pytest

from tests.robustness.fuzz import KINDS
from tests.support.files import python

OF_RUNS = ("checkpoint", "sealed checkpoint", "log", "flags", "text")  # each runs a command
CASES, CASES_OF_FILES = 50, 5000  # of a kind of runs; of all other kinds together
SLOW = ("archive", "index", "manylangs", "vectors", "weights")
pytestmark = pytest.mark.long


def test_damaged_input_gives_the_right_result_or_a_refusal():
    python("-m", "tests.robustness.fuzz", *(part for kind in OF_RUNS for part in ("--kind", kind)), "--cases",
           CASES * len(OF_RUNS), timeout=900)


def test_damaged_files_of_every_format_are_read_or_refused_by_name():
    """In bounded time and memory each; a minute in all, as formats that take longer have a third of the cases."""
    kinds = [("--kind", kind) * (1 if kind in SLOW else 3) for kind in KINDS if kind not in OF_RUNS]
    python("-m", "tests.robustness.fuzz", *itertools.chain(*kinds), "--cases", CASES_OF_FILES, "--seed", 7, timeout=900)


@pytest.mark.parametrize("commands", [("embed", "embed-warm"), ("embed-npy", "seqvec"), ("cache", "export"),
                                      ("train",), ("import-tf",)], ids=", ".join)
def test_killed_runs_and_races_give_the_right_file(commands):
    """Of each command six kills at random moments, and starts of two, three and five processes on one output, with
    fixed seeds. `seqvec` writes the other layouts as `embed` does."""
    process = python("-m", "tests.robustness.kills", *(part for name in commands for part in ("--only", name)),
                     "--kills", 6 * len(commands), "--races", 3 * len(commands), "--seed", 11, timeout=550)
    assert "no fault" in process.stdout
