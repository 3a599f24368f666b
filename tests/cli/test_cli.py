import os
import re
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch

import elmo_fast
from elmo_fast import ElmoEmbedder, Options, random_weights
from elmo_fast.engine.model import HostModel
from elmo_fast.ops.backend import OPS, resolve
from elmo_fast.testing import SAME_MODEL
from elmo_fast.weights.public import public_copies
from tests.support.engines import EXACT, isa, needs_native
from tests.support.files import assert_refused, names, paths, python, read_hdf5, run, start, tiny, write_model
from tests.support.grid import mostly_long

SENTENCES = ["The cat sat .", "It rained", "caf\u00e9 \u732b"]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The working directory with `in.txt`, where tests look for the files of a command."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    (tmp_path / "in.txt").write_text("\n".join(SENTENCES) + "\n", encoding="utf-8")
    return tmp_path


def summary(path, texts, tokens, shape, layout="allennlp"):
    """The line that `embed` prints on stderr."""
    return f"elmo-fast: {path}: {texts} texts, {tokens} tokens, {shape} in float32, layout {layout}\n"


def test_further_flags_of_allennlp(capsys, folder, model, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    (folder / "mine" / "below").mkdir(parents=True)
    for name, number in (("mine/__init__.py", 1), ("mine/below/__init__.py", 2), ("mine/below/deep.py", 3)):
        (folder / name).write_text(f"import sys\nsys.stderr.write('imported {number}\\n')\n")
    plain = run(capsys, "embed", "in.txt", "plain.hdf5", "--model", model)
    assert plain == (0, "", summary("plain.hdf5", 3, 8, "[3, tokens, 8]"))
    status, out, err = run(capsys, "embed", "in.txt", "out.hdf5", "--all", "--model", model, "--file-friendly-logging",
                           "--include-package", "mine")
    assert (status, out) == (0, "") and "\r" not in err
    lines = err.splitlines()
    assert lines[:3] == ["imported 1", "imported 2", "imported 3"]
    assert lines[3].startswith("0%|") and lines[-2].startswith("100%|") and "3/3" in lines[-2]
    assert f"{lines[-1]}\n" == summary("out.hdf5", 3, 8, "[3, tokens, 8]")
    arrays = read_hdf5("out.hdf5")
    for key, expected in read_hdf5("plain.hdf5").items():
        np.testing.assert_array_equal(arrays[key], expected)
    assert run(capsys, "embed", "in.txt", "out.hdf5", "--top", "--model", model, "--file-friendly-logging",
               "--quiet") == (0, "", "")
    (folder / "out.hdf5").unlink()
    result = run(capsys, "embed", "in.txt", "out.hdf5", "--top", "--model", model, "--include-package", "none_such")
    assert_refused(result, "No module named 'none_such'", status=1)
    assert not (folder / "out.hdf5").exists()


@pytest.mark.parametrize("layers, more, options, state", [
    ("all", ["--options-file", "model/options.json", "--weight-file", "model/weights.hdf5"], {}, "carry"),
    ("top", ["--model", "model", "--batch-size", "2", "--forget-sentences"],
     {"batch_size": 2, "forget_sentences": True}, "carry"),
    ("average", ["--model", "model", "--batch-size", "1", "--state", "zero"], {"batch_size": 1}, "zero"),
    ("all", ["--model", "model", "--use-sentence-keys", "--state", "warm"], {"use_sentence_keys": True}, "warm"),
    ("top", ["--model", "model", "--allow-blank", "--quiet"], {"allow_blank": True}, "carry"),
])
def test_embed_writes_the_vectors_of_the_embedder(capsys, folder, layers, more, options, state):
    model = write_model(folder / "model")
    (folder / "in.txt").write_text("\n".join([*SENTENCES, "" if "--allow-blank" in more else "d"]) + "\n", "utf-8")
    with open("in.txt", encoding="utf-8") as file:
        embedder = ElmoEmbedder(*paths(model), state=state)
        embedder.embed_file(file, "expected.hdf5", layers, progress=False, **options)
    tokens, shape = 8 + ("--allow-blank" not in more), "[3, tokens, 8]" if layers == "all" else "[tokens, 8]"
    expected = "" if "--quiet" in more else summary("out.hdf5", 4, tokens, shape)
    assert run(capsys, "embed", "in.txt", "out.hdf5", f"--{layers}", *more) == (0, "", expected)
    ours, theirs = read_hdf5("out.hdf5"), read_hdf5("expected.hdf5")
    assert list(ours) == list(theirs) and len(ours) >= 4
    assert ours.pop("sentence_to_index", None) == theirs.pop("sentence_to_index", None)
    for key, values in theirs.items():
        np.testing.assert_allclose(ours[key], values, rtol=0, atol=EXACT)


def test_layers_weights_and_pooled_blanks(capsys, folder, model):
    """The default is all layers; weights after each other or with commas; a text without tokens is pooled to zeros."""
    (folder / "in.txt").write_text("\n".join([*SENTENCES, "", "d"]) + "\n", "utf-8")
    common = ("--model", model, "--allow-blank", "--state", "warm", "--quiet")
    assert run(capsys, "embed", "in.txt", "all.npz", *common) == (0, "", "")
    weights = ["1", "-0.5", "0.25"]
    for name, more in {"layer": ["--layer", "1", "in.txt"], "spaces": ["in.txt", "--weights", *weights],
                       "first": ["--weights", *weights, "in.txt"], "commas": ["--weights", ",".join(weights), "in.txt"],
                       "both": ["--weights", "1,", "-0.5,", "0.25", "in.txt", "--pool", "mean"],
                       "equals": [f"--weights={','.join(weights)}", "in.txt", "--device", "cpu"]}.items():
        assert run(capsys, "embed", *more, f"{name}.npz", *common) == (0, "", "")
    arrays = {path.stem: dict(np.load(path)) for path in folder.glob("*.npz")}
    for key, layers in arrays["all"].items():
        mixed = layers[0] - 0.5 * layers[1] + 0.25 * layers[2]
        np.testing.assert_array_equal(arrays["layer"][key], layers[1])
        for name in ("spaces", "first", "commas", "equals"):
            np.testing.assert_allclose(arrays[name][key], mixed, rtol=0, atol=SAME_MODEL)
        pooled = mixed.mean(0) if len(mixed) else np.zeros(8)
        np.testing.assert_allclose(arrays["both"][key], pooled, rtol=0, atol=SAME_MODEL)
    assert arrays["all"]["3"].shape == (3, 0, 8) and arrays["both"]["3"].tolist() == [0] * 8


def raising(error):
    def failing(*_):
        raise error
    return lambda _, patch: patch.setattr(HostModel, "begin", failing)


@pytest.mark.parametrize("fault, status, message", [
    (raising(RuntimeError("out of\nluck")), 1, "error: out of luck"),
    (raising(OSError(28, "No space left on device")), 1, "error: [Errno 28] No space left on device"),
    (raising(KeyboardInterrupt()), 1, "error: interrupted; no output was left behind"),
    (lambda model, _: write_model(model, {"lstm": tiny()["lstm"], "n_tokens_vocab": 9}), 2,
     "error: tokens: expected word ids (this model reads no characters), got strings"),
    (lambda model, _: os.truncate(model / "weights.hdf5", 3000), 2,
     "expected an HDF5 file, got something else or a file cut short"),
])
def test_a_failure_is_reported_in_one_line_and_leaves_nothing(capsys, folder, monkeypatch, fault, status, message):
    fault(write_model(folder / "model"), monkeypatch)
    commands = [["embed", "in.txt", "out.hdf5", "--all", "--quiet", "--model"]]
    if not message.startswith("error"):
        commands.append(["info"])
    for command in commands:
        result = run(capsys, *command, "model")
        assert_refused(result, "", status)
        assert message in result[2]
    assert "out.hdf5" not in names(folder) and not list(folder.glob("*.part"))


def test_help_and_version(capsys):
    status, output, _ = run(capsys, "embed", "--help")
    assert status == 0 and "--use-sentence-keys" in output
    assert "sentences at a time, at most 1,048,576" in " ".join(output.split())
    for command in ("embed", "seqvec"):
        assert "--resume continue an interrupted run" in " ".join(run(capsys, command, "--help")[1].split())
    for words in ("-v models small", "models -v small", "models small --verbose"):
        assert run(capsys, *words.split()) == run(capsys, "models", "small")
    assert run(capsys, "--version") == (0, f"elmo-fast {elmo_fast.__version__}\n", "")


_COMPLETE = r"""
source ./script
complete_last() { COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=(); $function; echo "${COMPREPLY[*]}"; }
function=$(complete -p elmo-fast | sed 's/.* -F \([^ ]*\) .*/\1/')
complete_last elmo-fast em
complete_last elmo-fast embed --prec
complete_last elmo-fast embed --precision me
complete_last elmo-fast embed in
complete_last elmo-fast compare --weights 1 a b -o in
complete_last elmo-fast train --s
"""


def test_completion_in_bash(capsys, folder):
    """Names of commands, flags, values and files, by a script of the real library."""
    pytest.importorskip("shtab")
    status, script, errors = run(capsys, "--print-completion", "bash")
    assert (status, errors) == (0, "")
    (folder / "script").write_text(script)
    shell = subprocess.run(["bash", "-c", _COMPLETE], capture_output=True, text=True, timeout=60)
    assert (shell.returncode, shell.stderr) == (0, "")
    assert shell.stdout.splitlines() == ["embed", "--precision", "medium", "in.txt", "in.txt", "--size --seed"]


def test_completion_without_its_library(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "shtab", None)
    status, output, error = run(capsys, "--print-completion", "zsh")
    assert (status, output) == (1, "") and error.endswith('pip install "elmo-fast[completion]"\n')


PLAIN = {"layers": "3 (the token layer and 2 LSTM layers", "vector of a token": "8 values a layer",
         "LSTM": "dim 8, projection 4, skip connections on", "clips": "cell \u00b13, projection \u00b13",
         "char-CNN": "10 filters (4 of width 1, 6 of width 2), relu", "highway layers": "1"}
WIDE = {"layers": "5 (the token layer and 4 LSTM layers", "vector of a token": "16 values a layer",
        "LSTM": "dim 8, projection none, skip connections off", "clips": "cell none, projection \u00b10.3"}


@pytest.mark.parametrize("content, expected", [
    (tiny(), PLAIN), (tiny(lstm__n_layers=4, lstm__projection_dim=8, lstm__cell_clip=None, lstm__proj_clip=0.3,
                           lstm__use_skip_connections=False), PLAIN | WIDE),
    ({"lstm": tiny()["lstm"], "n_tokens_vocab": 1234}, {"input": "word ids, 1,234 words"})])
def test_info(capsys, tmp_path, content, expected):
    folder = write_model(tmp_path / "model", content)
    status, output, errors = run(capsys, "info", folder)
    lines = dict((part.strip() for part in line.split(":", 1)) for line in output.splitlines())
    parameters = sum(values.size for values in random_weights(Options.from_dict(content)).values())
    assert (status, errors) == (0, "") and ("char-CNN" in lines) == ("char-CNN" in expected)
    assert lines["options file"] == str(folder / "options.json")
    assert lines["weight file"] == str(folder / "weights.hdf5") and lines["parameters"] == f"{parameters:,}"
    for name, value in expected.items():
        assert lines[name].startswith(value) if name == "layers" else lines[name] == value


@needs_native
@pytest.mark.parametrize("command", ["info", "doctor"])
def test_effective_precisions(capsys, command):
    arguments = ["bundled"] if command == "info" else []
    with isa("generic"):
        output = run(capsys, command, *arguments)[1]
    assert ("highest runs as highest; high runs as highest (it needs AMX); medium runs as medium (weights in bf16, "
            "products in fp32); low runs as low\n") in output


def test_doctor_lists_every_op(capsys):
    status, output, errors = run(capsys, "doctor")
    assert (status, errors) == (0, "")
    for op in OPS:
        runs_on = f" {op} runs on {resolve(op, 'auto', torch.empty(0))}"
        assert any(line.startswith("cpu ") and runs_on in line for line in output.splitlines())
    assert f"Python       {sys.version.split()[0]}" in output
    assert f"numpy {np.__version__}" in output and torch.__version__ in output


def start_embedding(model, tmp_path, *more):
    return start(["embed", "-", tmp_path / "out.hdf5", "--all", "--model", model, *more], stdin=-1, encoding="utf-8")


def finish(process, text=None):
    output, errors = process.communicate(text, timeout=60)
    return process.returncode, output, errors


def test_stdin(model, tmp_path):
    result = finish(start_embedding(model, tmp_path, "--vocab-path", "none.txt"), "\n".join(SENTENCES))
    assert result == (0, "", "WARNING: --vocab-path: ignored, as in AllenNLP 0.9\n"
                      + summary(tmp_path / "out.hdf5", 3, 8, "[3, tokens, 8]"))
    arrays = read_hdf5(tmp_path / "out.hdf5")
    for key, values in enumerate(ElmoEmbedder(*paths(model)).embed_sentences([line.split() for line in SENTENCES])):
        np.testing.assert_allclose(arrays[str(key)], values, rtol=0, atol=EXACT)


def test_text_is_utf_8_in_every_locale(folder, model):
    """Files are read as UTF-8, also where the locale's encoding would give other tokens."""
    text = "zlo\u010dina \u0160ovagovi\u0107\n\u0645\u062d\u0645\u062f \u064a\u0648\u0633\u0641 .\n"
    (folder / "in.txt").write_text(text, encoding="utf-8")
    python("-m", "elmo_fast.cli", "embed", folder / "in.txt", folder / "out.hdf5", "--all", "--model", model,
           "--quiet", LC_ALL="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0")
    arrays = read_hdf5("out.hdf5")
    for key, values in enumerate(ElmoEmbedder(*paths(model)).embed_sentences(map(str.split, text.splitlines()))):
        np.testing.assert_allclose(arrays[str(key)], values, rtol=0, atol=EXACT)


@pytest.mark.parametrize("number", mostly_long([signal.SIGINT, signal.SIGTERM]))
def test_a_signal_in_the_middle_leaves_nothing(model, tmp_path, number):
    process = start_embedding(model, tmp_path, "--batch-size", "1")
    process.stdin.write("a b c\n" * 100)
    process.stdin.flush()  # stdin stays open: the command waits with a partial file
    while process.poll() is None and not names(tmp_path):
        time.sleep(0.01)
    process.send_signal(number)
    assert_refused(finish(process), "interrupted; no output was left behind", status=1)
    assert names(tmp_path) == []


NAMES = """
import elmo_fast
elmo_fast.__version__, dir(elmo_fast)
from elmo_fast import Options, read_fasta
from elmo_fast.cli import main
for arguments in (["--help"], ["embed", "--help"], ["train", "--help"], ["seqvec", "--help"], ["--version"]):
    try:
        main(arguments)
    except SystemExit as stop:
        assert not stop.code
    assert "torch" not in sys.modules, arguments
"""
LINES = """
import contextlib, io
from elmo_fast.cli import main
def run(line):
    with contextlib.redirect_stderr(io.StringIO()) as errors, contextlib.redirect_stdout(io.StringIO()) as output:
        try:
            status = main(line.split())
        except SystemExit as stop:
            status = stop.code
    assert "torch" not in sys.modules, line
    return status, errors.getvalue(), output.getvalue()
for line in ("embed missing.txt o.h5", "embed in.txt o.csv", "embed in.txt no/o.h5", "embed in.txt o.h5 --model nope",
             "embed in.txt o.h5 --token-table nope", "embed blank.txt o.h5", "cache nope o.h5",
             "cache in.txt o.h5 --corpus --model nope", "compare a b --model nope", "compare a b -o x.jpg",
             "nearest nope --word a", "nearest in.txt --word a --model nope", "score nope", "score in.txt",
             "substitutes nope", "seqvec -i nope -o o.h5", "seqvec -i in.fasta -o o.h5 --model nope",
             "bench --text nope", "train r --train nope", "train nope --resume", "perplexity r nope",
             "export nope out",
             "export out --from-module nope --options-file in.txt", "import-tf nope out"):
    status, errors, output = run(line)
    assert status == 2 and errors.count("\\n") == 1 and not output, (line, status, errors)
for line in ["info", "models"] + DOCTOR:
    status, errors, output = run(line)
    assert status == 0 and errors == "" and output, (line, status, errors)
assert "layers: " in run("info")[2]
status, errors, output = run("")
assert status == 2 and errors.startswith("usage: elmo-fast") and "compare" in errors and not output
""".replace("DOCTOR", str([] if torch.cuda.is_available() else ["doctor"]))


@pytest.mark.parametrize("code", [NAMES, LINES], ids=["names and help", "lines"])
def test_torch_is_not_imported_before_it_is_needed(tmp_path, code):
    """Importing torch takes seconds."""
    for name, text in (("in.txt", "a b\n"), ("blank.txt", "a\n\n"), ("in.fasta", ">P|1\nMKV\n")):
        (tmp_path / name).write_text(text)
    process = start(f"import sys\n{code}\nassert 'torch' not in sys.modules", cwd=tmp_path)
    assert (process.communicate(timeout=60)[1], process.returncode) == ("", 0)


def test_the_list_of_models(capsys):
    status, out, err = run(capsys, "models")
    assert (status, err) == (0, "") and out.startswith("name ")
    rows = [re.split(" {2,}", line) for line in out.splitlines()]
    assert max(map(len, out.splitlines())) <= 80 and {len(row) for row in rows} == {5}
    values = {row[0]: row[rows[0].index("values a token")] for row in rows}
    assert values["bundled"] == str(elmo_fast.load().dim) and values["original"] == "1,024"
    assert "nlpl:NUMBER" in values and rows[-1][:2] == ["manylangs:zh", "Chinese"]


@pytest.mark.parametrize("name, lines", [
    ("bundled", ["values a token: 384", "licence:        Apache-2.0", "downloaded:     included"]),
    ("original", ["values a token: 1,024", "licence:        not stated"]),
    ("nlpl:210", ["name:           nlpl:210", "address:        https://vectors.nlpl.eu/repository/20/210.zip"]),
    ("manylangs:nn", ["language:       Norwegian Nynorsk", "licence:        MIT (its repository)"])])
def test_one_public_model(capsys, name, lines):
    """With all addresses, in the order in which they are tried."""
    status, out, err = run(capsys, "models", name)
    assert (status, err) == (0, "") and set(lines) <= set(out.splitlines())
    urls = [file.url for copy in public_copies(name) for file in copy]
    assert re.findall(r"https?://\S+", out) == urls


@pytest.mark.parametrize("name", ["origina", "nlpl", "nlpl:", "nlpl:x", "manylangs:xx", "small:1", ""])
def test_a_public_model_that_is_none(capsys, name):
    status, out, err = run(capsys, "models", name)
    assert (status, out) == (2, "") and ": expected " in err and "got " in err and err.count("\n") == 1
