"""Tables built from models: the numbers, files, and the command `cache`."""

import numpy as np
import pytest
import torch

from elmo_fast import BiLm, TokenTable, build_token_table, corpus_words, write_token_table
from elmo_fast.embed.api import LoadedElmo
from elmo_fast.testing import SAME_MODEL
from tests.support.files import names, read_hdf5, run, write_model
from tests.support.models import SENTENCES, SHAPES, bilm

WORDS = ["<S>", "</S>", "<UNK>", *(f"wörd{k}" for k in range(8500)), "x" * 70, ""]  # more words than a block
ROWS = np.arange(len(WORDS))


@pytest.mark.parametrize("shape, backend, dtype", [
    ("two layers", "reference", torch.float32), ("tanh", "native", torch.float32),
    ("filters as wide as the projection", "native", torch.float32), ("short tokens", "native", torch.float32),
    ("two layers", "native", torch.float16)])
def test_vectors_are_those_of_a_trainable_model(shape, backend, dtype):
    model = bilm(SHAPES[shape], backend=backend).requires_grad_(True).to(dtype)
    with torch.no_grad():
        expected = model.encode(WORDS).float()
    table = build_token_table(model, WORDS)
    np.testing.assert_allclose(table.vectors(ROWS), expected, atol=0 if backend == "native" else SAME_MODEL, rtol=0)
    precision = LoadedElmo(model).model.computes_in
    assert (table.words, table.precision, table.fingerprint) == (WORDS, precision, model.fingerprint())


def test_words_may_lack_boundaries_but_a_file_may_not(tmp_path):
    table = build_token_table(bilm(), ["a", "b", "</S>"])
    assert table.words == ["a", "b", "</S>", "<S>"] and table.ids(["a"]).tolist() == [1]
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


def test_the_command_caches_and_embeds(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_model(tmp_path / "model")
    (tmp_path / "text.txt").write_text("The children play .\n\nIt rained and rained .\n", encoding="utf-8")
    (tmp_path / "vocab.txt").write_text("<S>\n</S>\n<UNK>\nThe\nrained\n.\n", encoding="utf-8")

    def embed(*extra):
        result = run(capsys, "embed", "text.txt", "o.hdf5", "--all", "--allow-blank", "--model", "model",
                     "--forget-sentences", *extra)
        return result if result[0] else read_hdf5("o.hdf5")

    assert run(capsys, "cache", "vocab.txt", "t.hdf5", "--model", "model") == (
        0, "", "elmo-fast: t.hdf5: vectors of 6 words, [6, 4] in float32\n")
    assert TokenTable.open("t.hdf5").words == ["<S>", "</S>", "<UNK>", "The", "rained", "."]
    plain = embed()
    for extra in ([], ["--unknown", "encode"]):
        arrays = embed("--token-table", "t.hdf5", *extra)
        assert all(np.allclose(arrays[key], values, rtol=0, atol=SAME_MODEL) for key, values in plain.items())
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
    assert status == 2 and "--tokenizer: expected --corpus beside them" in error and "v.hdf5" not in names(tmp_path)
