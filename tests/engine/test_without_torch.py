"""What needs no torch runs where torch cannot be imported, and imports nothing that it does not use."""

import json
import re
import shlex
import signal
import subprocess
import sys
import urllib.request

import numpy as np
import pytest
import torch

from elmo_fast import open_embeddings
from elmo_fast.environment import is_set
from elmo_fast.testing import AGAINST_FLOAT64, relative_error
from tests.support import docs
from tests.support.files import ROOT, python

NO_TORCH = """
import os, sys
class NoTorch:
    def find_spec(self, name, *_):
        if name.partition(".")[0] == "torch":
            raise ModuleNotFoundError("No module named 'torch'", name="torch")
sys.meta_path.insert(0, NoTorch())
os.chdir({folder!r})
"""
INSTALL = 'pip install "elmo-fast[torch]"'
# Rooms of torch, and the files in them that other rooms import.
ROOMS = "nn", "ops", "train", "compat"
FREE = "ops.backend", "ops.doctor", "train.config", "train.run_files", "compat.seqvec"
OTHERS = "embed.bilm_embedder", "integrations.flair", "integrations.sentence_transformers"


@pytest.fixture
def run(tmp_path):
    def run(program, **how):
        (tmp_path / "program.py").write_text(NO_TORCH.format(folder=str(tmp_path)) + program)
        process = python(tmp_path / "program.py", **how)
        return process.stderr if how else process.stdout

    (tmp_path / "text.txt").write_text("A new play opened last night .\nIt rained .\n" * 20)
    (tmp_path / "words.txt").write_text("<S>\n</S>\nplay\nIt\n")
    (tmp_path / "proteins.fasta").write_text(">a|P1|x\nMKTAYIAK\n>b|P2|y\nGAVL\n")
    return run


def test_modules_are_imported():
    """Every module outside the rooms of torch; where another library is missing, the error is about that library."""
    names = [".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
             for path in sorted(ROOT.glob("elmo_fast/**/*.py"))]
    short = [name.removeprefix("elmo_fast").removeprefix(".") for name in names if not name.endswith("__main__")]
    free = [name for name in short if name in FREE or not (name.split(".")[0] in ROOMS or name in OTHERS)]
    program = NO_TORCH.format(folder=str(ROOT)) + f"""
import importlib
for name in {free!r}:
    try:
        importlib.import_module(f"elmo_fast.{{name}}".rstrip("."))
    except ImportError as error:
        assert "torch" not in str(error), (name, error)
        print(name)
"""
    missing = python("-c", program).stdout.split()
    assert len(free) > 90 and set(missing) <= {name for name in free if name.split(".")[0] in (
        "serve", "scale", "integrations", "vectors", "explore")}, missing


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


def test_the_first_screen_of_the_readme(run):
    """Its Python and its commands, before it comes to PyTorch; `make` and pip are run by hand."""
    blocks = docs.blocks("README.md", "python", "bash")[:3]
    lines = [line for language, code in blocks if language == "bash" for line in docs.shell_lines(code)]
    code = "".join(code for language, code in blocks if language == "python")
    commands = [shlex.split(line)[1:] for line in lines if line.startswith("elmo-fast ")]
    assert [name for name, *_ in commands] == ["embed", "compare"]
    run(f"""
import shutil
shutil.copy("text.txt", "sentences.txt")
{code}
assert vectors.shape == (2, 384)
from elmo_fast.cli import main
for arguments in {commands!r}:
    assert not main(arguments), arguments
""")


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
    assert set(names) - installer <= {"elmo_fast", "numpy", "h5py", "filelock"}  # and tqdm on a terminal


@pytest.mark.parametrize("name", ["Elmo", "BiLm", "ScalarMix", "Batcher", "ElmoEmbedder", "batch_to_ids"])
def test_public_names_of_torch_name_the_extra(run, name):
    run(f"""
import elmo_fast
try:
    elmo_fast.{name}
except ImportError as error:
    assert str(error).endswith({INSTALL!r}) and chr(10) not in str(error) and str(error).count("pip") == 1, error
else:
    raise AssertionError
""")


@pytest.mark.parametrize("module", ["allennlp", "allennlp.modules.elmo", "bilm", "bilm.training", "simple_elmo",
                                    "elmoformanylangs"])
def test_drop_ins_name_the_extra(run, module):
    assert run(f"import elmo_fast.compat.{module}", status=1).splitlines()[-1].endswith(INSTALL)


@pytest.mark.parametrize("arguments", [
    ["embed", "text.txt", "a.h5", "--device", "cuda"], ["embed", "text.txt", "a.h5", "--backend", "torch"],
    ["train", "run", "--train", "text.txt"], ["perplexity", "run", "text.txt"],
    ["export", "--from-module", "text.txt", "--options-file", "text.txt", "out"]], ids=lambda arguments: arguments[-1])
def test_commands_of_torch_name_the_extra_in_a_line(run, arguments):
    errors = run(f"from elmo_fast.cli import main\nsys.exit(main({arguments!r}))", status=1)
    assert errors.count("\n") == 1 and errors.endswith(f"{INSTALL}\n") and errors.count("pip") == 1


@pytest.mark.parametrize("name, flags", [
    ("a.h5", []), ("a.npz", ["--top"]), ("a.npy", ["--pool", "mean", "--top"]), ("a.parquet", ["--average"]),
    ("a.arrow", ["--pool", "max", "--layer", "0"])], ids=lambda value: value if isinstance(value, str) else "")
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_every_layout(run, tmp_path, name, flags, dtype):
    if name.endswith(("parquet", "arrow")):
        pytest.importorskip("pyarrow", reason="pyarrow is not installed: make test-integrations")
    run(f"from elmo_fast.cli import main\n"
        f"assert not main(['embed', 'text.txt', {name!r}, '--state', 'zero', '--dtype', {dtype!r}, *{flags!r}])")
    with open_embeddings(tmp_path / name) as embeddings:
        assert len(embeddings) == 40 and np.asarray(embeddings[0]).dtype == dtype
        np.testing.assert_array_equal(embeddings[0], embeddings[2])


def test_a_table_proteins_and_a_killed_run(run, tmp_path):
    run("""
from elmo_fast.cli import main
assert not main(["cache", "words.txt", "table.hdf5", "--storage", "float16"])
assert not main(["embed", "text.txt", "a.h5", "--token-table", "table.hdf5"])
assert not main(["seqvec", "-i", "proteins.fasta", "-o", "p.npz", "--model", "bundled", "--state", "zero"])
assert not main(["embed", "text.txt", "whole.h5", "--batch-size", "4", "--quiet"])
""")
    killed = """
from elmo_fast.cli import main
from elmo_fast.embed import run
run.COMMIT_SECONDS = 0
update = run.Progress.update
def end(self, tokens, texts=1, done=[]):
    done.append(tokens)
    if len(done) == 30:
        os._exit(9)
run.Progress.update = end
main(["embed", "text.txt", "killed.h5", "--batch-size", "4"])
"""
    run(killed, status=9)
    run("from elmo_fast.cli import main\n"
        "assert not main(['embed', 'text.txt', 'killed.h5', '--batch-size', '4', '--resume', '--quiet'])")
    with open_embeddings(tmp_path / "whole.h5") as whole, open_embeddings(tmp_path / "killed.h5") as resumed:
        limit = AGAINST_FLOAT64["ieee"] if is_set("ELMO_FAST_NO_NATIVE") else 0  # NumPy's last bits vary
        for key in range(40):
            assert relative_error(*(torch.from_numpy(file[key]) for file in (resumed, whole))) <= limit
    assert sorted(np.load(tmp_path / "p.npz").files) == ["P1", "P2"]


def test_the_server(tmp_path):
    for library in ("fastapi", "uvicorn", "prometheus_client", "msgspec", "orjson"):
        pytest.importorskip(library, reason=f"{library} is not installed: make test-integrations")
    program = NO_TORCH.format(folder=str(tmp_path)) + ("from elmo_fast.cli import main\n"
                                                       "sys.exit(main(['serve', '--port', '0']))")
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True,
                               stderr=subprocess.PIPE)
    try:
        url = re.search(r"at (http://\S+)$", process.stdout.readline())[1]
        body = json.dumps({"model": "bundled", "input": ["It rained ."]}).encode()
        request = urllib.request.Request(f"{url}/v1/embeddings", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            assert len(json.load(answer)["data"][0]["embedding"]) == 384
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0, process.stderr.read()
    finally:
        process.kill()
        process.communicate()
