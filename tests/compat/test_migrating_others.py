"""Every row of docs/migrating.md for SeqVec, simple_elmo and ELMoForManyLangs, run."""

import random
import runpy
import sys

import numpy as np
import pytest

import elmo_fast
from elmo_fast import BiLm, ElmoEmbedder
from elmo_fast.compat import bilm, seqvec
from elmo_fast.compat.elmoformanylangs import Embedder
from elmo_fast.compat.simple_elmo import ElmoModel
from elmo_fast.model.manylangs import read_config
from elmo_fast.testing import SAME_MODEL
from tests.support.files import paths, read_hdf5, run, tiny, write_model
from tests.support.manylangs import write_manylangs
from tests.support.migrating import Rows
from tests.support.softmax import WORDS, write_softmax_model

row = Rows("others")
PROTEINS = {"P1": "SEQWENCE", "P2": "MKT"}
SENTENCES = [["the", "cat", "sat"], ["dog"]]


@pytest.fixture(scope="module")
def simple(tmp_path_factory):
    """A model with a softmax of 12 words: three layers of 8 values."""
    return write_softmax_model(tmp_path_factory.mktemp("simple"), tiny())


@pytest.fixture(scope="module")
def proteins(tmp_path_factory):
    """A model in SeqVec's directory and a FASTA file, and the layers of its proteins in a single batch."""
    folder = write_model(tmp_path_factory.mktemp("seqvec") / "model")
    fasta = folder.parent / "proteins.fasta"
    fasta.write_text("".join(f">sp|{key}|NAME\n{value}\n" for key, value in PROTEINS.items()))
    order = sorted(PROTEINS, key=lambda key: len(PROTEINS[key]))
    layers = ElmoEmbedder(*paths(folder)).embed_batch([list(PROTEINS[key]) for key in order])
    return folder, fasta, dict(zip(order, layers))


@pytest.fixture(scope="module")
def manylangs(tmp_path_factory):
    return write_manylangs(tmp_path_factory.mktemp("manylangs"))


def test_every_row_is_run():
    row.check()


def close(found, expected):
    assert len(found) == len(expected)
    for one, other in zip(found, expected):
        np.testing.assert_allclose(one, other, rtol=0, atol=SAME_MODEL)


@row("`seqvec -i FASTA")
@pytest.mark.parametrize("suffix", ["h5", "npz", "npy"])
def test_the_command_of_seqvec(proteins, tmp_path, capsys, suffix):
    folder, fasta, layers = proteins
    out = tmp_path / f"x.{suffix}"
    flags = ["--protein", "--batchsize", 15000, "--split-char", "|", "--id", 1, "--cpu", "--layer", "sum", "--silent"]
    assert run(capsys, "seqvec", "-i", fasta, "-o", out, "--model", folder, *flags)[0] == 0
    if suffix == "npy":
        return close(np.load(out), [layers[key].sum(0).mean(0) for key in ("P2", "P1")])
    found = read_hdf5(out) if suffix == "h5" else np.load(out)
    return close([found[key] for key in PROTEINS], [layers[key].sum(0).mean(0) for key in PROTEINS])


@row("`get_elmo_model(model_dir, cpu)`", "`ElmoEmbedder(options, weights, cuda_device)` of AllenNLP")
def test_the_embedders_of_seqvec(proteins, tmp_path, monkeypatch):
    folder, _, layers = proteins
    from elmo_fast.compat.allennlp.commands.elmo import ElmoEmbedder as AllenNlps

    for embedder in (seqvec.get_elmo_model(folder, True), AllenNlps(*map(str, paths(folder)), cuda_device=-1)):
        close(embedder.embed_batch([list(PROTEINS[key]) for key in layers]), list(layers.values()))
    monkeypatch.setenv("ELMO_FAST_CACHE", str(tmp_path))
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(ImportError, match="^fetching https://rostlab.org/.*/seqvec/options.json"):
        seqvec.get_elmo_model(tmp_path, True)


@row("`read_fasta_file`, `read_fasta`", "`get_embeddings(seq_dir, model_dir, ...)`",
     "`save_from_generator(emb_path, per_protein, generator)`")
def test_the_functions_of_seqvec(proteins, tmp_path):
    folder, fasta, layers = proteins
    sequences: dict[str, str] = {}
    seqvec.read_fasta(sequences, fasta, "|", 1)
    assert sequences == seqvec.read_fasta_file(fasta.parent, "|", 1) == PROTEINS
    model = seqvec.get_elmo_model(folder, True)
    found = dict(seqvec.embed_with_fallback([(key, PROTEINS[key]) for key in layers], model, folder))
    close([found[key] for key in PROTEINS], [layers[key] for key in PROTEINS])
    close([seqvec.process_embedding(found["P1"], False, "all")], [np.concatenate(list(layers["P1"]), axis=1)])
    close([seqvec.process_embedding(found["P1"], True, "LSTM1")], [layers["P1"][1].mean(0)])
    seqvec.save_from_generator(tmp_path / "x.npz", True, seqvec.get_embeddings(fasta, folder, per_protein=True))
    saved = np.load(tmp_path / "x.npz")
    close([saved[key] for key in PROTEINS], [layers[key].sum(0).mean(0) for key in PROTEINS])


@row("`create_arg_parser()`, `main()`")
@pytest.mark.parametrize("name", ["create_arg_parser", "main"])
def test_the_commands_parts_are_not_there(name):
    with pytest.raises(ImportError, match=f"cannot import name '{name}'"):
        exec(f"from elmo_fast.compat.seqvec import {name}")


@pytest.mark.filterwarnings("ignore:.*found in sys.modules")
@pytest.mark.parametrize("name, message", [
    ("seqvec", "seqvec: expected `elmo-fast seqvec`"),
    ("elmoformanylangs", "elmoformanylangs: expected `elmo-fast embed INPUT OUTPUT")])
def test_modules_run_as_scripts_name_the_command(name, message):
    with pytest.raises(SystemExit, match=f"^{message}"):
        runpy.run_module(f"elmo_fast.compat.{name}", run_name="__main__")


@row("`from simple_elmo import ElmoModel`", "`ElmoModel().load(", "`get_elmo_vectors(", "`get_elmo_vector_average(",
     "`vector_size`, `n_layers`, `batch_size`, `vocab`", "`ElmoModel.warmup(session, texts)`")
def test_simple_elmo(simple):
    model = ElmoModel()
    assert model.load(str(simple), max_batch_size=8, limit=100, full=False) is None
    layers = ElmoEmbedder(*paths(simple)).embed_batch(SENTENCES)
    cold = model.get_elmo_vectors(SENTENCES, warmup=False, layers="all", session=None)
    assert cold.shape == (2, 3, 3, 8) and cold.dtype == np.float32
    close([cold[0], cold[1, :, :1]], layers)
    mean = model.get_elmo_vectors(SENTENCES)  # after the first run, and a second of its own
    assert mean.shape == (2, 3, 8) and not mean[1, 1:].any() and np.abs(mean - cold.mean(1)).max() > 1e-4
    average = model.get_elmo_vector_average(SENTENCES, layers="top")
    assert average.shape == (2, 8) and np.allclose(np.linalg.norm(average, axis=1), 1)
    assert model.get_elmo_vector_average(SENTENCES, layers="all").shape == (2, 3, 8)
    assert (model.vector_size, model.n_layers, model.batch_size) == (8, 3, 8)
    assert model.vocab.size == len(WORDS) and not hasattr(model, "warmup")


@row("`get_elmo_substitutes(")
def test_substitutes(simple):
    model = ElmoModel()
    model.load(str(simple), full=True)
    (found,) = model.get_elmo_substitutes(["the cat sat"], topn=3, nodelimiters=True)
    assert [token["word"] for token in found] == ["the", "cat", "sat"]
    for token in found:
        for direction in (token["forward"], token["backward"]):
            assert direction["logp"] == sorted(direction["logp"], reverse=True) and len(direction["logp"]) == 3
            words = [WORDS[number] for number in direction["candidate_ids"]]
            assert words == direction["candidate_words"] and not {"<S>", "</S>"} & set(words)


@row("`from simple_elmo import Batcher")
@pytest.mark.parametrize("name", ["Batcher", "BidirectionalLanguageModel", "weight_layers", "divide_chunks"])
def test_bilm_tfs_names_in_simple_elmo(name):
    assert name == "divide_chunks" or hasattr(bilm, name)
    with pytest.raises(ImportError, match=f"cannot import name '{name}'"):
        exec(f"from elmo_fast.compat.simple_elmo import {name}")


@row("`from elmoformanylangs import Embedder`", "`Embedder(model_dir, batch_size=64)`", "nothing",
     "`sents2elmo(sents, output_layer=-1)`", "`random.seed(n)` before it", "`embedder.model`, `.config`")
def test_manylangs(manylangs):
    loaded = elmo_fast.load(manylangs)
    layers = loaded.embed(SENTENCES, state="zero")
    first = Embedder(str(manylangs), batch_size=64)
    close(first.sents2elmo(SENTENCES, -2), layers)
    assert first.batch_size == 64 and first.model_dir == str(manylangs) and isinstance(first.model, BiLm)
    assert first.config == read_config(manylangs)[0] and isinstance(first.use_cuda, bool)
    assert first.model.token_source.words["cat"] == 5 and first.model.token_source.characters
    zero = Embedder(manylangs, state="zero", precision="highest", backend="torch")
    close(zero.sents2elmo(SENTENCES), [vectors.mean(0) for vectors in layers])
    close(zero.sents2elmo(SENTENCES, output_layer=1), [vectors[1] for vectors in layers])
    close(Embedder(manylangs, state="warm").sents2elmo(SENTENCES, -2), loaded.embed(SENTENCES))
    orders = []
    for _ in range(2):
        random.seed(5)
        orders.append(Embedder(manylangs, batch_size=1).sents2elmo(SENTENCES * 2))
    close(*orders)
    assert np.abs(orders[0][0] - orders[0][2]).max() > 1e-4  # carried from batch to batch


@row("`model_dir` without the JSON file")
def test_manylangs_with_the_packages_sizes(tmp_path):
    (tmp_path / "config.json").write_text('{"config_path": "/home/me/configs/cnn_50_100_512_4096_sample.json"}')
    assert read_config(tmp_path)[0]["encoder"]["projection_dim"] == 512


@row("`python -m elmoformanylangs test")
@pytest.mark.parametrize("layers, mix", [("--all", lambda x: x), ("--top", lambda x: x[-1]),
                                         ("--average", lambda x: x.mean(0))])
def test_the_command_of_manylangs(manylangs, tmp_path, capsys, layers, mix):
    (tmp_path / "in").write_text("\n".join(map(" ".join, SENTENCES)))
    assert run(capsys, "embed", tmp_path / "in", tmp_path / "out", layers, "--model", manylangs, "--quiet")[0] == 0
    found = read_hdf5(tmp_path / "out")
    expected = elmo_fast.load(manylangs).embed(SENTENCES, state="zero")
    close([found["0"], found["1"]], [mix(vectors) for vectors in expected])


@row("`python -m elmoformanylangs.biLM train`")
def test_manylangs_does_not_train():
    with pytest.raises(ImportError, match=r"elmo_fast.compat.elmoformanylangs.biLM"):
        runpy.run_module("elmo_fast.compat.elmoformanylangs.biLM")
