"""`create_elmo_embeddings_from_vocab`: vectors of a vocabulary as GloVe-format text."""

import gzip
import runpy
import sys

import numpy as np
import pytest

from elmo_fast import BiLm, ConfigurationError
from elmo_fast.compat.allennlp import create_elmo_embeddings_from_vocab
from elmo_fast.compat.allennlp.tools import create_elmo_embeddings_from_vocab as tool
from elmo_fast.testing import SAME_MODEL
from tests.support.files import names

WORDS = ["@@UNKNOWN@@", "the", "naïve", "x" * 60, "東京", "."]


def vocabulary(folder, words=WORDS):
    (folder / "in").mkdir()
    (folder / "in" / "tokens.txt").write_text("".join(f"{word}\n" for word in words), encoding="utf-8")
    return folder / "in" / "tokens.txt"


def read_vectors(folder):
    """The new vocabulary's words, and the vectors of the same words, float32 [words, P]."""
    with gzip.open(folder / "elmo_embeddings.txt.gz", "rt", encoding="utf-8") as file:
        lines = [line.rstrip("\n").split(" ") for line in file]
    words = (folder / "tokens.txt").read_text(encoding="utf-8").splitlines()
    assert [line[0] for line in lines] == words and names(folder) == ["elmo_embeddings.txt.gz", "tokens.txt"]
    return words, np.array([line[1:] for line in lines], dtype=np.float32)


@pytest.mark.parametrize("count", [3, 50, 100, 102, 150, 204])  # around and on multiples of 50 and 100
@pytest.mark.parametrize("batch_size", [1, 2, 64])
def test_files(files, tmp_path, count, batch_size):
    path = vocabulary(tmp_path, [*WORDS, "</S>", "<S>", *(f"word{number}" for number in range(200))][:count])
    out = tmp_path / "new" / "out"
    create_elmo_embeddings_from_vocab(path, *files, out, batch_size, -1)
    words, values = read_vectors(out)
    first, *rest = path.read_text(encoding="utf-8").splitlines()
    assert words == [first, "<S>", "</S>", *(word for word in rest if word not in ("<S>", "</S>"))]
    np.testing.assert_allclose(values, BiLm.from_files(*files).encode(words).detach().numpy(), rtol=0, atol=SAME_MODEL)
    create_elmo_embeddings_from_vocab(path, *files, out, batch_size)
    np.testing.assert_array_equal(values, read_vectors(out)[1])
    assert (values == values.astype(str).astype(np.float32)).all() and len(np.unique(values)) > 20


@pytest.mark.parametrize("text, out, arguments, message", [
    (b"@@UNKNOWN@@\n", "out", {"batch_size": 0}, "batch_size: expected an integer of at least 1, got 0"),
    (b"@@UNKNOWN@@\n", "out", {"device": 99}, "device: expected -1"),
    (b"", "out", {}, "vocab_path: expected one word per line, got an empty file"),
    (b"@@UNKNOWN@@\ncaf\xe9\n", "out", {}, "vocab_path .*: expected UTF-8 text"),
    (b"<unk>\na\n", "out", {}, "vocab_path: expected @@UNKNOWN@@ on the first line, got '<unk>'"),
    (b"@@UNKNOWN@@\n", "in", {}, "output_dir: expected another folder"),
])
def test_refuses(files, tmp_path, text, out, arguments, message):
    path = vocabulary(tmp_path)
    path.write_bytes(text)
    with pytest.raises(ConfigurationError, match=f"^{message}"):
        create_elmo_embeddings_from_vocab(path, *files, tmp_path / out, **arguments)
    assert names(tmp_path) == ["in"] and names(tmp_path / "in") == ["tokens.txt"] and path.read_bytes() == text


@pytest.mark.parametrize("more, status", [
    ([], 2), (["--use_custom_oov_token", "False"], 2), (["--use_custom_oov_token", "perhaps"], 2),
    *((["--use_custom_oov_token", *more], 0) for more in ([], ["True"], ["true"]))])
def test_command(files, tmp_path, monkeypatch, capsys, more, status):
    assert tool.main is create_elmo_embeddings_from_vocab
    flags = ["--vocab_path", str(vocabulary(tmp_path, ["<unk>", "a"])), "--elmo_config", files[0],
             "--elmo_weights", files[1], "--output_dir", str(tmp_path / "out"), "--batch_size", "3", "--device", "-1",
             *more]
    monkeypatch.setattr(sys, "argv", [tool.__name__, *flags])
    monkeypatch.delitem(sys.modules, tool.__name__)
    with pytest.raises(SystemExit, match=str(status)):
        runpy.run_module(tool.__name__, run_name="__main__")
    assert "perhaps" in more or capsys.readouterr().err.count("\n") == (status > 0)
    if not status:
        assert read_vectors(tmp_path / "out")[0] == ["<unk>", "<S>", "</S>", "a"]
