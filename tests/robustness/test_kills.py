"""Commands killed at random moments, and run at once on one output, with fixed seeds (see `kills`)."""

import pytest

from tests.support.files import python


@pytest.mark.long
@pytest.mark.parametrize("command", [
    "embed", "embed-warm", "embed-npy", "seqvec", "seqvec-warm", "seqvec-npy", "cache", "train", "export", "import-tf"])
def test_killed_runs_and_races_give_the_right_file(command):
    """Six kills, and starts of two, three and five processes."""
    done = python("-m", "tests.robustness.kills", "--only", command, "--kills", 6, "--races", 3, "--seed", 11,
                  timeout=900)
    assert "no fault" in done.stdout
