import itertools

import numpy as np
import pytest
import torch

from elmo_fast import BiLm, ElmoEmbedder, Options, batch_to_ids, random_weights, remove_boundaries
from elmo_fast.testing import SAME_MODEL
from tests.support.models import SENTENCES, bilm, files, options

BACKENDS = ["reference", "torch", "auto"]


def embedder(**arguments):
    return ElmoEmbedder.from_bilm(bilm(**arguments))


@pytest.mark.parametrize("backend", BACKENDS)
def test_batch_equals_the_biLM(backend):
    ours, model = embedder(backend=backend), bilm()
    for _ in range(2):
        found = ours.embed_batch(SENTENCES)
        activations, mask = model(batch_to_ids(SENTENCES))
        inner = torch.stack([remove_boundaries(layer, mask)[0] for layer in activations], dim=1).detach().numpy()
        for one, other, sentence in zip(found, inner, SENTENCES):
            assert one.dtype == np.float32 and one.shape == (3, len(sentence), 22)
            np.testing.assert_allclose(one, other[:, : len(sentence)], atol=SAME_MODEL)


@pytest.mark.parametrize("backend", BACKENDS)
def test_padded_tensors(backend):
    embeddings, mask = embedder(backend=backend).batch_to_embeddings(SENTENCES)
    assert embeddings.shape == (6, 3, 11, 22) and mask.dtype == torch.int64
    assert mask.sum(1).tolist() == [len(sentence) for sentence in SENTENCES]
    assert not embeddings.transpose(1, 2)[mask == 0].any()
    for one, other in zip(embeddings.numpy(), embedder().embed_batch(SENTENCES)):
        np.testing.assert_allclose(one[:, : other.shape[1]], other, atol=SAME_MODEL)
    for dtype in (torch.float16, torch.bfloat16):
        assert ElmoEmbedder.from_bilm(bilm().to(dtype)).embed_sentence(["a"]).dtype == np.float32


@pytest.mark.parametrize("backend", BACKENDS)
def test_empty_sentences(backend):
    ours = embedder(backend=backend)
    first = ours.embed_batch([["a"], ["b"]])
    assert ours.embed_sentence([]).shape == (3, 0, 22)
    assert [each.shape for each in ours.embed_batch([[], []])] == [(3, 0, 22)] * 2
    assert [each.shape for each in ours.embed_batch([[], ["a"]])] == [(3, 0, 22), (3, 1, 22)]
    assert ours.embed_batch([]) == []
    assert first[0].shape == (3, 1, 22)


def test_a_lone_empty_sentence_leaves_the_states_alone():
    one, other = embedder(), embedder()
    for each in (one, other):
        each.embed_sentence(["first"])
    other.embed_sentence([])
    np.testing.assert_array_equal(one.embed_sentence(["again"]), other.embed_sentence(["again"]))
    other.embed_batch([[], []])
    assert abs(one.embed_sentence(["again"]) - other.embed_sentence(["again"])).max() > 1e-3


@pytest.mark.parametrize("state", ["carry", "zero", "warm"])
def test_stream_of_the_reference_equals_its_batches(state):  # test_stream has the other backends
    ours, other = (embedder(state=state, backend="reference") for _ in range(2))
    stream = list(ours.embed_sentences(iter(SENTENCES), batch_size=4))
    batches = other.embed_batch(SENTENCES[:4]) + other.embed_batch(SENTENCES[4:])
    assert len(stream) == len(SENTENCES)
    for one, two in zip(stream, batches):
        np.testing.assert_allclose(one, two, atol=SAME_MODEL)


def test_stream_reads_no_further_than_it_must():
    taken = []
    endless = (taken.append(number) or ["a"] for number in itertools.count())
    stream = embedder().embed_sentences(endless, batch_size=4)
    assert taken == []
    next(stream)
    assert len(taken) < 5000


@pytest.mark.parametrize("call, named", [
    (lambda e: e.embed_sentence("a string"), "sentence: expected a list of tokens"),
    (lambda e: e.embed_batch(["one", "two"]), r"batch\[0\]: expected a list of tokens"),
    (lambda e: e.embed_batch("text"), "batch: expected a list"),
    (lambda e: e.embed_batch([["a", None]]), "token: expected a string, got NoneType"),
    (lambda e: e.embed_batch([["a", 3]]), "token: expected a string, got int"),
    (lambda e: list(e.embed_sentences("text")), "sentences: expected a list"),
    (lambda e: e.embed_sentences([["a"]], batch_size=0), "batch_size: expected an integer of at least 1, got 0"),
    (lambda e: e.embed_sentences([["a"]], batch_size=2.0), "batch_size: expected an integer of at least 1, got 2.0"),
])
def test_refuses(call, named):
    with pytest.raises(ValueError, match=f"^{named}"):
        call(embedder())


def test_device_that_is_not_there():
    with pytest.raises(ValueError, match="cuda_device: expected -1"):
        ElmoEmbedder("options.json", "weights.hdf5", cuda_device=99)
    with pytest.raises(ValueError, match="cuda_device: expected -1 for the CPU"):
        ElmoEmbedder("options.json", "weights.hdf5", cuda_device=-2)


def test_word_id_models_say_what_they_need():
    of = Options.from_dict({"lstm": {"dim": 8, "projection_dim": 4, "n_layers": 1, "use_skip_connections": True},
                            "n_tokens_vocab": 9})
    with pytest.raises(ValueError, match="tokens: expected word ids"):
        ElmoEmbedder.from_bilm(BiLm(of, random_weights(of))).embed_sentence(["a"])


def test_without_fp32_weights(tmp_path):
    model = files(tmp_path, options())
    whole, packed = (ElmoEmbedder(*model, backend="native", keep_fp32=keep) for keep in (True, False))
    for one, other in zip(packed.embed_batch(SENTENCES), whole.embed_batch(SENTENCES)):
        np.testing.assert_array_equal(one, other)
