"""The first cases of `fuzz` and `kills`, which run more as programs: `python -m tests.robustness.fuzz --cases N`.

In processes of their own, as forks of this process would lack the threads of earlier tests; a few, as each first makes
undamaged files of every kind.
"""

import pytest

from tests.robustness import file_cases
from tests.robustness.fuzz import KINDS
from tests.support.files import python

CASES = 30  # of a kind
CASES_OF_FILES = 120  # of all kinds of `file_cases` together
OF_INPUT = [kind for kind in KINDS if kind not in file_cases.KINDS]
pytestmark = pytest.mark.long


@pytest.mark.parametrize("kinds", [OF_INPUT[::2], OF_INPUT[1::2]], ids=", ".join)
def test_damaged_input_gives_the_right_result_or_a_refusal(kinds):
    python("-m", "tests.robustness.fuzz", *(part for kind in kinds for part in ("--kind", kind)), "--cases",
           CASES * len(kinds), timeout=900)


def test_files_of_wrong_structure_are_read_or_refused_by_name():
    python("-m", "tests.robustness.fuzz", *(part for kind in file_cases.KINDS for part in ("--kind", kind)), "--cases",
           CASES_OF_FILES, "--seed", 7)


@pytest.mark.parametrize("commands", [("embed", "embed-warm", "embed-npy", "seqvec"),
                                      ("cache", "train", "export", "import-tf")], ids=", ".join)
def test_killed_runs_and_races_give_the_right_file(commands):
    """Of each command six kills at random moments, and starts of two, three and five processes on one output, with
    fixed seeds. `seqvec` writes the other layouts as `embed` does."""
    process = python("-m", "tests.robustness.kills", *(part for name in commands for part in ("--only", name)),
                     "--kills", 24, "--races", 12, "--seed", 11, timeout=900)
    assert "no fault" in process.stdout
