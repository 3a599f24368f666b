"""A byte order mark at the beginning of a text is no part of its first word, whatever reads it."""

import gzip
import json

import numpy as np
import pytest

from elmo_fast import BiLm, Options, Vocabulary, cli, open_embeddings, open_texts
from elmo_fast.compat.allennlp.tools.create_elmo_embeddings_from_vocab import create_elmo_embeddings_from_vocab
from elmo_fast.compat.bilm import dump_bilm_embeddings
from elmo_fast.compat.bilm.data import LMDataset, TokenBatcher
from elmo_fast.text.corpus import Order, Sentences, make_vocabulary, read_shards
from elmo_fast.text.fasta import read_fasta
from elmo_fast.train.checkpoint import copy_vocabulary
from tests.support.files import paths, read_hdf5, run, write_model

MARK = b"\xef\xbb\xbf"
WORDS = ["<S>", "</S>", "<UNK>", "the", "play"]


@pytest.fixture
def vocab_file(tmp_path):
    (tmp_path / "vocab.txt").write_bytes(MARK + "\n".join(WORDS).encode())
    return tmp_path / "vocab.txt"


def test_vocabularies(tmp_path, vocab_file):
    (tmp_path / "v.gz").write_bytes(gzip.compress(vocab_file.read_bytes()))
    for name in (vocab_file, tmp_path / "v.gz"):
        assert Vocabulary(name, validate_file=True).words == WORDS
        assert TokenBatcher(name).batch_sentences([["the"]]).tolist() == [[1, 4, 2]]
        (run_folder := tmp_path / f"run {name.suffix}").mkdir()
        copy_vocabulary(str(name), run_folder)
        assert (run_folder / "vocab.txt").read_bytes() == "\n".join(WORDS).encode()


@pytest.mark.parametrize("name, content, tokens", [
    ("a.txt", "the play\nb\n", ["the", "play"]), ("a.txt.gz", "the play\nb\n", ["the", "play"]),
    ("a.conllu", "1\tthe\t" + "_\t" * 7 + "_\n\n", ["the"]), ("a.fasta", ">x\nMK\n", ["M", "K"]),
    ("a.jsonl", '{"text": "the play"}\n', ["the", "play"])])
def test_texts(tmp_path, name, content, tokens):
    content = MARK + content.encode()
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    with open_texts(tmp_path / name) as texts:
        count = texts.count()
        found = list(texts)
    assert found[0].tokens == tokens and len(found) == count
    if name == "a.fasta":
        assert next(read_fasta(tmp_path / name)).header == "x"


def test_the_text_of_a_training(tmp_path):
    for name, text in (("a.txt", "the play\nthe\n"), ("b.txt", "the")):
        (tmp_path / name).write_bytes(MARK + text.encode())
    assert make_vocabulary(str(tmp_path / "?.txt"), tmp_path / "v") == (5, 4)
    assert (tmp_path / "v").read_text().split() == [*WORDS[:3], "the", "play"]
    shards = read_shards(str(tmp_path / "?.txt"), "train")
    assert [(shard.sentences, shard.tokens) for shard in shards] == [(2, 3), (1, 1)]
    assert [tokens[1:-1] for _, tokens in Sentences(shards, Order())] == [["the", "play"], ["the"], ["the"]]
    data = LMDataset(tmp_path / "a.txt", Vocabulary(tmp_path / "v"), test=True)
    assert [ids.tolist() for ids, _ in data.get_sentence()] == [[0, 3, 4, 1], [0, 3, 1]]
    (tmp_path / "c.txt").write_bytes(MARK)
    with pytest.raises(ValueError, match="found no token in .*c.txt"):
        read_shards(str(tmp_path / "c.txt"), "train")


def test_files_beside_a_model(tmp_path, vocab_file, capsys):
    model = write_model(tmp_path / "model")
    expected = BiLm.from_files(*paths(model)).encode(["the"])
    options = model / "options.json"
    options.write_bytes(MARK + options.read_bytes())
    assert Options.from_file(options).n_layers == 3
    (tmp_path / "a.txt").write_bytes(MARK + b"the play\n")
    dump_bilm_embeddings(vocab_file, tmp_path / "a.txt", *paths(model), tmp_path / "o.hdf5", progress=False)
    np.testing.assert_allclose(read_hdf5(tmp_path / "o.hdf5")["0"][0, 0, : expected.shape[1]], expected[0], atol=1e-6)
    (tmp_path / "targets").write_bytes(MARK + b"the\n")
    assert run(capsys, "embed", tmp_path / "a.txt", tmp_path / "o.npz", "--top", "--targets", tmp_path / "targets",
               "--model", model, "--quiet")[0] == cli.DONE
    with np.load(tmp_path / "o.npz") as found:
        assert [len(values) for values in found.values()] == [1]
    (tmp_path / "w.txt").write_bytes(MARK + b"@@UNKNOWN@@\nthe\n")
    create_elmo_embeddings_from_vocab(tmp_path / "w.txt", *paths(model), tmp_path / "out")
    assert (tmp_path / "out" / "w.txt").read_text().split() == ["@@UNKNOWN@@", "<S>", "</S>", "the"]
    rows = np.zeros((1, 2), np.float32)
    np.save(tmp_path / "p.npy", rows)
    (tmp_path / "p.json").write_bytes(MARK + json.dumps(["the"]).encode())
    with open_embeddings(tmp_path / "p.npy") as opened:
        assert list(opened.keys) == ["the"]
