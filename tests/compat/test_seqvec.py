import json
import logging
import subprocess
import sys

import h5py
import numpy as np
import pytest
import torch

from elmo_fast import ConfigurationError, ElmoEmbedder
from elmo_fast.choices import SEQVEC_LAYERS
from elmo_fast.compat import seqvec
from tests.support.files import ROOT, names, paths, run, tiny, write_model

PROTEINS = {"P3": "MKTAYIAKQR", "P1": "SEQWENCE", "P2": "ACDEFGHIKLMNPQRSTVWYX", "P4": "mkt*"}


@pytest.fixture
def model(tmp_path):
    return write_model(tmp_path / "model", tiny(lstm__dim=12))


@pytest.fixture
def fasta(tmp_path):
    path = tmp_path / "proteins.fasta"
    path.write_text("".join(f">sp|{key}|NAME x\n{value[:5]}\n{value[5:]}\n" for key, value in PROTEINS.items()))
    return path


def expected(model, batches, state="carry"):
    """Layers of the proteins, in the batches given as lists of identifiers."""
    embedder = ElmoEmbedder(*paths(model), state=state)
    return {key: layers for batch in batches
            for key, layers in zip(batch, embedder.embed_batch([list(PROTEINS[key].upper()) for key in batch]))}


def saved(model, fasta, output, **arguments):
    seqvec.embed_fasta(fasta, output, model, progress=False, **arguments)
    with h5py.File(output) as file:
        return {key: file[key][()] for key in file}


def test_one_batch_is_run_shortest_first_and_layers_are_summed(model, fasta, tmp_path):
    layers = expected(model, [["P4", "P1", "P3", "P2"]])
    found = saved(model, fasta, tmp_path / "x.h5")
    assert found.keys() == PROTEINS.keys()
    for key, values in found.items():
        assert values.dtype == np.float32 and values.shape == (len(PROTEINS[key]), 8)
        np.testing.assert_allclose(values, layers[key].sum(0), rtol=0, atol=1e-6)


@pytest.mark.parametrize("batchsize, batches", [
    (12, [["P4", "P1"], ["P3"], ["P2"]]),  # 12 residues are not more than 12; P1 is longer than half of it
    (20, [["P4", "P1", "P3"], ["P2"]]),
    (1, [["P4"], ["P1"], ["P3"], ["P2"]]),
])
def test_batches_end_where_seqvec_ends_them(model, fasta, tmp_path, batchsize, batches):
    layers = expected(model, batches)
    found = saved(model, fasta, tmp_path / "x.h5", batchsize=batchsize, layer="LSTM2")
    for key, values in found.items():
        np.testing.assert_allclose(values, layers[key][2], rtol=0, atol=1e-6)


@pytest.mark.parametrize("layer", SEQVEC_LAYERS)
@pytest.mark.parametrize("per_protein", [False, True])
def test_layers(layer, per_protein):
    layers = np.random.default_rng(0).normal(size=(3, 7, 10)).astype(np.float32)
    one = {"sum": layers[0] + layers[1] + layers[2], "CNN": layers[0], "LSTM1": layers[1], "LSTM2": layers[2],
           "all": np.stack([layers[k, :, d] for k in range(3) for d in range(10)], axis=1)}[layer]
    found = seqvec.process_embedding(layers, per_protein, layer)
    np.testing.assert_allclose(found, one.mean(0) if per_protein else one, rtol=1e-6)


def test_warm_results_do_not_depend_on_batches(model, fasta, tmp_path):
    first = saved(model, fasta, tmp_path / "a.h5", state="warm", batchsize=1)
    second = saved(model, fasta, tmp_path / "b.h5", state="warm", batchsize=15000)
    layers = expected(model, [[key] for key in PROTEINS], "warm")
    for key in PROTEINS:
        np.testing.assert_allclose(first[key], second[key], rtol=0, atol=1e-6)
        np.testing.assert_allclose(first[key], layers[key].sum(0), rtol=0, atol=1e-6)


def test_npz_and_npy(model, fasta, tmp_path):
    whole = saved(model, fasta, tmp_path / "x.h5", per_protein=True)
    seqvec.embed_fasta(fasta, tmp_path / "x.npz", model, per_protein=True, progress=False)
    seqvec.embed_fasta(fasta, tmp_path / "x.npy", model, per_protein=True, progress=False)
    packed = np.load(tmp_path / "x.npz")
    stacked, order = np.load(tmp_path / "x.npy"), json.loads((tmp_path / "x.json").read_text())
    assert sorted(packed.files) == sorted(order) == sorted(whole) and stacked.shape == (4, 8)
    for key in whole:
        np.testing.assert_array_equal(packed[key], whole[key])
        np.testing.assert_array_equal(stacked[order.index(key)], whole[key])


@pytest.mark.parametrize("split_char, field, wanted", [
    ("|", 1, "P1"), ("|", 0, "sp"), ("|", -1, "sp|P1|ONE Homo sapiens"), (" ", 2, "sapiens"), ("|", -2, "P1")])
def test_identifiers(tmp_path, split_char, field, wanted):
    path = tmp_path / "a.fasta"
    path.write_text(">sp|P1|ONE Homo sapiens\nMK\n")
    assert seqvec.read_fasta_file(path, split_char, field) == {wanted: "MK"}


def test_a_directory_gives_all_its_fasta_files(tmp_path):
    (tmp_path / "below").mkdir()
    (tmp_path / "one.fasta").write_text(">a|1\nmk\n")
    (tmp_path / "below" / "two.fasta.txt").write_text(">a|2\nQQ\n")
    (tmp_path / "readme.txt").write_text("no sequences")
    assert seqvec.read_fasta_file(tmp_path, "|", 1) == {"1": "MK", "2": "QQ"}


@pytest.mark.parametrize("text, words", [
    (">a|1\nMK\n>b|1\nQQ\n", "'1' twice"),
    (">only\nMK\n", "got number 1 of 'only'"),
    (">a| \nMK\n", "expected an identifier"),
    (">a|1\n>b|2\nMK\n", "expected a sequence under every header"),
])
def test_refused_records(tmp_path, text, words):
    path = tmp_path / "a.fasta"
    path.write_text(text)
    with pytest.raises(ValueError) as caught:
        seqvec.read_fasta_file(path, "|", 1)
    assert words in str(caught.value)


@pytest.mark.parametrize("arguments, words", [
    ({"output_path": "x.txt"}, "ends in .h5, .npz, .npy"),
    ({"output_path": "x.npy"}, "got .npy"),
    ({"layer": "LSTM3"}, "layer: expected"),
    ({"batchsize": 0}, "batchsize: expected"),
])
def test_bad_arguments_are_refused_before_the_model_is_read(tmp_path, fasta, arguments, words):
    call = {"output_path": "x.h5", **arguments}
    call["output_path"] = tmp_path / call["output_path"]
    before = names(tmp_path)
    with pytest.raises(ValueError) as caught:
        seqvec.embed_fasta(fasta, model_dir=tmp_path / "nowhere", **call)
    assert words in str(caught.value) and names(tmp_path) == before


def test_a_layer_the_model_lacks_leaves_no_file(tmp_path, fasta):
    model = write_model(tmp_path / "model", tiny(lstm__n_layers=1))
    with pytest.raises(ConfigurationError, match="a model that has 2"):
        seqvec.embed_fasta(fasta, tmp_path / "x.h5", model, layer="LSTM2", progress=False)
    assert "x.h5" not in names(tmp_path) and len(names(tmp_path)) == 2


def test_a_failed_batch_is_run_one_by_one(model, monkeypatch, caplog):
    embedder = ElmoEmbedder(*paths(model), state="zero")
    whole = embedder.embed_batch

    def limited(batch):
        if sum(map(len, batch)) > 10:
            raise torch.OutOfMemoryError("no room")
        return whole(batch)

    monkeypatch.setattr(embedder, "embed_batch", limited)
    with caplog.at_level(logging.ERROR):
        found = dict(seqvec.embed_with_fallback([("P1", "SEQWENCE"), ("P4", "MKT")], embedder, model))
    assert "one by one" in caplog.text and "no room" in caplog.text
    np.testing.assert_allclose(found["P4"], whole([list("MKT")])[0], atol=1e-6)
    with pytest.raises(torch.OutOfMemoryError):
        list(seqvec.embed_with_fallback([("P2", PROTEINS["P2"])], embedder, model))


def test_a_sequence_too_long_for_the_gpu_runs_on_the_cpu(model, monkeypatch, caplog):
    embedder = ElmoEmbedder(*paths(model), state="zero")
    right = embedder.embed_batch([list("MKT")])[0]
    embedder.cuda_device = 0

    def full(batch):
        raise torch.OutOfMemoryError("no room")

    monkeypatch.setattr(embedder, "embed_batch", full)
    with caplog.at_level(logging.ERROR):
        (name, found), = seqvec.embed_with_fallback([("P4", "MKT")], embedder, model)
    assert name == "P4" and "run on the CPU" in caplog.text
    np.testing.assert_allclose(found, right, atol=1e-6)


def test_the_command(model, fasta, tmp_path, capsys):
    status, out, err = run(capsys, "seqvec", "-i", fasta, "-o", tmp_path / "x.h5", "--model", model, "--silent",
                           "--layer", "all", "--protein", "--id", "0", "--split-char", "|NAME", "--state", "zero")
    assert (status, out) == (0, "") and "error" not in err
    with h5py.File(tmp_path / "x.h5") as file:
        assert set(file) == {f"sp|{key}" for key in PROTEINS}
        for key, layers in expected(model, [[key] for key in PROTEINS], "zero").items():
            wanted = np.concatenate([layer.mean(0) for layer in layers])
            np.testing.assert_allclose(file[f"sp|{key}"], wanted, rtol=0, atol=1e-6)


@pytest.mark.parametrize("arguments, words", [
    (["--id", "7"], "got number 7 of 'sp|P3|NAME x'"), (["--batchsize", "0"], "batchsize: expected"),
    (["--layer", "top"], "invalid choice"), (["-i", "nowhere.fasta"], "found nothing at nowhere.fasta")])
def test_the_command_says_in_one_line_what_is_wrong(model, fasta, tmp_path, capsys, arguments, words):
    status, _, err = run(capsys, "seqvec", "-i", fasta, "-o", tmp_path / "x.h5", "--model", model, *arguments)
    assert status == 2 and words in err and err.count("\n") == 1 and "x.h5" not in names(tmp_path)


PEAK = """
import resource, sys
from elmo_fast import cli
status = cli.main(sys.argv[1:])
print(status, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
"""


def peak_megabytes(*arguments):
    """Peak memory of the command in a process of its own."""
    done = subprocess.run([sys.executable, "-c", PEAK, "seqvec", *map(str, arguments), "--silent"], cwd=ROOT,
                          capture_output=True, text=True, check=True)
    status, peak = map(int, done.stdout.split())
    assert status == 0
    return peak


@pytest.mark.long
def test_a_thousand_proteins_in_bounded_memory(tmp_path):
    """Ten times as many proteins make ten times as large a file, and nothing else that grows."""
    generator = np.random.default_rng(0)
    model = write_model(tmp_path / "model", tiny(lstm__dim=32, lstm__projection_dim=24))
    lengths = [int(each) for each in generator.integers(30, 2001, 1000)]
    for count in (100, 1000):
        (tmp_path / f"{count}.fasta").write_text("".join(
            f">sp|Q{k:04}|NAME\n{''.join(generator.choice(list('ACDEFGHIKLMNPQRSTVWYXUBZO'), length))}\n"
            for k, length in enumerate(lengths[:count])))
    peaks = [peak_megabytes("-i", tmp_path / f"{count}.fasta", "-o", tmp_path / f"{count}.h5", "--model", model)
             for count in (100, 1000)]
    with h5py.File(tmp_path / "1000.h5") as file:
        assert {key: len(file[key]) for key in file} == {f"Q{k:04}": length for k, length in enumerate(lengths)}
    grown = sum(lengths[100:]) * 48 * 4 // 2**20
    assert grown > 150 and peaks[1] - peaks[0] < grown // 2, peaks
