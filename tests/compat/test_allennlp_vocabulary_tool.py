"""`create_elmo_embeddings_from_vocab`: vectors of a vocabulary as GloVe-format text."""

import gzip

import numpy as np
import pytest

from elmo_fast import BiLm, ConfigurationError
from elmo_fast.compat.allennlp import create_elmo_embeddings_from_vocab
from elmo_fast.compat.allennlp.tools import create_elmo_embeddings_from_vocab as tool
from tests.support.files import names, paths, start, tiny, write_model

WORDS = ["@@UNKNOWN@@", "the", "naïve", "x" * 60, "東京", "."]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return paths(write_model(tmp_path_factory.mktemp("model") / "tiny", tiny(char_cnn__max_characters_per_token=20)))


def vocabulary(folder, words=WORDS, name="tokens.txt"):
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text("".join(f"{word}\n" for word in words), encoding="utf-8")
    return path


def written(folder, name="tokens.txt"):
    with gzip.open(folder / "elmo_embeddings.txt.gz", "rt", encoding="utf-8") as file:
        lines = [line.rstrip("\n").split(" ") for line in file]
    words = (folder / name).read_text(encoding="utf-8").splitlines()
    return words, [line[0] for line in lines], np.array([line[1:] for line in lines], dtype=np.float32)


@pytest.mark.parametrize("count", [3, 48, 98, 100, 148, 202])  # with <S> and </S> around and on multiples of 50 and 100
@pytest.mark.parametrize("batch_size", [1, 2, 64])
def test_files(files, tmp_path, count, batch_size):
    words = [*WORDS, *(f"word{number}" for number in range(200))][:count]
    out = tmp_path / "new" / "out"
    create_elmo_embeddings_from_vocab(vocabulary(tmp_path / "in", words), *files, out, batch_size, -1)
    listed, keys, values = written(out)
    assert listed == keys == [words[0], "<S>", "</S>", *words[1:]]
    expected = BiLm.from_files(*files).encode(keys).detach().numpy()
    np.testing.assert_allclose(values, expected, rtol=0, atol=1e-6)
    assert names(out) == ["elmo_embeddings.txt.gz", "tokens.txt"]


def test_numbers_are_written_exactly(files, tmp_path):
    create_elmo_embeddings_from_vocab(vocabulary(tmp_path / "in"), *files, tmp_path / "out")
    first = written(tmp_path / "out")[2]
    create_elmo_embeddings_from_vocab(vocabulary(tmp_path / "in"), *files, tmp_path / "out")
    np.testing.assert_array_equal(first, written(tmp_path / "out")[2])
    assert (first == first.astype(str).astype(np.float32)).all() and len(np.unique(first)) > 20


def test_boundaries_that_are_there_move(files, tmp_path):
    create_elmo_embeddings_from_vocab(vocabulary(tmp_path / "in", ["@@UNKNOWN@@", "a", "</S>", "<S>", "b"]), *files,
                                      tmp_path / "out")
    assert written(tmp_path / "out")[0] == ["@@UNKNOWN@@", "<S>", "</S>", "a", "b"]


def test_unknown_word(files, tmp_path):
    path = vocabulary(tmp_path / "in", ["<unk>", "a"])
    with pytest.raises(ConfigurationError, match="vocab_path: expected @@UNKNOWN@@ on the first line, got '<unk>'"):
        create_elmo_embeddings_from_vocab(path, *files, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    create_elmo_embeddings_from_vocab(path, *files, tmp_path / "out", use_custom_oov_token=True)
    assert written(tmp_path / "out")[0] == ["<unk>", "<S>", "</S>", "a"]


@pytest.mark.parametrize("change, named", [
    ({"batch_size": 0}, "batch_size: expected an integer of at least 1, got 0"),
    ({"device": 99}, "device: expected -1"),
    ({"device": -2}, "device: expected -1"),
    ({"vocab_path": "empty.txt"}, "vocab_path: expected a word a line, got an empty file"),
    ({"vocab_path": "latin.txt"}, "vocab_path .*: expected UTF-8 text"),
    ({"output_dir": ""}, "output_dir: expected another folder"),
])
def test_refuses(files, tmp_path, change, named):
    path = vocabulary(tmp_path / "in")
    (tmp_path / "in" / "empty.txt").write_text("")
    (tmp_path / "in" / "latin.txt").write_bytes("@@UNKNOWN@@\ncaf\xe9\n".encode("latin-1"))
    before = names(tmp_path / "in")
    change = {name: tmp_path / "in" / value if isinstance(value, str) else value for name, value in change.items()}
    arguments = {"vocab_path": path, "elmo_config_path": files[0], "elmo_weights_path": files[1],
                 "output_dir": tmp_path / "out", **change}
    with pytest.raises(ConfigurationError, match=named):
        create_elmo_embeddings_from_vocab(**arguments)
    assert names(tmp_path / "in") == before and path.read_text(encoding="utf-8").split() == WORDS


def test_nothing_is_left_of_a_run_that_fails(files, tmp_path, monkeypatch):
    def failing(file, *_):
        file.write("a 0 0 0 0\n")
        raise RuntimeError("no more")

    monkeypatch.setattr(tool, "_write_vectors", failing)
    with pytest.raises(RuntimeError, match="no more"):
        create_elmo_embeddings_from_vocab(vocabulary(tmp_path / "in"), *files, tmp_path / "out")
    assert names(tmp_path / "out") == []


def flags(files, vocab, out, *more):
    return ["--vocab_path", str(vocab), "--elmo_config", str(files[0]), "--elmo_weights", str(files[1]),
            "--output_dir", str(out), *more]


def test_command(files, tmp_path, capsys):
    path = vocabulary(tmp_path / "in", ["<unk>", "a"])
    assert tool.run(flags(files, path, tmp_path / "out")) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert tool.run(flags(files, path, tmp_path / "out", "--use_custom_oov_token", "False")) == 2
    for number, more in enumerate(([], ["True"], ["true"])):
        assert tool.run(flags(files, path, tmp_path / str(number), "--use_custom_oov_token", *more)) == 0
        assert written(tmp_path / str(number))[0] == ["<unk>", "<S>", "</S>", "a"]
    with pytest.raises(SystemExit) as stop:
        tool.run(flags(files, path, tmp_path / "out", "--use_custom_oov_token", "perhaps"))
    assert stop.value.code == 2 and tool.main is create_elmo_embeddings_from_vocab


def test_module_runs(files, tmp_path):
    arguments = flags(files, vocabulary(tmp_path / "in"), tmp_path / "out", "--batch_size", "3", "--device", "-1")
    process = start(f"import sys, runpy; sys.argv[1:] = {arguments!r}; "
                    "runpy.run_module('elmo_fast.compat.allennlp.tools.create_elmo_embeddings_from_vocab', "
                    "run_name='__main__', alter_sys=True)")
    _, err = process.communicate(timeout=120)
    assert process.returncode == 0 and err == ""
    assert len(written(tmp_path / "out")[0]) == len(WORDS) + 2
