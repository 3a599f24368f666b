"""A model with a token table gives what it gives without one, for every word, known or not, by every way in."""

import copy
import pickle

import numpy as np
import pytest
import torch

from elmo_fast import (
    BiLm,
    ConfigurationError,
    Elmo,
    ElmoEmbedder,
    Options,
    TokenTable,
    batch_to_ids,
    build_token_table,
    random_weights,
)
from elmo_fast.model.token_table import lookup
from elmo_fast.testing import SAME_MODEL
from tests.support.files import tiny, write_model
from tests.support.models import SENTENCES, SHAPES, bilm, options

KNOWN = sorted({word for sentence in SENTENCES[:3] for word in sentence})
BACKENDS = ["reference", "torch", "native"]


def pair(of=None, words=KNOWN, backend="native", **arguments):
    """Two models of the same weights, the second with a table."""
    plain, tabled = bilm(of, backend=backend), bilm(of, backend=backend)
    tabled.token_table = build_token_table(plain, ["<S>", "</S>", "<UNK>", *words], **arguments)
    return plain, tabled


def assert_same(found, expected, backend):
    assert len(found) == len(expected)
    for one, other in zip(found, expected):
        assert one.shape == other.shape and one.dtype == other.dtype
        if backend == "native":
            assert torch.equal(torch.as_tensor(one), torch.as_tensor(other))
        else:
            torch.testing.assert_close(torch.as_tensor(one), torch.as_tensor(other), atol=1e-6, rtol=0)


@pytest.mark.parametrize("shape, backend", [
    ("two layers", "reference"), ("short tokens", "reference"), ("no projection", "torch"),
    ("clips that fire", "torch"),
    ("no projection", "native"), ("clips that fire", "native"), ("short tokens", "native"), ("no highway", "native")])
def test_characters_and_strings(shape, backend):
    plain, tabled = pair(SHAPES[shape], backend=backend)
    ids = batch_to_ids(SENTENCES, *plain.token_source.row_shape)
    for _ in range(2):  # states are carried
        one, other = (model(ids) for model in (tabled, plain))
        assert torch.equal(one.mask, other.mask)
        with torch.no_grad():
            assert_same(one.activations, other.activations, backend)
            assert_same(tabled.embed_tokens(SENTENCES)[0], plain.embed_tokens(SENTENCES)[0], backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_token_ids(backend):
    plain, tabled = pair(backend=backend)
    known = [sentence for sentence in SENTENCES if all(word in KNOWN for word in sentence)]
    ids = torch.zeros(len(known), max(map(len, known)), dtype=torch.int64)
    for row, sentence in zip(ids, known):
        row[: len(sentence)] = torch.from_numpy(tabled.token_table.ids(sentence))
    one, other = tabled(ids), plain(batch_to_ids(known))
    assert torch.equal(one.mask, other.mask)
    assert_same(one.activations, other.activations, backend)
    for model in (tabled, plain):
        model.reset_states()
    sentence = [known[1][0]]
    bounded = torch.from_numpy(tabled.token_table.ids(["<S>", *sentence, "</S>"]))[None]
    assert_same(tabled(bounded, boundaries="present").activations, plain(batch_to_ids([sentence])).activations, backend)
    with pytest.raises(ValueError, match=f"ids: expected word ids from 0 to {len(KNOWN) + 3}, got 0 to 99"):
        tabled(torch.tensor([[99, 0]]))


@pytest.mark.parametrize("state, backend", [("zero", "reference"), ("warm", "torch"), ("carry", "torch"),
                                            ("carry", "native"), ("zero", "native"), ("warm", "native")])
def test_streams_and_batches(backend, state):
    plain, tabled = pair(backend=backend)
    one, other = (ElmoEmbedder.from_bilm(model) for model in (tabled, plain))
    plain.state = tabled.state = state
    sentences = SENTENCES * 3 + [["never", "seen"], ["The", "never"]]
    assert_same(list(one.embed_sentences(sentences, 4)), list(other.embed_sentences(sentences, 4)), backend)
    assert_same(one.embed_batch(sentences), other.embed_batch(sentences), backend)


def test_the_first_layer_is_tabled_for_small_vocabularies(monkeypatch):
    plain, tabled = pair(words=KNOWN)
    sentences = [sentence for sentence in SENTENCES if all(word in KNOWN for word in sentence)]
    used = []
    inner = lookup.TableLookup.input_projections
    monkeypatch.setattr(lookup.TableLookup, "input_projections",
                        lambda *arguments: used.append(inner(*arguments)) or used[-1])
    with torch.no_grad():
        assert_same(tabled.embed_tokens(sentences)[0], plain.embed_tokens(sentences)[0], "native")
        assert used[-1].table.shape == (len(KNOWN) + 3, 8 * 37)
        tabled.embed_tokens([["unknown", "The"]])
        assert used[-1] is None
        plain.embed_tokens([["unknown", "The"]])
        stream, batches = (ElmoEmbedder.from_bilm(model) for model in (tabled, plain))
        assert_same(list(stream.embed_sentences(sentences, 2)), list(batches.embed_sentences(sentences, 2)), "native")
        assert used[-1] is not None
        tabled._elmo_lstm.W_0_0_0[0, 0] += 1  # a fine-tuned LSTM: the products are made again
        plain._elmo_lstm.W_0_0_0[0, 0] += 1
        assert_same(tabled.embed_tokens(sentences)[0], plain.embed_tokens(sentences)[0], "native")
    monkeypatch.setattr(lookup, "PROJECTION_BYTES", 8 * 37 * 4)
    with torch.no_grad():
        tabled.embed_tokens(sentences)
    assert used[-1] is None


def test_unknown_words_are_encoded_once_and_may_join():
    plain, tabled = pair(grow=2)
    calls = []
    encode = tabled.token_source.forward
    tabled.token_source.forward = lambda ids, backend: calls.append(len(ids)) or encode(ids, backend)
    text = [["The", "new", "new", "word"], ["new", "third"]]
    with torch.no_grad():
        assert_same(tabled.embed_tokens(text)[0], plain.embed_tokens(text)[0], "native")
        assert calls == [3] and tabled.token_table.words[-2:] == ["new", "word"]
        assert_same(tabled.embed_tokens(text)[0], plain.embed_tokens(text)[0], "native")
        assert calls == [3, 1]
    ids = batch_to_ids(text)
    assert_same(tabled(ids).activations, plain(ids).activations, "native")
    assert calls == [3, 1, 1]
    _, other = pair(grow=True)
    other(batch_to_ids([["é" * 30, "x" + "é" * 30, "new", "new"]]))
    assert set(other.token_table.words[len(KNOWN) + 3 :]) == {"é" * 24, "new"}  # a word cut inside a letter has no name


def test_unknown_words_may_be_refused_or_stand_for_unk():
    plain, tabled = pair(unknown="error")
    with pytest.raises(ValueError, match="token table: expected words of the table .* got 'no', 'nor'"):
        tabled.embed_tokens([["The", "no"], ["nor"]])
    with pytest.raises(ValueError, match="token table: expected words of the table .* got 'no'"):
        tabled(batch_to_ids([["The", "no"]]))
    tabled.token_table.unknown = "unk"
    with torch.no_grad():
        assert_same(tabled.embed_tokens([["The", "no"]])[0], plain.embed_tokens([["The", "<UNK>"]])[0], "native")
    assert_same(tabled(batch_to_ids([["The", "no"]])).activations, plain(batch_to_ids([["The", "<UNK>"]])).activations,
                "native")


def test_16_bits_are_near():
    plain, tabled = pair(storage="float16")
    with torch.no_grad():
        one, other = tabled.embed_tokens(SENTENCES[:3])[0], plain.embed_tokens(SENTENCES[:3])[0]
    assert tabled.token_table.storage == "float16"
    for found, expected in zip(one, other):
        assert 0 < (found - expected).abs().max() < 5e-3 * expected.abs().max()


def test_a_table_of_another_model_is_refused(tmp_path):
    one, other = bilm(), bilm(seed=1)
    made = build_token_table(one, KNOWN)
    with pytest.raises(ConfigurationError, match=f"^token_table: expected the table of this model .fingerprint "
                                                 f"{other.fingerprint()}., got one .*{one.fingerprint()}"):
        other.token_table = made
    assert other.token_table is None
    wide = bilm(options({"projection_dim": 13}))
    with pytest.raises(ConfigurationError, match="token_table: expected vectors of 13 values, got 11"):
        wide.token_table = made
    made.save(tmp_path / "t.hdf5")
    with pytest.raises(ConfigurationError, match="expected the table of this model"):
        bilm(seed=1, token_table=tmp_path / "t.hdf5")


def test_a_table_without_a_fingerprint_is_compared_with_the_model():
    one, other = bilm(), bilm(seed=1)
    words = ["<S>", "</S>", *(f"word{k}" for k in range(300))]
    vectors = build_token_table(one, words).vectors(np.arange(302)).numpy()
    one.token_table = TokenTable(vectors, words)
    one.token_table = TokenTable(vectors.astype(np.float16), words)
    with pytest.raises(ConfigurationError, match=r"expected the vectors of this model, got others: row \d+"):
        other.token_table = TokenTable(vectors, words)
    with pytest.raises(ConfigurationError, match="expected the vectors of this model, got others"):
        one.token_table = TokenTable(vectors, [words[-1], *words[:-1]])  # a vocabulary shifted by one
    vectors[0, 0] = np.nan
    with pytest.raises(ConfigurationError, match=r"others: row 0 \('<S>'\) differs by nan"):
        one.token_table = TokenTable(vectors, words)
    other.token_table = TokenTable(vectors)  # nothing but the shape can be checked


def test_copies_keep_the_table():
    _, tabled = pair()
    tabled.embed_tokens([["The"]])
    for again in (copy.deepcopy(tabled), pickle.loads(pickle.dumps(tabled))):
        again.reset_states(), tabled.reset_states()
        assert_same(again.embed_tokens(SENTENCES)[0], tabled.embed_tokens(SENTENCES)[0], "native")
        with torch.no_grad():
            again.token_source.b_proj[0] += 1
        with pytest.raises(ConfigurationError, match="expected one of this char encoder"):
            again.embed_tokens([["The"]])


def test_changed_weights_are_noticed():
    _, tabled = pair()
    tabled.token_source.W_proj.data.copy_(tabled.token_source.W_proj.data.clone())  # rewritten, the same
    tabled.load_state_dict(tabled.state_dict())
    tabled(batch_to_ids([["The"]]))
    with torch.no_grad():
        tabled._elmo_lstm.B_0_1 += 1  # no part of the char encoder
        tabled(batch_to_ids([["The"]]))
        tabled.token_source.b_proj[0] += 1
    for call in (lambda: tabled(batch_to_ids([["The"]])), lambda: tabled.embed_tokens([["The"]]),
                 lambda: tabled(torch.tensor([[4]]))):
        with pytest.raises(ConfigurationError, match="expected one of this char encoder, whose weights were"):
            call()
    tabled.token_table = None
    tabled(batch_to_ids([["The"]]))


def test_a_trained_encoder_is_refused_while_gradients_flow():
    made = build_token_table(bilm(), KNOWN)
    trained = bilm(requires_grad=True, token_table=made)
    with pytest.raises(ConfigurationError, match="token_table: expected a char encoder that is not trained"):
        trained(batch_to_ids([["The"]]))
    with torch.no_grad():
        trained(batch_to_ids([["The"]]))


def test_a_trained_lstm_learns_over_a_table():
    plain, tabled = pair(backend="torch")
    grads = []
    for model in (plain, tabled):
        model._elmo_lstm.requires_grad_(True)
        model(batch_to_ids(SENTENCES[:2])).activations[-1].sin().sum().backward()
        grads.append([value.grad for value in model._elmo_lstm.parameters()])
    for one, other in zip(*grads):
        torch.testing.assert_close(one, other, atol=SAME_MODEL, rtol=1e-5)
    assert all(grad.abs().sum() > 0 for grad in grads[0])


def test_without_fp32_weights():
    plain, _ = pair()
    made = build_token_table(plain, KNOWN)
    small = bilm(backend="native", keep_fp32=False, token_table=made)
    with torch.no_grad():
        assert_same(small.embed_tokens(SENTENCES)[0], plain.embed_tokens(SENTENCES)[0], "native")
    later = bilm(backend="native", keep_fp32=False)
    later.token_table = made
    assert later.fingerprint() == plain.fingerprint()


def test_elmo_takes_ids_of_the_table(tmp_path):
    model = write_model(tmp_path / "model", tiny())
    files = model / "options.json", model / "weights.hdf5"
    embedder = ElmoEmbedder(*files)
    build_token_table(embedder.elmo_bilm, ["<S>", "</S>", "The", "children", "."]).save(tmp_path / "t.hdf5")
    tabled = Elmo(*files, 1, dropout=0, token_table=tmp_path / "t.hdf5")
    plain = Elmo(*files, 1, dropout=0)
    sentences = [["The", "children", "."], [".", "wholly"], []]
    numbers = torch.tensor([[3, 4, 5], [5, 77, 0], [0, 0, 0]])
    for _ in range(2):
        one, other = tabled(batch_to_ids(sentences), numbers), plain(batch_to_ids(sentences))
        assert torch.equal(one["mask"], other["mask"])
        torch.testing.assert_close(*(each["elmo_representations"][0] for each in (one, other)), atol=1e-6, rtol=0)
    one, other = tabled(None, numbers[:1, None]), plain(batch_to_ids(sentences[:1])[:, None])
    torch.testing.assert_close(*(each["elmo_representations"][0] for each in (one, other)), atol=1e-6, rtol=0)
    with pytest.raises(ValueError, match="ids: expected character ids beside word_inputs .* above 5, got None .* 77"):
        tabled(None, numbers)
    with pytest.raises(ValueError, match="word_inputs: expected a number for each token of ids"):
        tabled(batch_to_ids(sentences), numbers[:, :2])
    with pytest.raises(ConfigurationError, match="token_table: expected None beside module"):
        Elmo(None, None, 1, module=bilm(), token_table=tmp_path / "t.hdf5")


def test_cached_words_are_encoded_once_when_rare():
    plain = bilm()
    plain.cache_words(["@@PADDING@@", "The"])
    calls = []
    encode = plain.token_source.forward
    plain.token_source.forward = lambda ids, backend: calls.append(len(ids)) or encode(ids, backend)
    plain(batch_to_ids([["The", "new", "new"], ["new"]]), word_inputs=torch.tensor([[1, 9, 9], [9, 0, 0]]))
    assert calls == [1]
    assert not plain._word_embedding.weight[0].any()  # AllenNLP's padding entry
    with pytest.raises(ValueError, match="word_inputs: expected None, since no words are cached and there is no token"):
        bilm()(batch_to_ids([["a"]]), word_inputs=torch.tensor([[1]]))


def test_word_models_take_no_table():
    made = TokenTable(np.zeros((3, 4), np.float32), ["a", "b", "c"])
    content = tiny()
    del content["char_cnn"]
    of = Options.from_dict({**content, "n_tokens_vocab": 7})
    with pytest.raises(ConfigurationError, match="token_table: expected None for a model that reads word ids"):
        BiLm(of, random_weights(of, 0), token_table=made)
