"""bilm-tf's `BidirectionalLanguageModel`: shapes, numbers, states of streams, and what it refuses."""

import numpy as np
import pytest
import torch

from elmo_fast.compat.bilm import Batcher, BidirectionalLanguageModel
from elmo_fast.compat.bilm import data as bilm_data
from elmo_fast.compat.bilm import model as bilm_model
from elmo_fast.testing import SAME_MODEL
from tests.support import plain
from tests.support.files import paths, tiny, write_model
from tests.support.models import SHAPES, files, weights

BATCHES = [
    [["the", "sea"], ["grey", "and", "old", "salt"], []],
    [["wind"], ["the", "grey", "wind", "of", "the", "sea"]],
    [["salt", "and", "wind"], ["sea"], ["of"], ["the", "x" * 60]],
]


class Oracle:
    """bilm-tf's call in NumPy and float64: every row of a batch on its own, from the state its row is in."""

    def __init__(self, options, seed=0):
        self.options, self.weights, self.states = options, weights(options, seed), {}

    def run(self, ids):
        found = []
        for row, one in enumerate(ids):
            one = one[one.any(axis=1)]
            layers, self.states[row] = plain.layers(one, self.weights, self.options, self.states.get(row))
            found.append(layers)
        return found


@pytest.mark.parametrize("name", ["two layers", "four layers", "one layer", "no projection", "clips that fire",
                                  "no skip connections", "short tokens", "tanh"])
def test_the_numbers_of_batches_of_many_sizes(tmp_path, vocab, name):
    options = SHAPES[name]
    model = BidirectionalLanguageModel(*files(tmp_path / "model", options), max_batch_size=5)
    batcher, oracle = Batcher(vocab, options.char_cnn.max_characters_per_token), Oracle(options)
    for batch in BATCHES:
        ids = batcher.batch_sentences(batch)
        ops = model(ids)
        longest, size = max(map(len, batch)), options.lstm.projection_dim
        assert ops["lm_embeddings"].shape == (len(batch), options.n_layers, longest, 2 * size)
        assert ops["token_embeddings"].shape == (len(batch), longest + 2, size)
        assert ops["lengths"].tolist() == [len(sentence) for sentence in batch]
        assert ops["mask"].dtype == torch.bool and ops["mask"].shape == (len(batch), longest)
        for row, expected in enumerate(oracle.run(ids)):
            length = len(batch[row])
            assert ops["mask"][row].tolist() == [True] * length + [False] * (longest - length)
            found = ops["lm_embeddings"][row].numpy()
            assert np.abs(found[:, :length] - expected[:, 1:-1]).max(initial=0) < 5e-6
            assert not found[:, length:].any()
            tokens = ops["token_embeddings"][row].numpy()
            assert np.abs(tokens[: length + 2] - expected[0, :, :size]).max() < 5e-6
            assert not tokens[length + 2 :].any()


def test_states_can_be_read_as_bilm_tf_keeps_them(tmp_path, vocab):
    options = SHAPES["two layers"]
    model = BidirectionalLanguageModel(*files(tmp_path / "model", options), max_batch_size=5)
    batcher, oracle = Batcher(vocab, 50), Oracle(options)
    for batch in BATCHES:
        ids = batcher.batch_sentences(batch)
        model(ids)
        oracle.run(ids)
        for number, direction in enumerate(("forward", "backward")):
            for layer, (c, h) in enumerate(model.lstm_init_states()[direction]):
                assert c.shape == (5, options.lstm.dim) and h.shape == (5, options.lstm.projection_dim)
                for row in range(5):
                    expected = oracle.states[row][number][layer] if row in oracle.states else (0, 0)
                    assert np.abs(h[row].numpy() - expected[0]).max() < 5e-6
                    assert np.abs(c[row].numpy() - expected[1]).max() < 5e-6
    assert len(oracle.states) == 4 and not model.lstm_init_states("another")["forward"][0][0].any()


def test_rows_beyond_a_smaller_batch_keep_their_states(tmp_path):
    model = BidirectionalLanguageModel(*paths(write_model(tmp_path / "model")), max_batch_size=4)
    ids = np.random.default_rng(0).integers(1, 262, (3, 6, 50))
    model(ids)
    before = [state for pairs in model.lstm_init_states().values() for pair in pairs for state in pair]
    model(np.ones((2, 5, 50), dtype=np.int32))
    after = [state for pairs in model.lstm_init_states().values() for pair in pairs for state in pair]
    for old, new in zip(before, after):
        assert torch.equal(old[2:], new[2:]) and old[2].any() and not old[3].any()
        assert not torch.equal(old[:2], new[:2])


def test_streams_carry_states_of_their_own(tmp_path, vocab):
    model = BidirectionalLanguageModel(*paths(write_model(tmp_path / "model")))
    ids = Batcher(vocab, 50).batch_sentences(BATCHES[0])
    first, again = model(ids, stream="context")["lm_embeddings"], model(ids, stream="context")["lm_embeddings"]
    assert (first - again)[:, 1:].abs().max() > 1e-4
    assert torch.equal(model(ids, stream="question")["lm_embeddings"], first)
    model.reset_states("context")
    assert torch.equal(model(ids, stream="context")["lm_embeddings"], first)
    assert torch.equal(model(ids, stream="question")["lm_embeddings"], again)
    model.reset_states()
    assert torch.equal(model(ids, stream="question")["lm_embeddings"], first)


def test_without_carried_states_calls_repeat(tmp_path, vocab):
    ids = Batcher(vocab, 50).batch_sentences(BATCHES[0])
    for state in ("zero", "warm"):
        model = BidirectionalLanguageModel(*paths(write_model(tmp_path / "model")), state=state)
        assert torch.equal(model(ids)["lm_embeddings"], model(ids)["lm_embeddings"])


def test_nothing_is_trained_and_nothing_tracked(tmp_path, vocab):
    model = BidirectionalLanguageModel(*paths(write_model(tmp_path / "model")))
    assert not any(value.requires_grad for value in model.parameters())
    assert not model(Batcher(vocab, 50).batch_sentences(BATCHES[0]))["lm_embeddings"].requires_grad


@pytest.mark.parametrize("convert", [np.asarray, torch.as_tensor, lambda ids: ids.astype(np.int32),
                                     lambda ids: torch.as_tensor(ids, dtype=torch.int32),
                                     lambda ids: ids.astype(np.uint16)])
def test_ids_of_every_integer_type(tmp_path, vocab, convert):
    files = paths(write_model(tmp_path / "model"))
    ids = Batcher(vocab, 50).batch_sentences(BATCHES[0])
    expected = BidirectionalLanguageModel(*files)(ids)["lm_embeddings"]
    assert torch.equal(BidirectionalLanguageModel(*files)(convert(ids))["lm_embeddings"], expected)


def test_a_batch_of_no_sentences(tmp_path):
    ops = BidirectionalLanguageModel(*paths(write_model(tmp_path / "model")))(np.zeros((0, 5, 50), dtype=np.int64))
    assert {name: tuple(value.shape) for name, value in ops.items()} == {
        "lm_embeddings": (0, 3, 3, 8), "lengths": (0,), "mask": (0, 3), "token_embeddings": (0, 5, 4)}


def test_what_is_refused(tmp_path, vocab):
    options_file, weight_file = paths(write_model(tmp_path / "model"))
    model = BidirectionalLanguageModel(options_file, weight_file, max_batch_size=2)
    ids = Batcher(vocab, 50).batch_sentences(BATCHES[1])
    before = model(ids)["lm_embeddings"]
    model.reset_states()
    for wrong, why in [
        (np.concatenate([ids, ids]), r"ids: expected at most max_batch_size \(2\) sentences, got 4"),
        (ids.astype(np.float32), "ids: expected integers, got float32"),
        (ids[0], r"ids: expected integers of shape \[sentences, tokens, characters\], got shape"),
        (ids[..., :49], r"\[batch, tokens, 50\], got shape"),
        (ids + 200, "ids: expected character ids from 0 to 261"),
        (ids * (np.arange(8) < 1)[:, None], "ids: expected <S> and </S> in every sentence, got 1 positions in row 0"),
        (np.concatenate([ids[:1], 0 * ids[:1]]), "got 0 positions in row 1"),
        (np.concatenate([ids[1:], ids[1:] * (np.arange(8) != 3)[:, None]]), "tokens before its padding"),
    ]:
        with pytest.raises(ValueError, match=why):
            model(wrong)
    assert torch.equal(model(ids)["lm_embeddings"], before)
    with pytest.raises(ValueError, match="embedding_weight_file: expected the file of token vectors"):
        BidirectionalLanguageModel(options_file, weight_file, use_character_inputs=False)
    for size in (0, True, 2.0):
        with pytest.raises(ValueError, match="max_batch_size: expected an integer of at least 1"):
            BidirectionalLanguageModel(options_file, weight_file, max_batch_size=size)
    with pytest.raises(FileNotFoundError, match="weight_file"):
        BidirectionalLanguageModel(options_file, tmp_path / "none.hdf5")


def test_token_vectors_alone(tmp_path, vocab):
    model = BidirectionalLanguageModel(*paths(write_model(tmp_path / "model")), max_batch_size=2)
    ids = Batcher(vocab, 50).batch_sentences(BATCHES[2])
    found = model.token_embeddings(ids)  # more sentences than a batch may have, and without boundaries
    assert not model.lstm_init_states()["forward"][0][0].any()
    assert (found[:2] - model(ids[:2])["token_embeddings"]).abs().max() < SAME_MODEL
    one = model.token_embeddings(ids[1:2, 1:2])
    assert one.shape == (1, 1, 4) and (one[0, 0] - found[1, 1]).abs().max() < SAME_MODEL
    assert model.token_embeddings(0 * ids).shape == found.shape and not model.token_embeddings(0 * ids).any()


def test_261_characters_in_the_options_are_no_trouble(tmp_path, vocab):
    """bilm-tf: InvalidNumberOfCharacters, until somebody edits the file."""
    files = paths(write_model(tmp_path / "trained", tiny(char_cnn__n_characters=261)))
    edited = paths(write_model(tmp_path / "edited", tiny(char_cnn__n_characters=262)))
    ids = Batcher(vocab, 50).batch_sentences(BATCHES[0])
    found, expected = (BidirectionalLanguageModel(*each)(ids)["lm_embeddings"] for each in (files, edited))
    assert torch.equal(found, expected)
    assert issubclass(bilm_data.InvalidNumberOfCharacters, Exception)


def test_the_names_of_bilm_tf_s_modules():
    assert {"Batcher", "TokenBatcher", "Vocabulary", "UnicodeCharsVocabulary"} <= set(dir(bilm_data))
    assert {"BidirectionalLanguageModel", "dump_token_embeddings", "dump_bilm_embeddings"} <= set(dir(bilm_model))
