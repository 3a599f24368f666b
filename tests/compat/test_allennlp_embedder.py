"""AllenNLP's `ElmoEmbedder`, and what flair's and bio_embeddings' classes do with one."""

import copy
import inspect
import io
import pickle

import numpy as np
import pytest
import torch

import elmo_fast
from elmo_fast.compat import allennlp
from elmo_fast.compat.allennlp import ElmoEmbedder, ELMoTokenCharactersIndexer, _ElmoBiLm, batch_to_ids
from elmo_fast.testing import SAME_MODEL
from tests.support.files import paths, tiny, write_model
from tests.support.models import SENTENCES

PROTEINS = ["SEQWENCE", "MKTAYIAKQRQISFVKSHFSRQ", "G"]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return paths(write_model(tmp_path_factory.mktemp("model") / "tiny", tiny(lstm__dim=12)))


def test_is_the_embedder_over_allennlps_bilm(files):
    ours, other = ElmoEmbedder(*files), elmo_fast.ElmoEmbedder(*files)
    assert type(ours.elmo_bilm) is _ElmoBiLm and isinstance(ours.indexer, ELMoTokenCharactersIndexer)
    for one, two in zip(ours.embed_batch(SENTENCES), other.embed_batch(SENTENCES)):
        np.testing.assert_array_equal(one, two)
    for one, two in zip(ours.embed_sentences(iter(SENTENCES), 4), other.embed_sentences(iter(SENTENCES), 4)):
        np.testing.assert_array_equal(one, two)
    for backend in ("reference", "auto"):
        embeddings, mask = ElmoEmbedder(*files, backend=backend).batch_to_embeddings(SENTENCES)
        assert embeddings.shape == (6, 3, 11, 8) and mask.dtype == torch.int64
        for one, two in zip(embeddings, elmo_fast.ElmoEmbedder(*files).embed_batch(SENTENCES)):
            np.testing.assert_allclose(one[:, : two.shape[1]], two, atol=SAME_MODEL)
    output = ours.elmo_bilm(batch_to_ids(SENTENCES))
    assert output["mask"].dtype == torch.int64 and len(output["activations"]) == 3


def test_arguments_and_defaults():
    arguments = inspect.signature(ElmoEmbedder).parameters
    assert list(arguments)[:3] == ["options_file", "weight_file", "cuda_device"]
    assert arguments["options_file"].default == allennlp.commands.elmo.DEFAULT_OPTIONS_FILE == (
        "https://allennlp.s3.amazonaws.com/models/elmo/2x4096_512_2048cnn_2xhighway/"
        "elmo_2x4096_512_2048cnn_2xhighway_options.json")
    assert arguments["weight_file"].default == allennlp.DEFAULT_WEIGHT_FILE == (
        "https://allennlp.s3.amazonaws.com/models/elmo/2x4096_512_2048cnn_2xhighway/"
        "elmo_2x4096_512_2048cnn_2xhighway_weights.hdf5")
    assert arguments["cuda_device"].default == -1 and allennlp.DEFAULT_BATCH_SIZE == 64


def test_file_of_sentences(files, tmp_path):
    import h5py

    ElmoEmbedder(*files).embed_file(io.StringIO("a b\nc\n"), tmp_path / "out.hdf5", "average", 1, progress=False)
    with h5py.File(tmp_path / "out.hdf5") as file:
        assert file["0"].shape == (2, 8) and file["1"].shape == (1, 8) and "sentence_to_index" in file


class Flair:
    """What flair's `ELMoEmbeddings` (legacy.py) does with AllenNLP: its constructor, its embedding, its unpickling."""

    def __init__(self, options_file, weight_file):
        self.ee = allennlp.commands.elmo.ElmoEmbedder(options_file=options_file, weight_file=weight_file,
                                                      cuda_device=-1)
        self.length = len(torch.cat(self.embed([["hello"]])[0][0]))

    def embed(self, sentences):
        embeddings = self.ee.embed_batch(sentences)
        return [[[torch.FloatTensor(embeddings[i][layer, token, :]) for layer in range(3)]
                 for token in range(len(sentence))] for i, sentence in enumerate(sentences)]

    def __setstate__(self, state):
        self.__dict__ = state
        self.ee.cuda_device = -1
        self.ee.elmo_bilm.to(device=torch.device("cpu"))
        self.ee.elmo_bilm._elmo_lstm._states = tuple(
            [each.to(torch.device("cpu")) for each in self.ee.elmo_bilm._elmo_lstm._states])


@pytest.mark.parametrize("copied", [lambda each: pickle.loads(pickle.dumps(each)), copy.deepcopy])
def test_flair(files, copied):
    ours = Flair(*map(str, files))
    assert ours.length == 3 * 8
    other = copied(ours)
    expected = ElmoEmbedder(*files)
    expected.embed_batch([["hello"]])
    for sentences in ([["Hello", "world"]], [["One"], ["more", "!"]]):
        found, again, plain = ours.embed(sentences), other.embed(sentences), expected.embed_batch(sentences)
        for one, two, three in zip(found, again, plain):
            for token in range(len(one)):
                assert torch.equal(torch.stack(one[token]), torch.stack(two[token]))
                np.testing.assert_array_equal(torch.stack(one[token]), three[:, token])


def test_saved_and_loaded_with_torch(files):
    ours = ElmoEmbedder(*files)
    ours.embed_sentence(["state"])
    buffer = io.BytesIO()
    torch.save(ours, buffer)
    buffer.seek(0)
    other = torch.load(buffer, weights_only=False)
    np.testing.assert_array_equal(ours.embed_sentence(["a"]), other.embed_sentence(["a"]))


class SeqVec:
    """What bio_embeddings' `SeqVecEmbedder` does with AllenNLP: warm-up, single sequences and batches of letters."""

    def __init__(self, weights_file, options_file, warmup_rounds=4):
        self._model = ElmoEmbedder(weight_file=weights_file, options_file=options_file, cuda_device=-1)
        for _ in range(warmup_rounds):
            self.embed("MGSSHHHHHHSSGLVPRGSH")

    def embed(self, sequence):
        return self._model.embed_sentence(list(sequence))

    def embed_batch(self, batch):
        yield from self._model.embed_batch([list(sequence) for sequence in batch])


def test_bio_embeddings(files):
    ours = SeqVec(str(files[1]), str(files[0]))
    states = [each.clone() for each in ours._model.elmo_bilm._elmo_lstm._states]
    found = list(ours.embed_batch(PROTEINS))
    assert [each.shape for each in found] == [(3, len(protein), 8) for protein in PROTEINS]
    assert found[0].sum(0).mean(0).shape == (8,) and found[0].dtype == np.float32
    plain = elmo_fast.BiLm.from_files(*files)
    plain._elmo_lstm._states = tuple(states)
    layers, _ = plain(batch_to_ids([list(protein) for protein in PROTEINS]))
    for row, (one, protein) in enumerate(zip(found, PROTEINS)):
        expected = torch.stack(layers)[:, row, 1 : len(protein) + 1].detach().numpy()
        np.testing.assert_allclose(one, expected, atol=SAME_MODEL)
    assert list(ours.embed_batch([])) == []  # embed_many ends on an empty batch
    assert np.abs(ours.embed("G") - SeqVec(*map(str, files[::-1]), warmup_rounds=0).embed("G")).max() > 1e-6
