"""bilm-tf's `BidirectionalLanguageModel` on characters and on word ids: numbers, states of streams, refusals."""

import copy
import io
import json

import h5py
import numpy as np
import pytest
import torch

from elmo_fast import BiLm, ConfigurationError, Options, random_weights
from elmo_fast.compat.bilm import Batcher, BidirectionalLanguageModel, TokenBatcher, dump_token_embeddings
from elmo_fast.testing.tolerances import AGAINST_TENSORFLOW, SAME_MODEL
from tests.support import models, plain
from tests.support.files import paths, tiny, write_model

BATCHES = [
    [["the", "sea"], ["grey", "and", "old", "salt"], []],
    [["wind"], ["the", "grey", "wind", "of", "the", "sea"]],
    [["salt", "and", "wind"], ["sea"], ["of"], ["the", "x" * 60]],
]


@pytest.fixture
def model(files):
    return BidirectionalLanguageModel(*files, max_batch_size=3)


@pytest.fixture
def table(tmp_path, files, vocab):
    """The file of the vocabulary's token vectors."""
    dump_token_embeddings(vocab, *files, tmp_path / "table.hdf5", progress=False)
    return tmp_path / "table.hdf5"


@pytest.fixture
def ids(vocab):
    return Batcher(vocab, 50).batch_sentences(BATCHES[0])


@pytest.mark.parametrize("name", ["two layers", "four layers", "one layer", "no projection", "clips that fire",
                                  "no skip connections", "short tokens", "tanh"])
def test_numbers_and_states_of_batches_of_many_sizes(tmp_path, vocab, name):
    """Every row of a batch runs on its own, from the state that its row is in."""
    options, states = models.SHAPES[name], {}
    size, drawn = options.lstm.projection_dim, models.weights(options)
    model = BidirectionalLanguageModel(*models.files(tmp_path / "model", options), max_batch_size=5)
    for batch in BATCHES:
        ids = Batcher(vocab, options.char_cnn.max_characters_per_token).batch_sentences(batch)
        ops, longest = model(ids), max(map(len, batch))
        assert ops["lm_embeddings"].shape == (len(batch), options.n_layers, longest, 2 * size)
        assert ops["token_embeddings"].shape == (len(batch), longest + 2, size)
        assert ops["lengths"].tolist() == [len(sentence) for sentence in batch]
        assert ops["mask"].dtype == torch.bool and ops["mask"].shape == (len(batch), longest)
        assert not any(value.requires_grad for value in (*ops.values(), *model.parameters()))
        for row, sentence in enumerate(batch):
            length = len(sentence)
            expected, states[row] = plain.layers(ids[row, : length + 2], drawn, options, states.get(row))
            assert ops["mask"][row].tolist() == [True] * length + [False] * (longest - length)
            found, tokens = ops["lm_embeddings"][row].numpy(), ops["token_embeddings"][row].numpy()
            assert np.abs(found[:, :length] - expected[:, 1:-1]).max(initial=0) < 5e-6
            assert np.abs(tokens[: length + 2] - expected[0, :, :size]).max() < 5e-6
            assert not found[:, length:].any() and not tokens[length + 2 :].any()
        for number, direction in enumerate(("forward", "backward")):
            for layer, (c, h) in enumerate(model.lstm_init_states()[direction]):
                assert c.shape == (5, options.lstm.dim) and h.shape == (5, size)
                for row in range(5):
                    expected_h, expected_c = states[row][number][layer] if row in states else (0, 0)
                    assert np.abs(h[row].numpy() - expected_h).max() < 5e-6
                    assert np.abs(c[row].numpy() - expected_c).max() < 5e-6


def test_streams_have_separate_states(model, ids):
    def run(stream):
        return model(ids, stream=stream)["lm_embeddings"]

    first, again = run("context"), run("context")
    assert (first - again)[:, 1:].abs().max() > 1e-4
    assert not model.lstm_init_states("question")["forward"][0][0].any() and torch.equal(run("question"), first)
    model.reset_states("context")
    assert torch.equal(run("context"), first) and torch.equal(run("question"), again)
    model.reset_states()
    assert torch.equal(run("question"), first)


@pytest.mark.parametrize("state", ["zero", "warm"])
def test_without_carried_states_calls_repeat_with_ids_of_every_integer_type(files, ids, state):
    model = BidirectionalLanguageModel(*files, state=state)
    expected = model(ids)["lm_embeddings"]
    for same in (ids, torch.as_tensor(ids), ids.astype(np.int32), torch.as_tensor(ids, dtype=torch.int32),
                 ids.astype(np.uint16), ids.tolist()):
        assert torch.equal(model(same)["lm_embeddings"], expected)


def test_a_batch_of_no_sentences(model):
    assert {name: tuple(value.shape) for name, value in model(np.zeros((0, 5, 50), dtype=np.int64)).items()} == {
        "lm_embeddings": (0, 3, 3, 22), "lengths": (0,), "mask": (0, 3), "token_embeddings": (0, 5, 11)}


def test_token_vectors_alone(model, vocab):
    ids = Batcher(vocab, 50).batch_sentences(BATCHES[2])
    found = model.token_embeddings(ids)  # more sentences than a batch may have, and without boundaries
    assert not model.lstm_init_states()["forward"][0][0].any()
    assert (found[:2] - model(ids[:2])["token_embeddings"]).abs().max() < SAME_MODEL
    one = model.token_embeddings(ids[1:2, 1:2])
    assert one.shape == (1, 1, 11) and (one[0, 0] - found[1, 1]).abs().max() < SAME_MODEL
    assert model.token_embeddings(0 * ids).shape == found.shape and not model.token_embeddings(0 * ids).any()


def test_261_characters_in_the_options_are_no_trouble(tmp_path, ids):
    """bilm-tf: InvalidNumberOfCharacters, until somebody edits the file."""
    found, expected = (BidirectionalLanguageModel(*paths(write_model(
        tmp_path / str(count), tiny(char_cnn__n_characters=count))))(ids)["lm_embeddings"] for count in (261, 262))
    assert torch.equal(found, expected)


@pytest.mark.parametrize("written_by", ["dump_token_embeddings", "bilm-tf"])
def test_word_ids_give_what_characters_give(files, vocab, table, written_by):
    if written_by == "bilm-tf":  # the dataset alone
        with h5py.File(table, "r+") as file:
            for name in list(file.attrs):
                del file.attrs[name]
    by_words = BidirectionalLanguageModel(*files, use_character_inputs=False, embedding_weight_file=table)
    by_characters = BidirectionalLanguageModel(*files)
    for batch in ([["sea", "salt"], ["the", "grey", "sea"]], [["wind"]], [["of", "<UNK>"], []]):
        words, characters = TokenBatcher(vocab).batch_sentences(batch), Batcher(vocab, 50).batch_sentences(batch)
        assert words.shape == characters.shape[:2]
        found, expected = by_words(words), by_characters(characters)
        for name, value in found.items():
            assert torch.allclose(value.float(), expected[name].float(), rtol=0, atol=1e-6)
        assert torch.allclose(by_words.token_embeddings(words), expected["token_embeddings"], rtol=0, atol=1e-6)


def test_a_model_trained_on_word_ids(tmp_path):
    content = tiny(n_tokens_vocab=9)
    del content["char_cnn"]
    files, drawn = paths(write_model(tmp_path / "model", content)), random_weights(Options.from_dict(content), 0)
    model = BidirectionalLanguageModel(*files, use_character_inputs=False, embedding_weight_file=files[1])
    ids = np.array([[1, 9, 3, 2], [1, 2, 0, 0]])
    ops = model(ids)
    table = np.vstack([np.zeros((1, 4)), drawn["embedding"]])
    assert np.abs(ops["token_embeddings"].numpy() - table[ids]).max() < 1e-7
    assert torch.equal(model.token_embeddings(ids), ops["token_embeddings"])
    expected = BiLm(Options.from_dict(content), drawn)(torch.from_numpy(ids), boundaries="present").activations[-1]
    assert torch.allclose(ops["lm_embeddings"][0, -1], expected[0, 1:3], atol=SAME_MODEL)
    with pytest.raises(ConfigurationError, match="use_character_inputs: expected False"):
        BidirectionalLanguageModel(*files)


def test_copies_and_pickles_keep_the_states(files, vocab, table):
    ids, stored = TokenBatcher(vocab).batch_sentences([["sea", "salt"]]), io.BytesIO()
    model = BidirectionalLanguageModel(*files, False, table)
    model(ids, stream="a")
    torch.save(model, stored)
    stored.seek(0)
    twins = [copy.deepcopy(model), torch.load(stored, weights_only=False)]
    expected = model(ids, stream="a")["lm_embeddings"]
    assert all(torch.equal(twin(ids, stream="a")["lm_embeddings"], expected) for twin in twins)


@pytest.mark.parametrize("by", ["characters", "words"])
def test_layers_that_tensorflow_wrote(shared, tmp_path, by):
    """bilm-tf's fixture: ten batches of three streams of sentences."""
    folder = shared / "fixtures" / "bilm-tf"
    files, vocab, table = (folder / "options.json", folder / "lm_weights.hdf5"), folder / "vocab_test.txt", None
    batches = [[sentence.split() for sentence in batch] for batch in zip(
        *json.loads((folder / "lm_embeddings_sentences.json").read_text(encoding="utf-8")))]
    if by == "words":
        words = dict.fromkeys(["<S>", "</S>", *(word for batch in batches for sentence in batch for word in sentence)])
        vocab, table = tmp_path / "vocab.txt", tmp_path / "table.hdf5"
        vocab.write_text("\n".join(words), encoding="utf-8")
        dump_token_embeddings(vocab, *files, table, progress=False)
    batcher = TokenBatcher(vocab) if table else Batcher(vocab, 50)
    model = BidirectionalLanguageModel(*files, table is None, table, max_batch_size=4)
    with np.load(shared / "fixtures" / "all_layers.npz") as layers:
        for number, batch in enumerate(batches):
            ops = model(batcher.batch_sentences(batch))
            assert ops["lengths"].tolist() == [len(sentence) for sentence in batch]
            for row, sentence in enumerate(batch):
                found = ops["lm_embeddings"][row, :, : len(sentence)].numpy()
                assert np.abs(found - layers[f"bilm-tf/{number}/{row}"]).max() < AGAINST_TENSORFLOW


def test_refuses(tmp_path, files, vocab, table, model):
    ids, others = Batcher(vocab, 50).batch_sentences(BATCHES[1]), models.files(tmp_path, models.options(), seed=1)
    before, words = model(ids)["lm_embeddings"], BidirectionalLanguageModel(*files, False, table)
    model.reset_states()
    hole = np.concatenate([ids[1:], ids[1:] * (np.arange(8) != 3)[:, None]])
    for call, wrong, why in [
        (model, [np.concatenate([ids, ids])], r"ids: expected at most max_batch_size \(3\) sentences, got 4"),
        (model, [ids.astype(np.float32)], "ids: expected integers, got float32"),
        (model, [ids[0]], r"ids: expected integers of shape \[sentences, tokens, characters\], got shape"),
        (model, [ids[..., :49]], r"ids: .*\[batch, tokens, 50\], got shape"),
        (model, [ids + 200], "ids: expected character ids from 0 to 261"),
        (model, [ids * (np.arange(8) < 1)[:, None]], "ids: expected <S> and </S> in .*, got 1 positions in row 0; "),
        (model, [np.concatenate([ids[:1], 0 * ids[:1]])], "ids: .* got 0 positions in row 1"),
        (model, [hole], "ids: .* tokens before its padding"),
        (words, [np.array([[1, 11, 2]])], "ids: .* 11"),
        (words, [ids], r"ids: expected integers of shape \[sentences, tokens\], got shape"),
        (words, [np.array([[1, 4, 2], [1, 0, 0]])], "ids: .* got 1 positions in row 1"),
        (BidirectionalLanguageModel, [*others, False, table],
         ".*".join(["token_table: ", *(BiLm.from_files(*each).fingerprint() for each in (others, files))])),
        (BidirectionalLanguageModel, [*files, False], "embedding_weight_file: expected the file of token vectors"),
        *((BidirectionalLanguageModel, [*files, True, None, size], "max_batch_size: expected an integer of at least 1")
          for size in (0, True, 2.0)),
        (BidirectionalLanguageModel, [files[0], tmp_path / "none.hdf5"], "weight_file"),
    ]:
        with pytest.raises(FileNotFoundError if why == "weight_file" else ValueError, match=f"^{why}"):
            call(*wrong)
    assert torch.equal(model(ids)["lm_embeddings"], before)
