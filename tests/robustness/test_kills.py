"""Commands killed at random moments, and run at once on one output, with fixed seeds (see `kills`)."""

import subprocess
import sys

import pytest

from tests.support.files import ROOT


@pytest.mark.long
@pytest.mark.parametrize("command", [
    "embed", "embed-warm", "embed-npy", "seqvec", "seqvec-warm", "seqvec-npy", "cache", "train", "export", "import-tf"])
def test_killed_runs_and_races_give_the_right_file(command):
    """Six kills, and starts of two, three and five processes."""
    done = subprocess.run([sys.executable, "-m", "tests.robustness.kills", "--only", command, "--kills", "6", "--races",
                           "3", "--seed", "11"], cwd=ROOT, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "no fault" in done.stdout
