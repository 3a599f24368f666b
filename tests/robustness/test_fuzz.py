"""The fuzzer's first cases of every kind; `python -m tests.robustness.fuzz --cases N` runs more."""

import pytest

from tests.robustness.fuzz import KINDS
from tests.support.files import python

CASES = 50  # of a kind: 700 in all with pyarrow


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_damaged_input_gives_the_right_result_or_a_refusal(kind):
    """In a process of its own: the forks of this one would lack the threads that earlier tests started."""
    python("-m", "tests.robustness.fuzz", "--kind", kind, "--cases", CASES)
