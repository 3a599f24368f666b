"""bilm-tf's scripts called with missing, wrong and swapped arguments: one line on stderr, and a status."""

import json
import re
import sys

import pytest

from elmo_fast.compat.bilm import __main__ as scripts
from tests.support.files import names
from tests.support.training import KINDS, write_corpus, write_options

COUNTS = ("--n_train_tokens", 48, "--n_epochs", 1, "--batch_size", 3)


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """A run, what it was made of, and files that are something else, by name."""
    folder = tmp_path_factory.mktemp("bilm")
    text, vocabulary = write_corpus(folder / "text", shards=2)
    options = write_options(folder / "o.json", KINDS["characters"], bidirectional=True, dropout=0)
    content = json.loads(options.read_text())
    for name, changed in {"no lstm": {}, "list": [1], "wrong sections": {**content, "lstm": 3, "char_cnn": []},
                          "no characters": {**content, "char_cnn": {}},
                          "tokens": {**content, "n_train_tokens": "many"}, "words": {**content, "n_tokens_vocab": 7},
                          "null": {**content, "n_train_tokens": None}}.items():
        (folder / name).write_text(json.dumps(changed))
    (folder / "bytes").write_bytes(bytes(range(256)))
    (folder / "empty").touch()
    found = {"run": folder / "run", "text": text, "vocab": vocabulary, "options": options, "texts": folder / "text",
             "none": folder / "none", "file": folder / "text" / "part-0.txt",
             **{name: folder / name for name in ("no lstm", "list", "wrong sections", "no characters", "tokens",
                                                 "words", "null", "bytes", "empty")}}
    sys.argv, before = ["bilm", "train_elmo", "--save_dir", str(found["run"]), "--vocab_file", str(vocabulary),
                        "--train_prefix", text, "--options_file", str(options), *map(str, COUNTS)], sys.argv
    try:
        assert scripts.main() == 0
    finally:
        sys.argv = before
    return folder, found


USUAL = {
    "train_elmo": {"--save_dir": "none", "--vocab_file": "vocab", "--train_prefix": "text",
                   "--options_file": "options"},
    "restart": {"--save_dir": "run", "--vocab_file": "vocab", "--train_prefix": "text"},
    "run_test": {"--save_dir": "run", "--vocab_file": "vocab", "--test_prefix": "text", "--batch_size": 2},
    "dump_weights": {"--save_dir": "run", "--outfile": "none"},
}
CASES = [
    *((script, {flag: None}, f"the following arguments are required: {flag}") for script, flags in USUAL.items()
      for flag in flags if flag not in ("--options_file", "--batch_size")),
    *((script, {"--save_dir": name}, "tf_save_dir: expected a directory that train wrote") for script in
      ("restart", "run_test", "dump_weights") for name in ("none", "texts", "vocab", "empty", "text")),
    ("train_elmo", {"--save_dir": "run"}, "tf_save_dir: expected a directory without checkpoints"),
    ("train_elmo", {"--save_dir": "vocab"}, "tf_save_dir: expected a directory, got the file"),
    *((script, {"--vocab_file": name}, f"vocabulary{words}") for script in ("train_elmo", "restart", "run_test")
      for name, words in (("texts", ": expected a file, got the directory"),
                          ("none", ": expected a file, found nothing"),
                          ("options", ".*expected a line for each of <S>"), ("bytes", ".*expected UTF-8 text"),
                          ("empty", ".*expected a line for each of <S>"))),
    *((script, {flag: name}, f"filepattern: {words}") for script, flag in (
        ("train_elmo", "--train_prefix"), ("restart", "--train_prefix"), ("run_test", "--test_prefix"))
      for name, words in (("texts", "expected a glob, got the directory .*text; .*/text/[*] are its files"),
                          ("none", "expected files of text, found none"), ("bytes", "expected UTF-8 text.*bytes"),
                          ("empty", "expected files of text, found none"))),
    *(("train_elmo", {"--options_file": name}, words) for name, words in (
        ("none", "options_file: expected a file"), ("texts", "options_file: expected a file, got the directory"),
        ("vocab", "expected JSON"), ("list", "expected a JSON object"), ("no lstm", "the key lstm is missing"),
        ("wrong sections", "lstm: expected a JSON object"), ("no characters", "max_characters_per_token is missing"),
        ("tokens", None), ("words", "n_tokens_vocab: expected the 28 words"), ("bytes", "expected JSON"))),
    *((script, {first: flags[second], second: flags[first]}, ".") for script, flags in USUAL.items()
      for number, first in enumerate(flags) for second in list(flags)[number + 1 :]
      if {first, second} != {"--save_dir", "--outfile"}),
    ("run_test", {"--batch_size": 100_000}, "batch_size: expected at most the number of sentences"),
    ("run_test", {"--batch_size": 0}, "batch_size: expected an integer of at least 1"),
    *((script, {"--n_gpus": value}, words) for script in ("train_elmo", "restart")
      for value, words in ((0, "n_gpus: expected an integer"), ("x", "invalid int value"), (1000, "n_train_tokens"))),
]


def call(capsys, monkeypatch, script, arguments):
    monkeypatch.setattr(sys, "argv", ["bilm", script, *map(str, arguments)])
    capsys.readouterr()
    try:
        status = scripts.main()
    except SystemExit as stop:
        status = stop.code
    return status, capsys.readouterr().err


@pytest.mark.parametrize("script, changes, message", CASES)
def test_a_wrong_call_is_refused_in_one_line(capsys, monkeypatch, world, script, changes, message):
    folder, found = world
    before = names(folder)
    given = {flag: found.get(value, value) for flag, value in {**USUAL[script], **changes}.items() if value is not None}
    counts = {} if script in ("run_test", "dump_weights") else dict(zip(COUNTS[::2], COUNTS[1::2]))
    if message is None:  # of the options' own number of tokens
        counts.pop("--n_train_tokens")
        message = "n_train_tokens: expected a number, got 'many'"
    arguments = [part for flag, value in {**counts, **given}.items() for part in (flag, value)]
    status, error = call(capsys, monkeypatch, script, arguments)
    assert status == 2 and error.count("\n") == 1 and error.startswith("bilm: error: ")
    assert re.search(message, error) and names(folder) == before


def test_without_a_script_or_with_an_opened_glob(capsys, monkeypatch, world):
    assert call(capsys, monkeypatch, "fly", [])[0] == 2
    status, error = call(capsys, monkeypatch, "dump_weights", ["--save_dir", "a", "--outfile", "b", "c.txt", "d.txt"])
    assert status == 2 and "unrecognized arguments: c.txt d.txt; quote a glob" in error
