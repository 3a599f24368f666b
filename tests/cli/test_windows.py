"""The command on a simulated Windows (`tests/support/windows.py`): a killed run is resumed, without torch."""

import pytest

from tests.support import windows
from tests.support.files import kill, read_hdf5, until, write_model

pytestmark = pytest.mark.long

SLOW = """
import sys
from elmo_fast import cli
from elmo_fast.embed import run

run.COMMIT_SECONDS = 0
cli.main(sys.argv[1:])
"""
EMBED = "embed", "in.txt", "out.h5", "--all", "--batch-size", 1, "--quiet", "--model", "model"


def test_a_killed_command_is_resumed_on_windows(tmp_path):
    write_model(tmp_path / "model")
    (tmp_path / "torch.py").write_text("raise ModuleNotFoundError('torch')\n")  # the core alone
    (tmp_path / "in.txt").write_text("a b c\n" * 100)
    (tmp_path / "slow.py").write_text(SLOW)
    windows.command(tmp_path, *EMBED)
    expected = read_hdf5(tmp_path / "out.h5")
    (tmp_path / "out.h5").unlink()
    process = windows.start(tmp_path, "slow.py", *EMBED)
    until(lambda: len(list(tmp_path.glob("out.h5.part/parts/*.h*"))) > 2)
    kill(process)
    _, errors = windows.command(tmp_path, *EMBED, status=2)
    assert "found a partial result of" in errors
    windows.run(tmp_path, "slow.py", *EMBED, "--resume")
    arrays = read_hdf5(tmp_path / "out.h5")
    assert arrays.keys() == expected.keys() and all((arrays[key] == expected[key]).all() for key in expected)
    assert not list(tmp_path.glob("out.h5.*"))
