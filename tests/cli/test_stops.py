"""Signals: a stop prints one line at any time, and an output appears complete or not at all."""

import signal
import time

import pytest

from elmo_fast.compat.elmo_embedder import ElmoEmbedder
from elmo_fast.files import stops
from elmo_fast.vectors.layouts.allennlp import Hdf5Writer
from tests.support.files import names, paths, start, write_model
from tests.support.grid import mostly_long

LINE = "elmo-fast: error: interrupted; no output was left behind\n"
SIGNALS = signal.SIGINT, signal.SIGTERM


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


def test_a_stop_in_python_raises_keyboard_interrupt(folder, monkeypatch):
    """The error comes after a few sentences, not inside HDF5, and the handlers are as before."""
    write, keys = Hdf5Writer.write, []

    def writing(writer, key, vectors):
        signal.raise_signal(signal.SIGINT)
        keys.append(key)
        time.sleep(0.002)  # 200 writes take longer than the main thread needs to notice a stop
        write(writer, key, vectors)

    monkeypatch.setattr(Hdf5Writer, "write", writing)
    before = signal.getsignal(signal.SIGINT)
    with open("in.txt") as file, pytest.raises(KeyboardInterrupt):
        ElmoEmbedder(*paths(folder / "model")).embed_file(file, "out.hdf5", progress=False)
    assert 0 < len(keys) < 200 and names(folder) == ["in.txt", "model"] and signal.getsignal(signal.SIGINT) is before


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


def test_a_handler_of_the_user_is_called_once():
    calls = []
    before = signal.signal(signal.SIGTERM, lambda number, _: calls.append(number))
    try:
        with stops.stoppable():
            signal.raise_signal(signal.SIGTERM)
            assert stops.is_requested() and not calls
            stops.check()
            stops.check()
        assert calls == [signal.SIGTERM]
    finally:
        signal.signal(signal.SIGTERM, before)
