"""Signals: a stop prints one line at any time, and an output appears complete or not at all."""

import signal
import time

import pytest

from tests.support.files import names, start, write_model
from tests.support.grid import mostly_long

LINE = "elmo-fast: error: interrupted; no output was left behind\n"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_model(tmp_path / "model")
    (tmp_path / "in.txt").write_text("a b c\n" * 200)
    return tmp_path


EMBED = "embed", "in.txt", "out.hdf5", "--all", "--model", "model", "--batch-size", "1", "--quiet"
DURING_IMPORTS = """
import signal, sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            signal.raise_signal({number})
sys.meta_path.insert(0, Finder())
from elmo_fast.cli import main
sys.exit(main({arguments!r}))
"""


@pytest.mark.parametrize("number, module", mostly_long([
    (signal.SIGTERM, "elmo_fast.cli.flags"), (signal.SIGINT, "h5py._hl")]))
def test_a_stop_during_imports_is_a_line(folder, number, module):
    process = start(DURING_IMPORTS.format(module=module, number=int(number), arguments=EMBED), cwd=folder)
    assert (process.communicate(timeout=120), process.returncode) == (("", LINE), 1)
    assert names(folder) == ["in.txt", "model"]


def test_a_second_ctrl_c_ends_the_process(tmp_path):
    process = start("import time\nfrom elmo_fast.files.stops import stoppable\n"
                    "with stoppable(in_command=True):\n    print('ready', flush=True)\n"
                    "    while True:\n        time.sleep(0.01)")
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGINT)
    time.sleep(0.3)
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGINT
