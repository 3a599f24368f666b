"""Embeddings that TensorFlow wrote: 30 sentences in three streams, in stateful batches of three."""

import json

import h5py
import numpy as np
import pytest
import torch

from elmo_fast import (
    BiLm,
    ConfigurationError,
    Elmo,
    ElmoEmbedder,
    TokenTable,
    batch_to_ids,
    build_token_table,
    remove_boundaries,
)
from elmo_fast.cli import main
from elmo_fast.testing import AGAINST_TENSORFLOW

SENTENCES = {"allennlp": "sentences.json", "bilm-tf": "lm_embeddings_sentences.json"}
MODELS = sorted(SENTENCES)
BACKENDS = ["reference", "torch", "auto"]


def batches(folder, model):
    streams = json.loads((folder / SENTENCES[model]).read_text(encoding="utf-8"))
    return [[stream[number].split() for stream in streams] for number in range(10)]


@pytest.fixture
def fixture(shared, request):
    folder = shared / "fixtures" / request.param
    with np.load(shared / "fixtures" / "all_layers.npz") as stored:
        layers = [[stored[f"{request.param}/{batch}/{stream}"] for stream in range(3)] for batch in range(10)]
    return str(folder / "options.json"), str(folder / "lm_weights.hdf5"), batches(folder, request.param), layers, folder


def assert_close(found, expected):
    assert found.shape == expected.shape
    assert np.abs(np.asarray(found) - expected).max() < AGAINST_TENSORFLOW


@pytest.mark.parametrize("fixture", MODELS, indirect=True)
@pytest.mark.parametrize("backend", BACKENDS)
def test_bilm(fixture, backend):
    options, weights, texts, layers, _ = fixture
    bilm = BiLm.from_files(options, weights, backend=backend)
    for batch, expected in zip(texts, layers):
        activations, mask = bilm(batch_to_ids(batch))
        inner = torch.stack([remove_boundaries(layer, mask)[0] for layer in activations], dim=1).detach()
        for found, one, sentence in zip(inner, expected, batch):
            assert_close(found[:, : len(sentence)], one)


@pytest.mark.parametrize("fixture", MODELS, indirect=True)
def test_bilm_on_ids_that_carry_their_boundaries(fixture):
    options, weights, texts, layers, _ = fixture
    bilm = BiLm.from_files(options, weights)
    for batch, expected in zip(texts, layers):
        ids = batch_to_ids([["<S>", *sentence, "</S>"] for sentence in batch])
        activations, mask = bilm(ids, boundaries="present")
        assert mask.shape == ids.shape[:2]
        for row, (one, sentence) in enumerate(zip(expected, batch)):
            assert_close(torch.stack(activations)[:, row, 1 : len(sentence) + 1].detach(), one)


@pytest.mark.parametrize("fixture", MODELS, indirect=True)
@pytest.mark.parametrize("backend", BACKENDS)
def test_elmo_picks_each_layer(fixture, backend):
    options, weights, texts, layers, _ = fixture
    for layer in range(3):
        picked = [-9e10 if number != layer else 1 for number in range(3)]
        elmo = Elmo(options, weights, 1, dropout=0, scalar_mix_parameters=picked, backend=backend)
        for batch, expected in zip(texts, layers):
            output = elmo(batch_to_ids(batch))
            assert output["mask"].sum(1).tolist() == [len(sentence) for sentence in batch]
            for found, one, sentence in zip(output["elmo_representations"][0], expected, batch):
                assert_close(found[: len(sentence)].detach(), one[layer])


@pytest.mark.parametrize("fixture", MODELS, indirect=True)
@pytest.mark.parametrize("backend", BACKENDS)
def test_embedder_and_the_shipped_top_layer(fixture, backend):
    options, weights, texts, layers, folder = fixture
    embedder = ElmoEmbedder(options, weights, backend=backend)
    flat = (sentence for batch in texts for sentence in batch)
    found = list(embedder.embed_sentences(flat, batch_size=3))
    assert len(found) == 30
    for number, one in enumerate(found):
        batch, stream = divmod(number, 3)
        assert_close(one, layers[batch][stream])
        with h5py.File(folder / f"lm_embeddings_{stream}.hdf5") as file:
            both_directions = np.concatenate(list(file[str(batch)]), axis=-1)
        assert_close(one[-1], both_directions)


@pytest.mark.parametrize("fixture", MODELS, indirect=True)
def test_command(fixture, tmp_path):
    options, weights, texts, layers, _ = fixture
    text, output = tmp_path / "text.txt", tmp_path / "out.hdf5"
    text.write_text("".join(" ".join(sentence) + "\n" for batch in texts for sentence in batch), encoding="utf-8")
    assert main(["embed", str(text), str(output), "--all", "--options-file", options, "--weight-file", weights,
                 "--batch-size", "3"]) == 0
    with h5py.File(output) as file:
        for number in range(30):
            assert_close(file[str(number)][...], layers[number // 3][number % 3])


def test_token_vectors_of_a_vocabulary(shared):
    folder = shared / "fixtures" / "allennlp"
    words = (folder / "vocab_test.txt").read_text(encoding="utf-8").strip().split("\n")
    with h5py.File(folder / "elmo_token_embeddings.hdf5") as file:
        expected = file["embedding"][...]
    assert len(words) == len(expected)
    for backend in BACKENDS:
        source = BiLm.from_files(folder / "options.json", folder / "lm_weights.hdf5").token_source
        found = source(source.token_ids(words), backend).detach().numpy()
        assert np.abs(found - expected).max() < AGAINST_TENSORFLOW


@pytest.mark.parametrize("fixture", MODELS, indirect=True)
@pytest.mark.parametrize("words", ["vocab_test.txt", "of the text", "few"])
def test_a_token_table(fixture, words):
    """Of a vocabulary file, of every word, and of so few that most are encoded."""
    options, weights, texts, layers, folder = fixture
    vocabulary = {"vocab_test.txt": folder / "vocab_test.txt", "few": ["the"],
                  "of the text": sorted({word for batch in texts for sentence in batch for word in sentence})}[words]
    bilm = BiLm.from_files(options, weights)
    bilm.token_table = build_token_table(bilm, vocabulary)
    embedder = ElmoEmbedder.from_bilm(bilm)
    for batch, expected in zip(texts, layers):
        for found, one in zip(embedder.embed_batch(batch), expected):
            assert_close(found, one)


@pytest.mark.parametrize("fixture", ["allennlp"], indirect=True)
def test_the_token_embeddings_that_bilm_tf_wrote(fixture):
    options, weights, texts, layers, folder = fixture
    theirs = TokenTable.open(folder / "elmo_token_embeddings.hdf5", folder / "vocab_test.txt")
    bilm = BiLm.from_files(options, weights, token_table=theirs)
    ours = build_token_table(bilm, folder / "vocab_test.txt")
    assert theirs.words == ours.words and theirs.fingerprint is None
    assert_close(theirs.vectors(np.arange(len(theirs))), ours.vectors(np.arange(len(ours))).numpy())
    embedder = ElmoEmbedder.from_bilm(bilm)
    for batch, expected in zip(texts, layers):
        for found, one in zip(embedder.embed_batch(batch), expected):
            assert_close(found, one)
    bare = TokenTable.open(folder / "elmo_token_embeddings.hdf5")
    bilm = BiLm.from_files(options, weights, token_table=bare)
    ids = torch.from_numpy(theirs.ids(["<S>", *theirs.words[5:9], "</S>"]))[None]
    plain = BiLm.from_files(options, weights)(batch_to_ids([theirs.words[5:9]]))
    for found, one in zip(bilm(ids, boundaries="present").activations, plain.activations):
        assert_close(found.detach(), one.detach().numpy())
    with pytest.raises(ConfigurationError, match="expected the vectors of this model, got others"):
        bilm.token_table = TokenTable.open(folder / "elmo_token_embeddings.hdf5", [*theirs.words[1:], theirs.words[0]])
