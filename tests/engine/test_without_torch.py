"""What needs no torch runs where torch cannot be imported, and imports nothing that it does not use."""

import json

import pytest

from tests.support.files import python

NO_TORCH = """
import os, sys
class NoTorch:
    def find_spec(self, name, *_):
        if name.partition(".")[0] == "torch":
            raise ModuleNotFoundError("No module named 'torch'", name="torch")
sys.meta_path.insert(0, NoTorch())
os.chdir({folder!r})
"""


@pytest.fixture
def run(tmp_path):
    def run(program):
        (tmp_path / "program.py").write_text(NO_TORCH.format(folder=str(tmp_path)) + program)
        return python(tmp_path / "program.py").stdout

    (tmp_path / "text.txt").write_text("A new play opened last night .\nIt rained .\n")
    return run


def test_vectors_and_files(run):
    run("""
import numpy as np, elmo_fast
elmo = elmo_fast.load()
vectors = elmo.embed(["A new play opened .", ["It", "rained"]])
assert [array.shape for array in vectors] == [(3, 5, 384), (3, 2, 384)] and elmo.encode("It rained").shape == (384,)
assert elmo.encode_words(["play"]).shape == (1, 192) and -1 < elmo.similarity("a b", "b c") < 1
assert all(map(np.array_equal, vectors, elmo.stream(["A new play opened .", ["It", "rained"]])))
plain = elmo_fast.load(backend="reference").embed(["A new play opened ."])[0]
assert abs(plain - vectors[0]).max() < 1e-5
for name in ("a.h5", "a.npz", "a.npy"):
    pool = "mean" if name.endswith("npy") else None
    elmo.save_vectors(name, ["It rained .", "a b"], "top", pool=pool)
    assert len(elmo_fast.open_embeddings(name)) == 2
elmo_fast.write_token_table(elmo.model, ["play", "rain"], "table.hdf5")
assert len(elmo_fast.TokenTable.open("table.hdf5")) == 4
index = elmo_fast.ContextIndex.build(elmo, ["A play .", "They play ."])
assert len(index) == 6
try:
    elmo.bilm
except ImportError as error:
    assert "torch" in str(error)
else:
    raise AssertionError
""")


@pytest.mark.parametrize("arguments", [
    ["embed", "text.txt", "out.h5", "--all"], ["embed", "text.txt", "out.npz", "--top", "--state", "warm"],
    ["embed", "text.txt", "out.h5", "--all", "--precision", "low", "--resume"],
    ["cache", "text.txt", "table.hdf5", "--corpus"], ["compare", "It rained .", "They play ."],
    ["info"], ["doctor"]], ids=lambda arguments: arguments[0])
def test_commands(run, arguments):
    run(f"from elmo_fast.cli import main\nstatus = main({arguments!r})\nassert not status, status")


def test_the_command_imports_what_it_uses(run):
    """No package beyond NumPy, h5py, tqdm, filelock and the standard library."""
    names = json.loads(run("""
import contextlib, io, json
before = set(sys.modules)
from elmo_fast.cli import main
with contextlib.redirect_stdout(io.StringIO()):
    main(["embed", "text.txt", "out.h5", "--all", "--quiet"])
site = [name for name, module in sys.modules.items() if "site-packages" in (getattr(module, "__file__", None) or "")]
print(json.dumps(sorted({name.split(".")[0] for name in site})))
"""))
    installer = {name for name in names if name.startswith(("__editable__", "_distutils_hack"))}
    assert set(names) - installer <= {"elmo_fast", "numpy", "h5py", "tqdm", "filelock"}
