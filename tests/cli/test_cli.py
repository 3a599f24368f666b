import json
import os
import signal
import sys
import time

import fsspec
import h5py
import numpy as np
import pytest

import elmo_fast
from elmo_fast import BiLm, ElmoEmbedder, Options, random_weights
from elmo_fast.ops.backend import OPS
from tests.support.files import names, paths, run, start, tiny, write_model

SENTENCES = ["The cat sat .", "It rained", "caf\u00e9 \u732b"]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The working directory: it holds `in.txt`, and what a command leaves behind is seen there."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    (tmp_path / "in.txt").write_text("\n".join(SENTENCES) + "\n", encoding="utf-8")
    return tmp_path


def arrays(path):
    with h5py.File(path) as file:
        return {key: file[key][...] for key in file if key != "sentence_to_index"}


def test_further_flags_of_allennlp(capsys, folder, model, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    (folder / "mine" / "below").mkdir(parents=True)
    for name, number in (("mine/__init__.py", 1), ("mine/below/__init__.py", 2), ("mine/below/deep.py", 3)):
        (folder / name).write_text(f"import sys\nsys.stderr.write('imported {number}\\n')\n")
    plain = run(capsys, "embed", "in.txt", "plain.hdf5", "--all", "--model", model)
    assert plain == (0, "", "")
    status, out, err = run(capsys, "embed", "in.txt", "out.hdf5", "--all", "--model", model, "--file-friendly-logging",
                           "--include-package", "mine")
    assert (status, out) == (0, "") and "\r" not in err
    lines = err.splitlines()
    assert lines[:3] == ["imported 1", "imported 2", "imported 3"]
    assert lines[3].startswith("0%|") and lines[-1].startswith("100%|") and "3/3" in lines[-1]
    for key, expected in arrays("plain.hdf5").items():
        np.testing.assert_array_equal(arrays("out.hdf5")[key], expected)
    assert run(capsys, "embed", "in.txt", "out.hdf5", "--top", "--model", model, "--file-friendly-logging",
               "--quiet") == (0, "", "")
    (folder / "out.hdf5").unlink()
    result = run(capsys, "embed", "in.txt", "out.hdf5", "--top", "--model", model, "--include-package", "none_such")
    assert_refused(result, "No module named 'none_such'", status=1)
    assert not (folder / "out.hdf5").exists()


def test_vocabulary_path_is_said_to_be_unused(folder, model):
    process = start(["embed", "in.txt", "out.hdf5", "--top", "--model", model, "--vocab-path", "none.txt"])
    out, err = process.communicate(timeout=120)
    assert (process.returncode, out) == (0, "") and err.startswith("WARNING: --vocab-path: not used")
    assert len(arrays("out.hdf5")) == 3


def assert_refused(result, message, status=2):
    """One line on stderr, nothing on stdout."""
    assert result[0] == status and result[1] == ""
    assert result[2].startswith(f"elmo-fast: error: {message}"), result[2]
    assert result[2].count("\n") == 1 and result[2].endswith("\n")


@pytest.mark.parametrize("flag, output_format", [("--all", "all"), ("--top", "top"), ("--average", "average")])
@pytest.mark.parametrize("more, options, state", [
    ([], {}, "carry"),
    (["--batch-size", "2", "--forget-sentences"], {"batch_size": 2, "forget_sentences": True}, "carry"),
    (["--batch-size", "1", "--state", "zero"], {"batch_size": 1}, "zero"),
    (["--use-sentence-keys", "--state", "warm", "--quiet"], {"use_sentence_keys": True}, "warm"),
])
def test_embed_writes_what_the_embedder_writes(capsys, folder, model, flag, output_format, more, options, state):
    with open("in.txt", encoding="utf-8") as file:
        embedder = ElmoEmbedder(*paths(model), state=state)
        embedder.embed_file(file, "expected.hdf5", output_format, progress=False, **options)
    assert run(capsys, "embed", "in.txt", "out.hdf5", flag, "--model", model, *more) == (0, "", "")
    found, expected = arrays("out.hdf5"), arrays("expected.hdf5")
    assert list(found) == list(expected)
    for key in expected:
        np.testing.assert_array_equal(found[key], expected[key])
    with h5py.File("out.hdf5") as ours, h5py.File("expected.hdf5") as theirs:
        assert ("sentence_to_index" in ours) == ("sentence_to_index" in theirs)
        assert ours.get("sentence_to_index", [None])[0] == theirs.get("sentence_to_index", [None])[0]


def test_two_files_name_a_model_too(capsys, folder, model):
    options, weights = paths(model)
    run(capsys, "embed", "in.txt", "a.hdf5", "--all", "--model", model)
    files = ["--options-file", options, "--weight-file", weights]
    assert run(capsys, "embed", "in.txt", "b.hdf5", "--all", *files)[0] == 0
    for key, values in arrays("a.hdf5").items():
        np.testing.assert_array_equal(arrays("b.hdf5")[key], values)


def test_blank_lines_may_be_allowed(capsys, folder, model):
    (folder / "in.txt").write_text("a\n\nb\n")
    command = ["embed", "in.txt", "out.hdf5", "--top", "--model", model]
    assert_refused(run(capsys, *command), "input file: expected a sentence on every line, got blank lines at indexes 1")
    assert names(folder) == ["in.txt"]
    assert run(capsys, *command, "--allow-blank")[0] == 0
    assert {key: len(values) for key, values in arrays("out.hdf5").items()} == {"0": 1, "1": 0, "2": 1}


@pytest.mark.parametrize("changes, message", [
    ({0: "no.txt"}, "[Errno 2] No such file or directory: 'no.txt'"),
    ({0: "."}, "[Errno 21] Is a directory: '.'"),
    ({0: "empty.txt"}, "input file: expected one tokenized sentence a line, got an empty file"),
    ({0: "latin.txt"}, "input file: expected UTF-8 text, got undecodable bytes at line index 0"),
    ({1: "."}, "output file: expected a file's path, got the directory ."),
    ({1: ""}, "output file: expected a file's path, got an empty one"),
    ({1: "no/out.hdf5"}, "output file: expected an existing directory, found none at"),
    ({1: os.devnull}, "output file: expected an ordinary file"),
    ({1: "in.txt"}, "output file: expected a file other than the inputs, got in.txt"),
    ({1: "model/weights.hdf5"}, "output file: expected a file other than the inputs"),
    ({2: ""}, "one of the arguments --all --top --average is required (see elmo-fast embed --help)"),
    ({2: "--bottom"}, "one of the arguments --all --top --average is required"),
    ({2: ("--all", "--top")}, "argument --top: not allowed with argument --all"),
    ({3: ("--model", "nope")}, "model: expected one of bundled, small, medium, original, original_5.5b, a directory"),
    ({3: ("--model", "in.txt")}, "model: expected a directory or a ZIP with options.json and *.hdf5, got in.txt"),
    ({3: ("--model", "model", "--options-file", "x")}, "model: expected either model or options_file and weight_file"),
    ({3: ("--options-file", "model/options.json")}, "weight_file: expected a path or URL, got None"),
    ({3: ("--weight-file", "model/weights.hdf5")}, "options_file: expected a path or URL, got None"),
    ({4: ("--batch-size", "-3")}, "argument --batch-size: expected an integer of at least 1, got '-3'"),
    ({4: ("--batch-size", "0")}, "argument --batch-size: expected an integer of at least 1, got '0'"),
    ({4: ("--batch-size", "x")}, "argument --batch-size: expected an integer of at least 1, got 'x'"),
    ({4: ("--cuda-device", "-2")}, "cuda_device: expected -1 for the CPU or the number of a GPU, got -2"),
    ({4: ("--cuda-device", "99")}, "cuda_device: expected -1"),
    ({4: ("--cuda-device", "x")}, "argument --cuda-device: invalid int value: 'x'"),
    ({4: ("--state", "cold")}, "argument --state: invalid choice: 'cold'"),
    ({4: ("--precision", "low")}, "argument --precision: invalid choice: 'low'"),
    ({4: ("--backend", "tpu")}, "argument --backend: invalid choice: 'tpu'"),
    ({4: "--frobnicate"}, "unrecognized arguments: --frobnicate"),
    ({4: "more.txt"}, "unrecognized arguments: more.txt"),
])
def test_a_wrong_call_is_refused_in_one_line(capsys, folder, changes, message):
    write_model(folder / "model")
    (folder / "empty.txt").touch()
    (folder / "latin.txt").write_bytes(b"caf\xe9\n")
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    arguments = []
    for place, usual in enumerate(["in.txt", "out.hdf5", "--all", ("--model", "model"), "--quiet"]):
        given = changes.get(place, usual)
        keep_empty = given == "" and place < 2
        arguments += given if isinstance(given, tuple) else [given] if given or keep_empty else []
    assert_refused(run(capsys, "embed", *arguments), message)
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def cut(path):
    path.write_bytes(path.read_bytes()[:3000])


@pytest.mark.parametrize("name, damage, message", [
    ("weights.hdf5", cut, "expected an HDF5 file, got something else or a file cut short"),
    ("weights.hdf5", lambda path: path.write_text("hello\n" * 99), "expected an HDF5 file, got something else or"),
    ("weights.hdf5", lambda path: write_model(path.parent / "deep", tiny(lstm__n_layers=3)) and
        (path.parent / "deep" / "weights.hdf5").rename(path), "expected the weights of the options (2 LSTM layers), "),
    ("weights.hdf5", lambda path: write_model(path.parent / "wide", tiny(lstm__dim=16)) and
        (path.parent / "wide" / "weights.hdf5").rename(path), "expected shape (8, 32), found (8, 64)"),
    ("options.json", lambda path: path.write_text("{"), "expected JSON, got something else"),
    ("options.json", lambda path: path.write_text(json.dumps(tiny(lstm__cell_clip=0))),
        "lstm: cell_clip: expected a number above 0, or null for no clipping, got 0"),
    ("options.json", lambda path: path.write_text(json.dumps(tiny(char_cnn__activation="gelu"))),
        "char_cnn: activation: expected one of relu, tanh, got 'gelu'"),
    ("options.json", lambda path: path.unlink(), "expected one file options.json, found none"),
])
@pytest.mark.parametrize("command", [["embed", "in.txt", "out.hdf5", "--all", "--model"], ["info"]])
def test_a_bad_model_is_refused_in_one_line(capsys, folder, name, damage, message, command):
    damage(write_model(folder / "model") / name)
    result = run(capsys, *command, "model")
    assert_refused(result, "")
    assert message in result[2] and "model" in result[2]
    assert names(folder) == ["in.txt", "model"]


def test_offline_a_named_model_says_what_to_put_where(capsys, folder, monkeypatch):
    def no_network(*_, **__):
        raise OSError("Network is unreachable")

    monkeypatch.setattr(fsspec, "open", no_network)
    monkeypatch.setenv("ELMO_FAST_CACHE", str(folder / "cache"))
    result = run(capsys, "embed", "in.txt", "out.hdf5", "--all", "--model", "original")
    assert_refused(result, "model 'original': https://")
    assert result[2].count(f"at {folder / 'cache'}") == 2


@pytest.mark.parametrize("error, status, message", [
    (RuntimeError("out of\nluck"), 1, "out of luck"), (MemoryError(), 1, "MemoryError"),
    (OSError(28, "No space left on device"), 1, "[Errno 28] No space left on device"),
    (KeyboardInterrupt(), 1, "interrupted; no output was left behind"),
    (ValueError("wrong"), 2, "wrong"),
])
def test_a_failure_in_the_middle_is_told_in_one_line(capsys, folder, model, monkeypatch, error, status, message):
    def failing(*_):
        raise error

    monkeypatch.setattr(BiLm, "run", failing)
    result = run(capsys, "embed", "in.txt", "out.hdf5", "--all", "--model", model, "--quiet")
    assert_refused(result, message, status)
    assert names(folder) == ["in.txt"]


def test_a_backend_that_is_not_there_is_a_failure(capsys, folder, model, monkeypatch):
    monkeypatch.setattr("elmo_fast.ops.backend.why_not", lambda op, name, *_: "broken" if name == "native" else None)
    result = run(capsys, "embed", "in.txt", "out.hdf5", "--all", "--model", model, "--backend", "native")
    assert_refused(result, "backend: 'native' was asked for", status=1)
    assert names(folder) == ["in.txt"]


@pytest.mark.parametrize("arguments, message", [
    ([], "the following arguments are required: COMMAND (see elmo-fast --help)"),
    (["fly"], "argument COMMAND: invalid choice: 'fly'"),
    (["embed"], "the following arguments are required: INPUT, OUTPUT"),
    (["info"], "model: expected MODEL, or --options-file and --weight-file; got neither"),
    (["info", "nope"], "model: expected one of bundled, small, medium, original, original_5.5b, a directory"),
    (["info", "m", "--weight-file", "w"], "model: expected either model or options_file and weight_file, got both"),
    (["doctor", "who"], "unrecognized arguments: who"),
])
def test_bad_usage_is_refused_in_one_line(capsys, folder, arguments, message):
    assert_refused(run(capsys, *arguments), message)


def test_help_and_version(capsys):
    status, output, _ = run(capsys, "embed", "--help")
    assert status == 0 and "--use-sentence-keys" in output
    assert run(capsys, "--version") == (0, f"elmo-fast {elmo_fast.__version__}\n", "")


def described(output):
    return dict((part.strip() for part in line.split(":", 1)) for line in output.splitlines())


@pytest.mark.parametrize("content", [tiny(), tiny(lstm__n_layers=4, lstm__projection_dim=8, lstm__cell_clip=None,
                                                  lstm__proj_clip=0.3, lstm__use_skip_connections=False)])
def test_info(capsys, tmp_path, content):
    folder = write_model(tmp_path / "model", content)
    status, output, errors = run(capsys, "info", folder)
    assert (status, errors) == (0, "")
    found = described(output)
    layers, projection = content["lstm"]["n_layers"], content["lstm"]["projection_dim"]
    parameters = sum(values.size for values in random_weights(Options.from_dict(content)).values())
    assert found["options file"] == str(folder / "options.json")
    assert found["weight file"] == str(folder / "weights.hdf5")
    assert found["layers"].startswith(f"{layers + 1} (the token layer and {layers} LSTM layers")
    assert found["vector of a token"] == f"{2 * projection} values a layer"
    assert found["LSTM"] == ("dim 8, projection 4, skip connections on" if projection == 4 else
                             "dim 8, projection none, skip connections off")
    assert found["clips"] == ("cell \u00b13, projection \u00b13" if projection == 4 else
                              "cell none, projection \u00b10.3")
    assert found["char-CNN"] == "10 filters (4 of width 1, 6 of width 2), relu"
    assert found["highway layers"] == "1"
    assert found["parameters"] == f"{parameters:,}"


def test_info_of_a_word_model(capsys, tmp_path):
    content = {"lstm": tiny()["lstm"], "n_tokens_vocab": 1234}
    status, output, _ = run(capsys, "info", write_model(tmp_path, content))
    assert status == 0
    assert described(output)["input"] == "word ids, 1,234 words" and "char-CNN" not in described(output)


def test_a_word_model_cannot_embed_text(capsys, folder):
    model = write_model(folder / "model", {"lstm": tiny()["lstm"], "n_tokens_vocab": 9})
    result = run(capsys, "embed", "in.txt", "out.hdf5", "--all", "--model", model)
    assert_refused(result, "tokens: expected word ids (this model reads no characters), got strings")
    assert names(folder) == ["in.txt", "model"]


def test_doctor_lists_every_op(capsys):
    status, output, errors = run(capsys, "doctor")
    assert (status, errors) == (0, "")
    for op in OPS:
        assert any(line.startswith("cpu ") and f" {op} runs on " in line for line in output.splitlines())
    assert f"Python       {sys.version.split()[0]}" in output and f"numpy {np.__version__}" in output


def finish(process, text=None):
    output, errors = process.communicate(text, timeout=60)
    return process.returncode, output, errors


def test_stdin(model, tmp_path):
    (tmp_path / "in.txt").write_text("\n".join(SENTENCES), encoding="utf-8")
    with open(tmp_path / "in.txt", encoding="utf-8") as file:
        ElmoEmbedder(*paths(model)).embed_file(file, tmp_path / "expected.hdf5", progress=False)
    command = ["embed", "-", tmp_path / "out.hdf5", "--all", "--model", model]
    piped = start(command, stdin=-1, encoding="utf-8")
    assert finish(piped, "\n".join(SENTENCES)) == (0, "", "")
    for key, values in arrays(tmp_path / "expected.hdf5").items():
        np.testing.assert_array_equal(arrays(tmp_path / "out.hdf5")[key], values)


def test_an_empty_stdin_leaves_nothing(model, tmp_path):
    command = ["embed", "-", tmp_path / "out.hdf5", "--all", "--model", model]
    assert_refused(finish(start(command, stdin=-1), ""), "input file: expected one tokenized sentence a line, got an")
    assert names(tmp_path) == []


def test_a_closed_stdin_is_refused(capsys, folder, model, monkeypatch):
    monkeypatch.setattr(sys, "stdin", None)
    result = run(capsys, "embed", "-", "out.hdf5", "--all", "--model", model)
    assert_refused(result, "input file: expected text on stdin, which is closed")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_in_the_middle_leaves_nothing(model, tmp_path, number):
    command = ["embed", "-", tmp_path / "out.hdf5", "--all", "--model", model, "--batch-size", "1"]
    process = start(command, stdin=-1)
    process.stdin.write("a b c\n" * 100)
    process.stdin.flush()  # it stays open, so the command waits for more with its file half written
    while process.poll() is None and not names(tmp_path):
        time.sleep(0.01)
    process.send_signal(number)
    assert_refused(finish(process), "interrupted; no output was left behind", status=1)
    assert names(tmp_path) == []
