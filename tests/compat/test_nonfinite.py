"""NaN and infinities in the weights: refused by every class that loads a model, and loaded with `allow_nonfinite`."""

import gzip

import numpy as np
import pytest
import torch

from elmo_fast import ConfigurationError, write_weights
from elmo_fast.compat import seqvec
from elmo_fast.compat.allennlp.commands.elmo import ElmoEmbedder
from elmo_fast.compat.allennlp.modules.elmo import Elmo, _ElmoCharacterEncoder
from elmo_fast.compat.allennlp.modules.token_embedders import ElmoTokenEmbedder
from elmo_fast.compat.allennlp.tools.create_elmo_embeddings_from_vocab import create_elmo_embeddings_from_vocab
from elmo_fast.compat.bilm import BidirectionalLanguageModel, dump_bilm_embeddings, dump_token_embeddings
from elmo_fast.compat.simple_elmo import ElmoModel
from elmo_fast.nn.batching import batch_to_ids
from elmo_fast.nn.softmax_head import SoftmaxHead
from tests.support.files import paths, read_hdf5, spoil, tiny, write_model
from tests.support.softmax import WORDS, write_softmax_model

IDS = batch_to_ids([["the", "cat"]])
SENTENCE = ["the", "cat"]


@pytest.fixture
def spoiled(tmp_path):
    folder = write_softmax_model(tmp_path / "model", tiny(lstm__dim=12))
    spoil(folder / "weights.hdf5", "CNN/b_cnn_0")
    (tmp_path / "text.txt").write_text("the cat\n")
    (tmp_path / "words.txt").write_text("@@UNKNOWN@@\nthe\n")
    return folder


def simple_elmo(folder, out, **more):
    model = ElmoModel()
    model.load(folder, **more)
    return model.get_elmo_vectors([SENTENCE])


def tool(folder, out, **more):
    vocabulary = folder.parent / "words.txt"
    create_elmo_embeddings_from_vocab(vocabulary, *paths(folder), out, **more)
    with gzip.open(out / "elmo_embeddings.txt.gz", "rt") as file:
        return np.array([line.split()[1:] for line in file], dtype=float)


def dumped_layers(folder, out, **more):
    dump_bilm_embeddings(folder / "vocab.txt", folder.parent / "text.txt", *paths(folder), out, progress=False, **more)
    return read_hdf5(out)["0"]


def dumped_tokens(folder, out, **more):
    dump_token_embeddings(folder / "vocab.txt", *paths(folder), out, progress=False, **more)
    return read_hdf5(out)["embedding"]


@pytest.mark.parametrize("name, read", {
    "BidirectionalLanguageModel": lambda folder, out, **more: BidirectionalLanguageModel(*paths(folder), **more)(
        IDS[:, [0, 0, 1, 1]])["lm_embeddings"],
    "dump_bilm_embeddings": dumped_layers,
    "dump_token_embeddings": dumped_tokens, "create_elmo_embeddings_from_vocab": tool,
    "character encoder": lambda folder, out, **more: _ElmoCharacterEncoder(*paths(folder), **more)(
        IDS)["token_embedding"],
    "simple_elmo": simple_elmo,
    "seqvec": lambda folder, out, **more: seqvec.get_elmo_model(folder, True, **more).embed_sentence(SENTENCE),
    "ElmoEmbedder": lambda folder, out, **more: ElmoEmbedder(*paths(folder), **more).embed_sentence(SENTENCE),
    "Elmo": lambda folder, out, **more: Elmo(*paths(folder), 1, **more)(IDS)["elmo_representations"][0],
    "Elmo.from_params": lambda folder, out, **more: Elmo.from_params({
        "options_file": paths(folder)[0], "weight_file": paths(folder)[1], "num_output_representations": 1, **more})(
            IDS)["elmo_representations"][0],
    "ElmoTokenEmbedder.from_params": lambda folder, out, **more: ElmoTokenEmbedder.from_params(None, {
        "options_file": paths(folder)[0], "weight_file": paths(folder)[1], **more})(IDS),
}.items())
def test_weights(spoiled, tmp_path, name, read):
    with pytest.raises(ConfigurationError, match="expected finite float32 numbers, found 1 .* allow_nonfinite=True"):
        read(spoiled, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    result = read(spoiled, tmp_path / "out", allow_nonfinite=True)
    assert np.isnan(np.asarray(torch.as_tensor(result).detach())).any()


def test_token_vectors_of_bilm_tf(tmp_path):
    content = {key: value for key, value in tiny().items() if key != "char_cnn"}
    folder = write_model(tmp_path / "model", {**content, "n_tokens_vocab": 4})
    vectors = tmp_path / "vectors.hdf5"
    values = np.zeros((4, tiny()["lstm"]["projection_dim"]), np.float32)
    values[2, 1] = np.inf
    write_weights(vectors, {"embedding": values})
    arguments = (*paths(folder), False, vectors)
    with pytest.raises(ConfigurationError, match=f"^embedding_weight_file {vectors}: expected finite"):
        BidirectionalLanguageModel(*arguments)
    model = BidirectionalLanguageModel(*arguments, allow_nonfinite=True)
    assert np.isinf(model.token_embeddings(np.array([[3]])).numpy()).any()


def test_a_softmax(tmp_path):
    folder = write_softmax_model(tmp_path / "model", tiny(lstm__dim=12))
    spoil(folder / "softmax.hdf5", "softmax/b")
    model = ElmoModel()
    with pytest.raises(ConfigurationError, match="softmax/b: expected finite float32 numbers, found 1 .* loads them$"):
        model.load(folder, full=True)
    model.load(folder, full=True, allow_nonfinite=True)
    head = SoftmaxHead.from_files(model._embedder.elmo_bilm, folder / "softmax.hdf5", folder / "vocab.txt", True)
    assert np.isnan(head.score([[WORDS[3]]])[0].forward).any()
