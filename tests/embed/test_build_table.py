"""Tables built from models: the numbers, runs that are killed or meet a full disk, and the command `cache`."""

import errno
import signal

import numpy as np
import pytest
import torch

from elmo_fast import BiLm, ConfigurationError, TokenTable, build_token_table, corpus_words, write_token_table
from elmo_fast.embed import build_table
from elmo_fast.model.token_table.file import TableHeader, TableWriter, table_writer
from elmo_fast.testing import SAME_MODEL
from tests.support.files import ROOT, names, read_hdf5, run, start, write_model
from tests.support.models import SENTENCES, SHAPES, bilm

WORDS = ["<S>", "</S>", "<UNK>", *(f"wörd{k}" for k in range(50)), "x" * 70, ""]
ROWS = np.arange(len(WORDS))


@pytest.mark.parametrize("shape, backend, dtype", [
    ("two layers", "reference", torch.float32), ("tanh", "native", torch.float32),
    ("filters as wide as the projection", "native", torch.float32), ("short tokens", "native", torch.float32),
    ("two layers", "native", torch.float16)])
def test_vectors_are_those_of_the_model_that_may_train(shape, backend, dtype, monkeypatch):
    monkeypatch.setattr(build_table, "_WORDS_A_BLOCK", 20)
    monkeypatch.setattr(build_table, "_WORDS_AT_ONCE", 7)
    model = bilm(SHAPES[shape], backend=backend).requires_grad_(True).to(dtype)
    with torch.no_grad():
        expected = model.encode(WORDS).float()
    built = build_token_table(model, WORDS)
    torch.testing.assert_close(built.vectors(ROWS), expected, atol=0 if backend == "native" else SAME_MODEL, rtol=0)
    assert (built.words, built.precision, built.fingerprint) == (WORDS, model.computes_in, model.fingerprint())


def test_words_may_lack_the_boundaries_a_file_may_not(tmp_path):
    built = build_token_table(bilm(), ["a", "b", "</S>"])
    assert built.words == ["a", "b", "</S>", "<S>"] and built.ids(["a"]).tolist() == [1]
    (tmp_path / "vocab.txt").write_text("a\nb\n</S>\n")
    for make in (lambda words: build_token_table(bilm(), words),
                 lambda words: write_token_table(bilm(), words, tmp_path / "t.hdf5")):
        for words, message in ((tmp_path / "vocab.txt", "expected a line for each of <S>, </S>; missing <S>"),
                               (["a", 3], "vocabulary: expected strings, got int"),
                               (3, "vocabulary: expected a file or words, got int")):
            with pytest.raises(ValueError, match=message):
                make(words)
    with pytest.raises(ValueError, match="storage: expected one of float32, float16, got 'int8'"):
        build_token_table(bilm(), ["a"], storage="int8")
    with pytest.raises(FileNotFoundError, match="token table: expected an existing directory"):
        write_token_table(bilm(), ["a"], tmp_path / "no" / "t.hdf5")
    assert names(tmp_path) == ["vocab.txt"]


def test_a_corpus_is_a_vocabulary():
    words = corpus_words(iter([["b", "a", "<S>"], [], ["a", "c", "b", "a"]]))
    assert words == ["<S>", "</S>", "a", "b", "c"]
    assert set(corpus_words(SENTENCES)) == {"<S>", "</S>"} | {word for sentence in SENTENCES for word in sentence}


KILLED = """
import os, signal, sys
sys.path.insert(0, {root!r})
from tests.support.models import bilm
from elmo_fast import write_token_table
from elmo_fast.embed import build_table
from elmo_fast.model.token_table.file import TableWriter

build_table._WORDS_A_BLOCK = 8
puts, put = 0, TableWriter._put

def dying(writer, offset, values):
    global puts
    puts += 1
    if puts == {puts}:
        put(writer, offset, values[: len(values) // 2])
        os.kill(os.getpid(), signal.SIGKILL)
    put(writer, offset, values)

TableWriter._put = dying
write_token_table(bilm(), {words!r}, {path!r})
"""


def killed(path, puts, _):
    """In the middle of writing vectors (odd), or with them written and not yet counted (even)."""
    process = start(KILLED.format(root=str(ROOT), puts=puts, words=WORDS, path=str(path)))
    assert process.wait(60) == -signal.SIGKILL, process.communicate()


def full_disk(path, puts, monkeypatch):
    path.write_text("old")
    put = TableWriter._put

    def full(writer, offset, values):
        if writer.done >= 8 * ((puts - 1) // 2) and values.ndim == 2:  # of vectors, not of their number
            raise OSError(errno.ENOSPC, "No space left on device")
        put(writer, offset, values)

    with monkeypatch.context() as patched:
        patched.setattr(TableWriter, "_put", full)
        with pytest.raises(OSError, match="No space left on device"):
            write_token_table(bilm(), WORDS, path)
    assert path.read_text() == "old"


@pytest.mark.parametrize("stop, puts", [pytest.param(killed, 2, marks=pytest.mark.long), (full_disk, 5),
                                        pytest.param(killed, 5, marks=pytest.mark.long)])
def test_a_stopped_run_is_resumed(tmp_path, monkeypatch, stop, puts):
    path = tmp_path / "t.hdf5"
    monkeypatch.setattr(build_table, "_WORDS_A_BLOCK", 8)
    stop(path, puts, monkeypatch)
    assert names(tmp_path) == ["t.hdf5"] * path.exists() + ["t.hdf5.lock"] * (stop is killed) + ["t.hdf5.part"]
    first, inner = [], build_table.encoded
    monkeypatch.setattr(build_table, "encoded", lambda *arguments: first.append(arguments[2]) or inner(*arguments))
    write_token_table(bilm(), WORDS, path)
    assert first == [8 * ((puts - 1) // 2)] and names(tmp_path) == ["t.hdf5"]
    assert torch.equal(TokenTable.open(path).vectors(ROWS), build_token_table(bilm(), WORDS).vectors(ROWS))


@pytest.mark.parametrize("change", ["words", "model", "storage", "precision", "damage"])
def test_a_partial_file_of_another_table_is_replaced(tmp_path, change):
    path, part = tmp_path / "t.hdf5", tmp_path / "t.hdf5.part"
    precision = "medium" if change == "precision" else "highest"
    header = TableHeader((len(WORDS), 11), "float32", WORDS, bilm().fingerprint(), precision)
    with pytest.raises(ValueError, match="vectors: expected 55, got 5"), table_writer(path, header, True) as writer:
        writer.append(np.full((5, 11), np.nan))
    if change == "damage":
        part.write_bytes(part.read_bytes()[:100])
    words = [*WORDS[:-1], "another"] if change == "words" else WORDS
    model = bilm(seed=change == "model")
    storage = "float16" if change == "storage" else "float32"
    write_token_table(model, words, path, storage=storage)
    found, built = TokenTable.open(path), build_token_table(model, words, storage=storage)
    assert found.words == words and found.storage == storage and found.fingerprint == built.fingerprint
    assert torch.equal(found.vectors(ROWS), built.vectors(ROWS))
    assert names(tmp_path) == ["t.hdf5"]


def test_two_runs_do_not_write_one_table(tmp_path):
    header = TableHeader((len(WORDS), 11), "float32", WORDS, bilm().fingerprint(), "highest")
    arguments = tmp_path / "t.hdf5", header, True
    refused = pytest.raises(ConfigurationError, match="expected no other process or thread to write it")
    unfinished = pytest.raises(ValueError, match="vectors: expected 55, got 0")
    with unfinished, table_writer(*arguments), refused, table_writer(*arguments):
        pytest.fail("two runs at once")


def test_the_command_caches_and_embeds(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_model(tmp_path / "model")
    (tmp_path / "text.txt").write_text("The children play .\n\nIt rained and rained .\n", encoding="utf-8")
    (tmp_path / "vocab.txt").write_text("<S>\n</S>\n<UNK>\nThe\nrained\n.\n", encoding="utf-8")

    def embed(*extra):
        found = run(capsys, "embed", "text.txt", "o.hdf5", "--all", "--allow-blank", "--model", "model",
                    "--forget-sentences", *extra)
        return found if found[0] else read_hdf5("o.hdf5")

    cache = ["cache", "vocab.txt", "t.hdf5", "--model", "model"]
    with monkeypatch.context() as patched:
        patched.setattr(TableWriter, "append", lambda *_: signal.raise_signal(signal.SIGINT))
        status, _, error = run(capsys, *cache)
    assert status == 1 and "interrupted; the same command resumes" in error
    assert run(capsys, *cache) == (0, "", "elmo-fast: t.hdf5: vectors of 6 words, [6, 4] in float32\n")
    assert "t.hdf5.part" not in names(tmp_path)
    assert TokenTable.open("t.hdf5").words == ["<S>", "</S>", "<UNK>", "The", "rained", "."]
    plain = embed()
    for extra in ([], ["--unknown", "encode"]):
        found = embed("--token-table", "t.hdf5", *extra)
        assert all(np.allclose(found[key], values, rtol=0, atol=1e-6) for key, values in plain.items())
    status, _, error = embed("--token-table", "t.hdf5", "--unknown", "error")
    assert status == 2 and "expected words of the table (6 words), got 'children', 'play', 'It', 'and'" in error
    assert run(capsys, "cache", "text.txt", "all.hdf5", "--corpus", "--storage", "float16", "--model", "model")[0] == 0
    corpus = TokenTable.open("all.hdf5")
    assert set(corpus.words) == {"<S>", "</S>", *"The children play . It rained and".split()}
    assert embed("--token-table", "all.hdf5", "--unknown", "error").keys() == plain.keys()
    assert BiLm.from_model("model").fingerprint() == corpus.fingerprint
    (tmp_path / "raw.txt").write_text("They don't play (yet).\n", encoding="utf-8")
    assert run(capsys, "cache", "raw.txt", "raw.hdf5", "--corpus", "--tokenizer", "auto", "--model", "model")[0] == 0
    assert set(TokenTable.open("raw.hdf5").words) == {"<S>", "</S>", *"They do n't play ( yet ) .".split()}
    status, _, error = run(capsys, "cache", "vocab.txt", "v.hdf5", "--tokenizer", "auto", "--model", "model")
    assert status == 2 and "--tokenizer: expected --corpus beside it" in error and "v.hdf5" not in names(tmp_path)
