import logging
import runpy
import sys
from types import SimpleNamespace

import h5py
import numpy as np
import pytest
import torch

from elmo_fast import ConfigurationError, ElmoEmbedder, open_embeddings
from elmo_fast.arguments import SEQVEC_LAYERS
from elmo_fast.compat import allennlp, seqvec
from elmo_fast.testing import SAME_MODEL
from tests.support.files import names, paths, read_hdf5, run, tiny, write_model

PROTEINS = {"P3": "MKTAYIAKQR", "P1": "SEQWENCE", "P2": "ACDEFGHIKLMNPQRSTVWYX", "P4": "mkt*"}

SEQVEC_LOG = [
    "Error processing batch of 2 sequences: no room", "Sequences in the failing batch: ['P1', 'P4']",
    "Starting single sequence processing", "RuntimeError for {} with {} residues: no room",
    "Single sequence processing failed. Switching to CPU now. This slows down the embedding process.",
]


@pytest.fixture
def fasta(tmp_path):
    path = tmp_path / "proteins.fasta"
    path.write_text("".join(f">sp|{key}|NAME x\n{value[:5]}\n{value[5:]}\n" for key, value in PROTEINS.items()))
    return path


def expected(folder, batches, state="carry"):
    """Layers of the proteins, in the batches given as lists of identifiers."""
    embedder = ElmoEmbedder(*paths(folder), state=state)
    return {key: layers for batch in batches
            for key, layers in zip(batch, embedder.embed_batch([list(PROTEINS[key].upper()) for key in batch]))}


@pytest.mark.parametrize("arguments, batches", [
    *((size, [["P4", "P1", "P3", "P2"]]) for size in ({}, {"batchsize": 22})),  # 22 residues are not more than 22
    ({"batchsize": 12}, [["P4", "P1"], ["P3"], ["P2"]]),  # P1 is longer than half
    ({"batchsize": 20}, [["P4", "P1", "P3"], ["P2"]]),
    ({"batchsize": 1}, [["P4"], ["P1"], ["P3"], ["P2"]]),
    *(({"batchsize": size, "state": "warm"}, [["P4"], ["P1"], ["P3"], ["P2"]]) for size in (1, 15000)),
])
def test_batches_shortest_first_end_where_seqvec_ends_them(folder, fasta, tmp_path, arguments, batches):
    layers = expected(folder, batches, arguments.get("state", "carry"))
    for layer in ("sum", "LSTM2"):
        seqvec.embed_fasta(fasta, tmp_path / "x.h5", folder, progress=False, layer=layer, **arguments)
        arrays = read_hdf5(tmp_path / "x.h5")
        assert arrays.keys() == PROTEINS.keys()
        for key, values in arrays.items():
            assert values.dtype == np.float32 and values.shape == (len(PROTEINS[key]), 8)
            truth = layers[key].sum(0) if layer == "sum" else layers[key][2]
            np.testing.assert_allclose(values, truth, rtol=0, atol=SAME_MODEL)


@pytest.mark.parametrize("flags, keys", [([], "P3"), (["--id", "-1"], "sp|P3|NAME x"), (["--id", "0"], None)])
@pytest.mark.parametrize("suffix", [".h5", ".hdf5"])
def test_datasets_have_the_name_of_bio_embeddings(folder, fasta, tmp_path, capsys, suffix, flags, keys):
    """`original_id`, by which predictors find the sequence of a dataset: the first word of its header."""
    arguments = ["seqvec", "-i", fasta, "-o", tmp_path / f"x{suffix}", "--model", folder, "--protein", *flags]
    if keys is None:
        fasta.write_text(fasta.read_text().replace("sp|", "").replace("|NAME", ""))
    for more in ([], ["--batchsize", "1"]):  # in one part and in several
        status, _, error = run(capsys, *arguments, *more, "--silent")
        assert status == 0, error
        with h5py.File(tmp_path / f"x{suffix}") as file:
            names_of = {key: dataset.attrs["original_id"] for key, dataset in file.items()}
        expected = [line[1:].split()[0] for line in fasta.read_text().splitlines() if line.startswith(">")]
        assert sorted(names_of.values()) == sorted(expected) and len(names_of) == 4
        assert names_of[keys or "P3 x"] == expected[0]
        assert sorted(open_embeddings(tmp_path / f"x{suffix}").keys) == sorted(names_of)


def test_embedders(folder, tmp_path, monkeypatch):
    layers = expected(folder, [list(PROTEINS)])
    for embedder in (seqvec.get_elmo_model(folder, True),
                     allennlp.commands.elmo.ElmoEmbedder(*map(str, paths(folder)), cuda_device=-1)):
        vectors = embedder.embed_batch([list(sequence.upper()) for sequence in PROTEINS.values()])
        for actual, layer in zip(vectors, layers.values(), strict=True):
            np.testing.assert_allclose(actual, layer, rtol=0, atol=SAME_MODEL)
    monkeypatch.setenv("ELMO_FAST_CACHE", str(tmp_path / "cache"))
    monkeypatch.setitem(sys.modules, "pooch", None)
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")  # without a directory `model`
    with pytest.raises(ImportError, match="fetching https://rostlab.org/.*/seqvec/options.json"):
        seqvec.get_elmo_model(tmp_path / "empty", True)
    with pytest.raises(ImportError, match="fetching https://rostlab.org/.*/seqvec/options.json"):
        seqvec.get_elmo_model(None, True)
    with pytest.raises(FileNotFoundError, match="found nothing at .*none; --model seqvec downloads the published mod"):
        seqvec.get_elmo_model(tmp_path / "none", True)
    with pytest.raises(ConfigurationError, match="expected one file options.json, found none"):
        seqvec.get_elmo_model(tmp_path, True)


def test_a_generator_is_saved(folder, fasta, tmp_path):
    sequences: dict[str, str] = {}
    seqvec.read_fasta(sequences, fasta, "|", 1)
    assert sequences == {key: value.upper() for key, value in PROTEINS.items()}
    seqvec.save_from_generator(tmp_path / "x.npz", True, seqvec.get_embeddings(fasta, folder, per_protein=True))
    layers, arrays = expected(folder, [["P4", "P1", "P3", "P2"]]), np.load(tmp_path / "x.npz")
    for key in PROTEINS:
        np.testing.assert_allclose(arrays[key], layers[key].sum(0).mean(0), rtol=0, atol=SAME_MODEL)


@pytest.mark.filterwarnings("ignore:.*found in sys.modules")
@pytest.mark.parametrize("name, message", [
    ("seqvec", "seqvec: expected `elmo-fast seqvec`"),
    ("elmoformanylangs", "elmoformanylangs: expected `elmo-fast embed INPUT OUTPUT")])
def test_modules_run_as_scripts_name_the_command(name, message):
    with pytest.raises(SystemExit, match=f"^{message}"):
        runpy.run_module(f"elmo_fast.compat.{name}", run_name="__main__")


@pytest.mark.parametrize("layer", SEQVEC_LAYERS)
@pytest.mark.parametrize("per_protein", [False, True])
def test_layers(layer, per_protein):
    layers = np.random.default_rng(0).normal(size=(3, 7, 10)).astype(np.float32)
    expected = {"sum": layers[0] + layers[1] + layers[2], "CNN": layers[0], "LSTM1": layers[1], "LSTM2": layers[2],
                "all": np.stack([layers[k, :, d] for k in range(3) for d in range(10)], axis=1)}[layer]
    actual = seqvec.process_embedding(layers, per_protein, layer)
    np.testing.assert_allclose(actual, expected.mean(0) if per_protein else expected, rtol=1e-6)


@pytest.mark.parametrize("split_char, field, keys", [
    ("|", 1, ["P1", "P2"]), ("|", 0, ["sp", "tr"]), ("|", -1, ["sp|P1|ONE Homo sapiens", "tr|P2|TWO Homo erectus"]),
    (" ", 2, ["sapiens", "erectus"]), ("|", -2, ["P1", "P2"])])
def test_identifiers_of_all_fasta_files_below_a_directory(tmp_path, split_char, field, keys):
    (tmp_path / "below").mkdir()
    (tmp_path / "one.fasta").write_text(">sp|P1|ONE Homo sapiens\nmk\n")
    (tmp_path / "below" / "two.fasta.txt").write_text(">tr|P2|TWO Homo erectus\nQQ\n")
    (tmp_path / "readme.txt").write_text("no sequences")
    assert seqvec.read_fasta_file(tmp_path, split_char, field) == dict(zip(keys, ["MK", "QQ"]))


@pytest.mark.parametrize("text, flags, words", [
    (">a|1\nMK\n>b|1\nQQ\n", [], "'1' twice"),
    (">only\nMK\n", [], "got number 1 of 'only'"),
    (">a| \nMK\n", [], "expected an identifier"),
    (">a|1\nMK\n", ["-o", "x.npy"], "got .npy"),
    (">a|1\nMK\n", ["--layer", "LSTM3"], "invalid choice"),
    (">a|1\nMK\n", ["--batchsize", "0"], "batchsize: expected"),
    (">a|1\nMK\n", ["--id", "7"], "got number 7 of 'a|1'"),
    (">a|1\nMK\n", ["--split-char", ""], "split_char: expected at least one character"),
    (">a|1\nMK\n", ["-i", "nowhere.fasta"], "found nothing at nowhere.fasta"),
])
def test_refused_in_one_line_before_the_model_is_read(tmp_path, monkeypatch, capsys, text, flags, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.fasta").write_text(text)
    status, _, err = run(capsys, "seqvec", "-i", "a.fasta", "-o", "x.h5", "--model", "nowhere", *flags)
    assert status == 2 and words in err and err.count("\n") == 1 and names(tmp_path) == ["a.fasta"]


@pytest.mark.parametrize("layer, words", [("LSTM3", "layer: expected one of"), ("LSTM2", ".*a model that has 2")])
def test_an_unknown_layer_leaves_no_file(tmp_path, fasta, layer, words):
    folder = write_model(tmp_path / "model", tiny(lstm__n_layers=1))
    with pytest.raises(ConfigurationError, match=f"^{words}"):
        seqvec.embed_fasta(fasta, tmp_path / "x.h5", folder, layer=layer, progress=False)
    assert names(tmp_path) == ["model", "proteins.fasta"]


class Limited(ElmoEmbedder):
    """An embedder that fails on batches of more than `limit` residues."""

    limit = 10

    def embed_batch(self, batch):
        if sum(map(len, batch)) > self.limit:
            raise torch.OutOfMemoryError("no room")
        return super().embed_batch(batch)


@pytest.mark.parametrize("limit, device", [(10, -1), (0, 0)])
def test_fallbacks(folder, caplog, limit, device):
    """Sequences of a failed batch run singly, and a sequence too long for the GPU runs on the CPU."""
    embedder, plain = Limited(*paths(folder), state="zero"), ElmoEmbedder(*paths(folder), state="zero")
    embedder.limit, embedder.cuda_device = limit, device
    with caplog.at_level(logging.ERROR):
        vectors = dict(seqvec.embed_with_fallback([("P1", "SEQWENCE"), ("P4", "MKT")], embedder, folder))
    assert caplog.messages == SEQVEC_LOG[:3] + ([] if limit else [
        line.format(*protein) for protein in (("P1", 8), ("P4", 3)) for line in SEQVEC_LOG[3:]])
    for name, sequence in (("P1", "SEQWENCE"), ("P4", "MKT")):
        np.testing.assert_allclose(vectors[name], plain.embed_sentence(list(sequence)), atol=1e-6)
    embedder.cuda_device = -1
    with pytest.raises(torch.OutOfMemoryError):
        list(seqvec.embed_with_fallback([("P2", PROTEINS["P2"])], embedder, folder))


def test_a_stand_in_for_the_embedder(folder, caplog):
    """SeqVec's own tests use a stand-in with two methods, and read the log. The CPU has the settings of the GPU."""
    class StandIn:
        def embed_batch(self, batch):
            raise RuntimeError("no room")

        embed_sentence = embed_batch

    vectors = dict(seqvec.embed_with_fallback([("P1", "SEQWENCE"), ("P4", "MKT")], StandIn(), folder))
    assert {name: values.shape for name, values in vectors.items()} == {"P1": (3, 8, 8), "P4": (3, 3, 8)}
    assert len(caplog.messages) == 7 and caplog.messages[:3] == SEQVEC_LOG[:3]
    on_gpu = StandIn()
    on_gpu.state, on_gpu.model = "warm", SimpleNamespace(device="cuda:0", precision="highest")
    (_, values), = seqvec.embed_with_fallback([("P4", "MKT")], on_gpu, folder)
    truth = ElmoEmbedder(*paths(folder), state="warm").embed_sentence(list("MKT"))
    np.testing.assert_allclose(values, truth, rtol=0, atol=SAME_MODEL)


@pytest.mark.parametrize("layer, mixed", [("all", lambda layers: np.concatenate(list(layers), axis=1)),
                                          ("sum", lambda layers: layers.sum(0))])
@pytest.mark.parametrize("suffix", ["h5", "npz", "npy"])
def test_the_command(folder, fasta, tmp_path, capsys, suffix, layer, mixed):
    status, out, err = run(capsys, "seqvec", "-i", fasta, "-o", tmp_path / f"x.{suffix}", "--model", folder, "--silent",
                           "--layer", layer, "--protein", "--id", "0", "--split-char", "|NAME", "--state", "zero",
                           "--batchsize", 15000, "--cpu")
    assert (status, out) == (0, "") and "error" not in err
    arrays = read_hdf5(tmp_path / "x.h5") if suffix == "h5" else np.load(tmp_path / f"x.{suffix}")
    order = ["P4", "P1", "P3", "P2"]  # shortest first
    keys = range(4) if suffix == "npy" else [f"sp|{key}" for key in order]
    assert suffix == "npy" or set(arrays) == set(keys)
    for key, layers in zip(keys, expected(folder, [[key] for key in order], "zero").values()):
        np.testing.assert_allclose(arrays[key], mixed(layers).mean(0), rtol=0, atol=SAME_MODEL)


def test_float16_in_a_file_named_hdf5(folder, fasta, tmp_path, capsys):
    for name, dtype in (("x.hdf5", "float16"), ("x.h5", "float32")):
        status, _, err = run(capsys, "seqvec", "-i", fasta, "-o", tmp_path / name, "--model", folder, "--state", "zero",
                             "--dtype", dtype, "--resume")
        assert status == 0 and f"in {dtype}" in err
    arrays, floats = read_hdf5(tmp_path / "x.hdf5"), read_hdf5(tmp_path / "x.h5")
    assert arrays.keys() == floats.keys() == PROTEINS.keys()
    for key, values in arrays.items():
        assert values.dtype == np.float16 and (values == floats[key].astype(np.float16)).all()
    status, _, err = run(capsys, "seqvec", "-i", fasta, "-o", tmp_path / "x.h5", "--model", folder, "--dtype", "int8")
    assert status == 2 and "invalid choice: 'int8'" in err
