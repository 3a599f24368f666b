"""bilm-tf's biLM on word ids, its copies, and the embeddings that TensorFlow wrote."""

import copy
import io
import json

import h5py
import numpy as np
import pytest
import torch

from elmo_fast import BiLm, ConfigurationError, Options, random_weights
from elmo_fast.compat.bilm import Batcher, BidirectionalLanguageModel, TokenBatcher, dump_token_embeddings
from elmo_fast.testing import AGAINST_TENSORFLOW, SAME_MODEL
from tests.support.files import paths, tiny, write_model


@pytest.mark.parametrize("written_by", ["dump_token_embeddings", "bilm-tf"])
def test_word_ids_give_what_characters_give(tmp_path, vocab, written_by):
    files = paths(write_model(tmp_path / "model"))
    table = tmp_path / "embeddings.hdf5"
    dump_token_embeddings(vocab, *files, table, progress=False)
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
        for name in ("lengths", "mask"):
            assert torch.equal(found[name], expected[name])
        for name in ("lm_embeddings", "token_embeddings"):
            assert torch.allclose(found[name], expected[name], rtol=0, atol=1e-6)
        assert torch.allclose(by_words.token_embeddings(words), expected["token_embeddings"], rtol=0, atol=1e-6)


def test_the_first_and_the_last_word_of_the_vocabulary_keep_their_vectors(tmp_path):
    vocab = tmp_path / "vocab.txt"
    vocab.write_text("sea\nsalt\n<S>\n</S>\nwind\n", encoding="utf-8")
    files = paths(write_model(tmp_path / "model"))
    dump_token_embeddings(vocab, *files, tmp_path / "table.hdf5", progress=False)
    model = BidirectionalLanguageModel(*files, False, tmp_path / "table.hdf5")
    ids = TokenBatcher(vocab).batch_sentences([["sea", "wind"]])
    assert ids.tolist() == [[3, 1, 5, 4]]
    expected = BiLm.from_files(*files).encode(["<S>", "sea", "wind", "</S>"])
    assert torch.allclose(model(ids)["token_embeddings"][0], expected, rtol=0, atol=1e-6)


def test_token_vectors_of_another_model_are_refused(tmp_path, vocab):
    files, others = paths(write_model(tmp_path / "model")), paths(write_model(tmp_path / "other", seed=1))
    dump_token_embeddings(vocab, *others, tmp_path / "table.hdf5", progress=False)
    fingerprints = [BiLm.from_files(*each).fingerprint() for each in (files, others)]
    with pytest.raises(ConfigurationError, match=f"{fingerprints[0]}.*{fingerprints[1]}"):
        BidirectionalLanguageModel(*files, False, tmp_path / "table.hdf5")


def test_word_ids_out_of_range_or_of_another_shape(tmp_path, vocab):
    files = paths(write_model(tmp_path / "model"))
    dump_token_embeddings(vocab, *files, tmp_path / "table.hdf5", progress=False)
    model = BidirectionalLanguageModel(*files, False, tmp_path / "table.hdf5")
    with pytest.raises(ValueError, match="11"):
        model(np.array([[1, 11, 2]]))
    with pytest.raises(ValueError, match=r"ids: expected integers of shape \[sentences, tokens\], got shape"):
        model(np.ones((1, 3, 50), dtype=np.int64))
    with pytest.raises(ValueError, match="got 1 positions in row 1"):
        model(np.array([[1, 4, 2], [1, 0, 0]]))


def test_a_model_trained_on_word_ids(tmp_path):
    content = tiny(n_tokens_vocab=9)
    del content["char_cnn"]
    files = paths(write_model(tmp_path / "model", content))
    drawn = random_weights(Options.from_dict(content), 0)
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


def test_copies_and_pickles_carry_on(tmp_path, vocab):
    files = paths(write_model(tmp_path / "model"))
    dump_token_embeddings(vocab, *files, tmp_path / "table.hdf5", progress=False)
    ids = TokenBatcher(vocab).batch_sentences([["sea", "salt"]])
    model = BidirectionalLanguageModel(*files, False, tmp_path / "table.hdf5")
    model(ids, stream="a")
    stored = io.BytesIO()
    torch.save(model, stored)
    stored.seek(0)
    twins = [copy.deepcopy(model), torch.load(stored, weights_only=False)]
    expected = model(ids, stream="a")["lm_embeddings"]
    for twin in twins:
        assert torch.equal(twin(ids, stream="a")["lm_embeddings"], expected)


def streams(shared):
    """bilm-tf's fixture: batches of its three streams of sentences, the top layer of each, and a model's arguments."""
    folder = shared / "fixtures" / "bilm-tf"
    sentences = json.loads((folder / "lm_embeddings_sentences.json").read_text(encoding="utf-8"))
    top = []
    for stream in range(3):
        with h5py.File(folder / f"lm_embeddings_{stream}.hdf5") as file:
            top.append([np.concatenate(list(file[str(number)]), axis=-1) for number in range(10)])
    batches = [[stream[number].split() for stream in sentences] for number in range(10)]
    return batches, top, (folder / "options.json", folder / "lm_weights.hdf5"), folder / "vocab_test.txt"


@pytest.mark.parametrize("by", ["characters", "words"])
def test_embeddings_that_tensorflow_wrote(shared, tmp_path, by):
    batches, top, files, vocab = streams(shared)
    if by == "characters":
        batcher, model = Batcher(vocab, 50), BidirectionalLanguageModel(*files, max_batch_size=4)
    else:
        tokens = {"<S>": 0, "</S>": 0} | {token: 0 for batch in batches for sentence in batch for token in sentence}
        (tmp_path / "vocab.txt").write_text("\n".join(tokens), encoding="utf-8")
        dump_token_embeddings(tmp_path / "vocab.txt", *files, tmp_path / "table.hdf5", progress=False)
        batcher = TokenBatcher(tmp_path / "vocab.txt")
        model = BidirectionalLanguageModel(*files, False, tmp_path / "table.hdf5", max_batch_size=4)
    for number, batch in enumerate(batches):
        ops = model(batcher.batch_sentences(batch))
        assert ops["lengths"].tolist() == [len(sentence) for sentence in batch]
        for row, sentence in enumerate(batch):
            found = ops["lm_embeddings"][row, 2, : len(sentence)].numpy()
            assert np.abs(found - top[row][number]).max() < AGAINST_TENSORFLOW
    for pairs in model.lstm_init_states().values():
        assert all(not state[3].any() for pair in pairs for state in pair)
