"""AllenNLP's `ElmoEmbedder`, and what flair's class does with one."""

import copy
import io
import pickle

import numpy as np
import pytest
import torch

import elmo_fast
from elmo_fast.compat import allennlp
from elmo_fast.compat.allennlp import ElmoEmbedder, ELMoTokenCharactersIndexer, _ElmoBiLm
from elmo_fast.testing.tolerances import SAME_MODEL
from tests.support.models import SENTENCES


@pytest.mark.parametrize("backend", ["reference", "auto"])
def test_is_the_embedder_over_allennlps_bilm(files, backend):
    ours, other = (module.ElmoEmbedder(*files, backend=backend) for module in (allennlp, elmo_fast))
    assert type(ours.elmo_bilm) is _ElmoBiLm and isinstance(ours.indexer, ELMoTokenCharactersIndexer)
    for call in (lambda each: each.embed_batch(SENTENCES), lambda each: each.embed_sentences(iter(SENTENCES), 4)):
        for one, two in zip(call(ours), call(other), strict=True):
            np.testing.assert_array_equal(one, two)
    embeddings, mask = ElmoEmbedder(*files, backend=backend).batch_to_embeddings(SENTENCES)
    assert embeddings.shape == (6, 3, 11, 22) and mask.dtype == torch.int64
    for one, two in zip(embeddings, elmo_fast.ElmoEmbedder(*files).embed_batch(SENTENCES)):
        np.testing.assert_allclose(one[:, : two.shape[1]], two, atol=SAME_MODEL)


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


def saved(model):
    buffer = io.BytesIO()
    torch.save(model, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=False)


@pytest.mark.parametrize("copied", [lambda model: pickle.loads(pickle.dumps(model)), copy.deepcopy, saved])
def test_flair(files, copied):
    ours = Flair(*files)
    assert ours.length == 3 * 22
    other, expected = copied(ours), ElmoEmbedder(*files)
    expected.embed_batch([["hello"]])
    for sentences in ([["Hello", "world"]], [["One"], ["more", "!"]]):
        found, again, plain = ours.embed(sentences), other.embed(sentences), expected.embed_batch(sentences)
        for one, two, three in zip(found, again, plain, strict=True):
            for token in range(len(one)):
                assert torch.equal(torch.stack(one[token]), torch.stack(two[token]))
                np.testing.assert_array_equal(torch.stack(one[token]), three[:, token])
