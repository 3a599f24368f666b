"""Embeddings that TensorFlow wrote: 30 sentences in three streams, in stateful batches of three."""

import json
from types import SimpleNamespace

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
BACKENDS = ["reference", "torch", "auto"]


@pytest.fixture(params=sorted(SENTENCES))
def fixture(shared, request):
    """`files` of a model, its `folder`, and `batches` of sentences with their layers [3, tokens, 32]."""
    folder, name = shared / "fixtures" / request.param, request.param
    streams = json.loads((folder / SENTENCES[name]).read_text(encoding="utf-8"))
    with np.load(shared / "fixtures" / "all_layers.npz") as stored:
        batches = [([stream[k].split() for stream in streams], [stored[f"{name}/{k}/{stream}"] for stream in range(3)])
                   for k in range(10)]
    return SimpleNamespace(files=(str(folder / "options.json"), str(folder / "lm_weights.hdf5")), folder=folder,
                           batches=batches)


def assert_close(found, expected):
    assert found.shape == expected.shape
    assert np.abs(np.asarray(found) - expected).max() < AGAINST_TENSORFLOW


def assert_embeds(embedder, fixture):
    for batch, expected in fixture.batches:
        for found, one in zip(embedder.embed_batch(batch), expected, strict=True):
            assert_close(found, one)


@pytest.mark.parametrize("backend, boundaries", [*((backend, "add") for backend in BACKENDS), ("auto", "present")])
def test_bilm(fixture, backend, boundaries):
    bilm = BiLm.from_files(*fixture.files, backend=backend)
    for batch, expected in fixture.batches:
        ids = batch_to_ids(batch if boundaries == "add" else [["<S>", *sentence, "</S>"] for sentence in batch])
        activations, mask = bilm(ids, boundaries)
        assert mask.shape[1] == max(map(len, batch)) + 2
        inner = torch.stack([remove_boundaries(layer, mask)[0] for layer in activations], dim=1).detach()
        for found, one, sentence in zip(inner, expected, batch, strict=True):
            assert_close(found[:, : len(sentence)], one)


@pytest.mark.parametrize("backend", BACKENDS)
def test_elmo_picks_each_layer(fixture, backend):
    for layer in range(3):
        picked = [-9e10 if number != layer else 1 for number in range(3)]
        elmo = Elmo(*fixture.files, 1, dropout=0, scalar_mix_parameters=picked, backend=backend)
        for batch, expected in fixture.batches:
            output = elmo(batch_to_ids(batch))
            assert output["mask"].sum(1).tolist() == [len(sentence) for sentence in batch]
            for found, one, sentence in zip(output["elmo_representations"][0], expected, batch, strict=True):
                assert_close(found[: len(sentence)].detach(), one[layer])


@pytest.mark.parametrize("backend", [*BACKENDS, "command"])
def test_embedder_and_the_shipped_top_layer(fixture, backend, tmp_path):
    texts = [sentence for batch, _ in fixture.batches for sentence in batch]
    if backend == "command":
        text, output = tmp_path / "text.txt", tmp_path / "out.hdf5"
        text.write_text("".join(" ".join(words) + "\n" for words in texts), encoding="utf-8")
        assert main(["embed", str(text), str(output), "--all", "--options-file", fixture.files[0],
                     "--weight-file", fixture.files[1], "--batch-size", "3"]) == 0
        with h5py.File(output) as file:
            found = [file[str(number)][...] for number in range(30)]
    else:
        found = list(ElmoEmbedder(*fixture.files, backend=backend).embed_sentences(iter(texts), batch_size=3))
    for number, one in enumerate(found):
        batch, stream = divmod(number, 3)
        assert_close(one, fixture.batches[batch][1][stream])
        with h5py.File(fixture.folder / f"lm_embeddings_{stream}.hdf5") as file:
            assert_close(one[-1], np.concatenate(list(file[str(batch)]), axis=-1))
    assert len(found) == 30


@pytest.mark.parametrize("words", ["vocab_test.txt", "of the text", "few"])
def test_a_token_table(fixture, words):
    """Of a vocabulary file, of every word, and of so few that most are encoded."""
    vocabulary = {"vocab_test.txt": fixture.folder / "vocab_test.txt", "few": ["the"], "of the text": sorted(
        {word for batch, _ in fixture.batches for sentence in batch for word in sentence})}[words]
    bilm = BiLm.from_files(*fixture.files)
    bilm.token_table = build_token_table(bilm, vocabulary)
    assert_embeds(ElmoEmbedder.from_bilm(bilm), fixture)


@pytest.mark.parametrize("fixture", ["allennlp"], indirect=True)
def test_the_token_embeddings_that_bilm_tf_wrote(fixture):
    embeddings, vocabulary = (fixture.folder / name for name in ("elmo_token_embeddings.hdf5", "vocab_test.txt"))
    theirs = TokenTable.open(embeddings, vocabulary)
    vectors = theirs.vectors(np.arange(len(theirs)))
    for backend in BACKENDS:
        bilm = BiLm.from_files(*fixture.files, token_table=theirs, backend=backend)
        ours = build_token_table(bilm, vocabulary)
        assert theirs.words == ours.words and theirs.fingerprint is None
        assert_close(ours.vectors(np.arange(len(ours))), vectors.numpy())
    assert_embeds(ElmoEmbedder.from_bilm(bilm), fixture)
    bilm = BiLm.from_files(*fixture.files, token_table=embeddings)
    ids = torch.from_numpy(theirs.ids(["<S>", *theirs.words[5:9], "</S>"]))[None]
    plain = BiLm.from_files(*fixture.files)(batch_to_ids([theirs.words[5:9]]))
    for found, one in zip(bilm(ids, boundaries="present").activations, plain.activations):
        assert_close(found.detach(), one.detach().numpy())
    with pytest.raises(ConfigurationError, match="expected the vectors of this model, got others"):
        bilm.token_table = TokenTable.open(embeddings, [*theirs.words[1:], theirs.words[0]])
