"""A model gives the same results with and without a token table, for known and unknown words, by every call."""

import copy
import pickle

import numpy as np
import pytest
import torch

from elmo_fast import ConfigurationError, Elmo, ElmoEmbedder, TokenTable, batch_to_ids, build_token_table
from elmo_fast.testing import AGAINST_FLOAT64, SAME_MODEL, relative_error
from tests.support.models import SENTENCES, SHAPES, bilm, files, options

KNOWN = sorted({word for sentence in SENTENCES[:3] for word in sentence})
ALL_KNOWN = [sentence for sentence in SENTENCES if all(word in KNOWN for word in sentence)]
THE = batch_to_ids([["The"]])


def pair(sizes=None, words=KNOWN, backend="native", **arguments):
    """Two models of the same weights; the second has a table."""
    plain, tabled = bilm(sizes, backend=backend), bilm(sizes, backend=backend)
    tabled.token_table = build_token_table(plain, ["<S>", "</S>", "<UNK>", *words], **arguments)
    return plain, tabled


def assert_same(actual, expected, backend="native"):
    assert len(actual) == len(expected)
    for left, right in zip(actual, expected):
        left, right = torch.as_tensor(left), torch.as_tensor(right)
        assert left.dtype == right.dtype
        torch.testing.assert_close(left, right, atol=0 if backend == "native" else SAME_MODEL, rtol=0)


@torch.no_grad()
def assert_same_layers(tabled, plain, batch, expected=None, backend="native"):
    """Compare by strings and by characters; `expected` are the sentences of the model without a table."""
    assert_same(tabled.embed_tokens(batch)[0], plain.embed_tokens(expected or batch)[0], backend)
    output, plain_output = tabled(batch_to_ids(batch, *plain.token_source.row_shape)), plain(
        batch_to_ids(expected or batch, *plain.token_source.row_shape))
    assert torch.equal(output.mask, plain_output.mask)
    assert_same(output.activations, plain_output.activations, backend)


@pytest.mark.parametrize("shape, backend, state", [
    ("two layers", "reference", "zero"), ("short tokens", "reference", "carry"), ("no projection", "torch", "warm"),
    ("clips that fire", "torch", "carry"), ("no projection", "native", "carry"), ("clips that fire", "native", "zero"),
    ("short tokens", "native", "warm"), ("no highway", "native", "carry")])
def test_characters_strings_and_streams(shape, backend, state):
    plain, tabled = pair(SHAPES[shape], backend=backend)
    plain.state = tabled.state = state
    for _ in range(2):
        assert_same_layers(tabled, plain, SENTENCES, backend=backend)
    embedder, reference = (ElmoEmbedder.from_bilm(model) for model in (tabled, plain))
    sentences = SENTENCES * 3 + [["never", "seen"], ["The", "never"]]
    assert_same(list(embedder.embed_sentences(sentences, 4)), list(reference.embed_sentences(sentences, 4)), backend)
    assert_same(embedder.embed_batch(sentences), reference.embed_batch(sentences), backend)


@pytest.mark.parametrize("backend", ["reference", "torch", "native"])
def test_token_ids(backend):
    plain, tabled = pair(backend=backend)
    ids = torch.zeros(len(ALL_KNOWN), max(map(len, ALL_KNOWN)), dtype=torch.int64)
    for row, sentence in zip(ids, ALL_KNOWN):
        row[: len(sentence)] = torch.from_numpy(tabled.token_table.ids(sentence))
    bounded = torch.from_numpy(tabled.token_table.ids(["<S>", "The", "</S>"]))[None]
    for actual, expected in ((tabled(ids), plain(batch_to_ids(ALL_KNOWN))),
                             (tabled(bounded, boundaries="present"), plain(THE))):
        assert torch.equal(actual.mask, expected.mask)
        assert_same(actual.activations, expected.activations, backend)
    with pytest.raises(ValueError, match=f"ids: expected word ids from 0 to {len(KNOWN) + 3}, got 0 to 99"):
        tabled(torch.tensor([[99, 0]]))


def test_unknown_words_are_refused_or_replaced_by_unk():
    plain, tabled = pair(unknown="error")
    for call in (tabled.embed_tokens, lambda batch: tabled(batch_to_ids(batch))):
        with pytest.raises(ValueError, match="token table: expected words of the table .* got 'no', 'nor'"):
            call([["The", "no"], ["nor"]])
    tabled.token_table.unknown = "unk"
    assert_same_layers(tabled, plain, [["The", "no"]], [["The", "<UNK>"]])


def test_a_float16_table_is_close():
    plain, tabled = pair(storage="float16")
    with torch.no_grad():
        layers, plain_layers = tabled.embed_tokens(SENTENCES[:3])[0], plain.embed_tokens(SENTENCES[:3])[0]
    assert tabled.token_table.storage == "float16"
    for layer, expected in zip(layers, plain_layers):
        assert 0 < relative_error(layer, expected) < AGAINST_FLOAT64["fp16"]


def test_a_table_of_another_model_is_refused(tmp_path):
    first, second = bilm(), bilm(seed=1)
    own_table = build_token_table(first, KNOWN)
    own_table.save(tmp_path / "t.hdf5")
    message = f"fingerprint {second.fingerprint()}., got one .*{first.fingerprint()}"
    for model, table, expected in ((second, own_table, f"the table of this model .{message}"),
                                   (second, tmp_path / "t.hdf5", "the table of this model"),
                                   (bilm(options({"projection_dim": 13})), own_table, "vectors of 13 values, got 11")):
        with pytest.raises(ConfigurationError, match=f"^token_table: expected {expected}"):
            model.token_table = table
        assert model.token_table is None


def test_a_table_without_a_fingerprint_is_accepted():
    plain, tabled = bilm(backend="native"), bilm(backend="native")
    words = ["<S>", "</S>", *KNOWN]
    vectors = build_token_table(plain, words).vectors(np.arange(len(words)))
    for table in (TokenTable(vectors, words), TokenTable(vectors)):
        tabled.token_table, tabled.state, plain.state = table, "zero", "zero"
        actual = tabled(torch.tensor([[1, 3, 4, 2]]), boundaries="present")
        assert_same(actual.activations, plain(batch_to_ids([KNOWN[:2]])).activations)


def test_changed_weights_are_detected_in_copies_too():
    _, tabled = pair()
    projection = tabled.token_source._projection.weight
    projection.data.copy_(projection.data.clone())  # rewritten with the same values
    tabled.load_state_dict(tabled.state_dict())
    with torch.no_grad():
        tabled._elmo_lstm.forward_layer_1.state_linearity.bias += 1  # not part of the char encoder
    tabled.state = "zero"
    expected, _ = tabled.embed_tokens(SENTENCES)
    for model in (copy.deepcopy(tabled), pickle.loads(pickle.dumps(tabled)), tabled):
        assert_same(model.embed_tokens(SENTENCES)[0], expected)
        with torch.no_grad():
            model.token_source._projection.bias[0] += 1
        for call in (lambda model: model(THE), lambda model: model.embed_tokens([["The"]]),
                     lambda model: model(torch.tensor([[4]]))):
            with pytest.raises(ConfigurationError, match="expected a table of this char encoder, whose weights were"):
                call(model)
    tabled.token_table = None
    tabled(THE)


def test_a_trained_encoder_is_refused_while_gradients_flow():
    trained = bilm(requires_grad=True, token_table=build_token_table(bilm(), KNOWN))
    with pytest.raises(ConfigurationError, match="token_table: expected a char encoder that is not trained"):
        trained(THE)
    with torch.no_grad():
        trained(THE)


def test_elmo_accepts_ids_of_the_table(tmp_path):
    model = files(tmp_path / "model", options())
    build_token_table(bilm(), ["<S>", "</S>", "The", "children", "."]).save(tmp_path / "t.hdf5")
    tabled, plain = (Elmo(*model, 1, dropout=0, token_table=table) for table in (tmp_path / "t.hdf5", None))
    ids = batch_to_ids([["The", "children", "."], [".", "wholly"], []])
    numbers = torch.tensor([[3, 4, 5], [5, 77, 0], [0, 0, 0]])
    for actual, expected in ((tabled(ids, numbers), plain(ids)), (tabled(ids, numbers), plain(ids)),
                             (tabled(None, numbers[:1, None]), plain(ids[:1, None]))):
        assert torch.equal(actual["mask"], expected["mask"])
        assert_same(actual["elmo_representations"], expected["elmo_representations"], "torch")
    with pytest.raises(ValueError, match="ids: expected character ids, .* above 5, got no such ids .* 77"):
        tabled(None, numbers)
