"""The first cases of `fuzz` and `kills`, which run more as programs: `python -m tests.robustness.fuzz --cases N`."""

import pytest

from tests.robustness import file_cases
from tests.robustness.fuzz import KINDS
from tests.support.files import python

CASES = 50  # of a kind: 700 in all with pyarrow
CASES_OF_FILES = 120  # of all kinds of `file_cases` together
pytestmark = pytest.mark.long


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in file_cases.KINDS])
def test_damaged_input_gives_the_right_result_or_a_refusal(kind):
    """In a new process: forks of this process would lack the threads of earlier tests."""
    python("-m", "tests.robustness.fuzz", "--kind", kind, "--cases", CASES)


def test_files_of_wrong_structure_are_read_or_refused_by_name():
    python("-m", "tests.robustness.fuzz", *(part for kind in file_cases.KINDS for part in ("--kind", kind)), "--cases",
           CASES_OF_FILES, "--seed", 7)


@pytest.mark.parametrize("command", [
    "embed", "embed-warm", "embed-npy", "seqvec", "seqvec-warm", "seqvec-npy", "cache", "train", "export", "import-tf"])
def test_killed_runs_and_races_give_the_right_file(command):
    """Six kills at random moments, and starts of two, three and five processes on one output, with fixed seeds."""
    process = python("-m", "tests.robustness.kills", "--only", command, "--kills", 6, "--races", 3, "--seed", 11,
                     timeout=900)
    assert "no fault" in process.stdout
