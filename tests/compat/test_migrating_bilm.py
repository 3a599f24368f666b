"""Every row of docs/migrating.md for bilm-tf, run."""

import importlib
import inspect
import random
import sys

import h5py
import numpy as np
import pytest
import torch

from elmo_fast import BiLm, ConfigurationError, Options
from elmo_fast.compat import bilm as package
from elmo_fast.compat.bilm import (
    Batcher,
    BidirectionalLanguageModel,
    LayerWeights,
    TokenBatcher,
    Variables,
    __main__,
    data,
    dump_bilm_embeddings,
    dump_token_embeddings,
    training,
    weight_layers,
)
from elmo_fast.model.weights import read_weights
from elmo_fast.testing import SAME_MODEL
from elmo_fast.train import checkpoint
from tests.support.files import read_hdf5, run
from tests.support.migrating import Rows
from tests.support.tf_checkpoints import import_values, made_up, write_folder
from tests.support.training import TINY, write_corpus, write_options

row = Rows("bilm")
WORDS = ["sea", "salt", "<S>", "</S>", "<UNK>", "grey", "and", "the", "of", "wind"]  # of the fixture `vocab`
SENTENCES = [["the", "grey", "sea"], ["wind"]]
OPTIONS = {**TINY, "bidirectional": True, "n_tokens_vocab": 28, "n_epochs": 1, "n_train_tokens": 24, "dropout": 0}


@pytest.fixture
def model(files):
    return BidirectionalLanguageModel(*files)


@pytest.fixture
def ids(vocab):
    return Batcher(vocab, 50).batch_sentences(SENTENCES)


@pytest.fixture
def corpus(tmp_path):
    return write_corpus(tmp_path / "text", shards=1)


@pytest.fixture
def trained(tmp_path, corpus):
    """The directory of three steps of training."""
    characters = OPTIONS["char_cnn"]["max_characters_per_token"]
    text = data.BidirectionalLMDataset(corpus[0], training.load_vocab(corpus[1], characters))
    training.train(OPTIONS, text, 1, tmp_path / "run", tmp_path / "log")
    return tmp_path / "run"


def test_every_row_is_run():
    row.check()


def close(found, expected):
    assert found.shape == expected.shape and (found - expected).abs().max() < SAME_MODEL


@row("`from bilm import ...`", "`from bilm.data import Batcher", "`from bilm.data import LMDataset",
     "`from bilm.training import train")
def test_imports():
    for name in ("Batcher", "TokenBatcher", "BidirectionalLanguageModel", "dump_token_embeddings",
                 "dump_bilm_embeddings", "weight_layers"):
        assert callable(getattr(package, name))
    for name in ("Batcher", "TokenBatcher", "Vocabulary", "UnicodeCharsVocabulary"):
        assert getattr(data, name) is getattr(importlib.import_module("elmo_fast"), name)
    parameters = list(inspect.signature(training.train).parameters)
    assert parameters == ["options", "data", "n_gpus", "tf_save_dir", "tf_log_dir", "restart_ckpt_file"]


@row("`Vocabulary(file, validate_file)`", "`UnicodeCharsVocabulary(file, max_word_length)`")
def test_vocabularies(vocab):
    words = data.Vocabulary(vocab, validate_file=True)
    assert (words.bos, words.eos, words.unk, words.size) == (2, 3, 4, 10)
    assert words.word_to_id("wind") == 9 and words.word_to_id("none") == 4 and words.id_to_word(0) == "sea"
    encoded = words.encode("the sea")
    assert encoded.tolist() == [2, 7, 0, 3] and words.encode("the sea", reverse=True).tolist() == [3, 7, 0, 2]
    assert words.decode(encoded) == "<S> the sea </S>"
    characters = data.UnicodeCharsVocabulary(vocab, 7)
    assert characters.max_word_length == 7 and characters.word_char_ids.shape == (10, 7)
    assert characters.word_to_char_ids("sea").tolist() == [258, *b"sea", 259, 260, 260]
    assert characters.encode_chars("the sea")[:, 1].tolist() == [256, ord("t"), ord("s"), 257]


@row("`LMDataset(...)`")
def test_data_sets(corpus):
    vocab = training.load_vocab(corpus[1], 12)
    text = data.LMDataset(corpus[0], vocab, test=True)
    words, characters = next(text.get_sentence())
    assert text.vocab is vocab and text.max_word_length == 12 and characters.shape == (len(words), 12)
    random.seed(3)
    batch = next(data.BidirectionalLMDataset(corpus[0], vocab).iter_batches(2, 4))
    assert batch["token_ids_reverse"].shape == (2, 4) and batch["tokens_characters"].shape == (2, 4, 12)
    first = batch["next_token_id"] == vocab.eos  # the token after a sentence is the next one's <S>
    assert (batch["token_ids"][:, 1:] == np.where(first, vocab.bos, batch["next_token_id"])[:, :-1]).all()


@row("`Batcher(", "`TokenBatcher(", "`use_token_inputs=False`")
def test_batchers(vocab, files, tmp_path):
    ids = Batcher(vocab, 50).batch_sentences(SENTENCES)
    assert ids.dtype == np.int64 and ids.shape == (2, 5, 50) and not ids[1, 3:].any()
    assert ids[0, 3, :6].tolist() == [259, *(value + 1 for value in b"sea"), 260, 261]
    words = TokenBatcher(vocab).batch_sentences(SENTENCES)
    assert words.dtype == np.int64 and words.tolist() == [[3, 8, 6, 1, 4], [3, 10, 4, 0, 0]]
    with pytest.raises(TypeError, match="use_token_inputs"):
        BidirectionalLanguageModel(*files, use_token_inputs=False)


@row("`tf.placeholder(", "`bilm = BidirectionalLanguageModel(", "`ops = bilm(placeholder)`", "`ops['lm_embeddings']`")
def test_a_call(files, ids):
    model = BidirectionalLanguageModel(*files).to("cpu")
    plain = torch.stack(BiLm.from_files(*files)(torch.from_numpy(ids), "present").activations, dim=1)
    for given in (ids.astype(np.int32), torch.from_numpy(ids)):
        model.reset_states()
        ops = model(given)
        close(ops["lm_embeddings"][0], plain[0, :, 1:-1])
        close(ops["token_embeddings"], plain[:, 0, :, :11])
        assert isinstance(ops, dict) and ops["lm_embeddings"].shape == (2, 3, 3, 22)
        assert ops["lengths"].tolist() == [3, 1] and ops["lengths"].dtype == torch.int64
        assert ops["mask"].tolist() == [[True] * 3, [True, False, False]]
        assert ops["token_embeddings"].shape == (2, 5, 11)


@row("`BidirectionalLanguageModel(..., use_character_inputs=False",
     "`dump_token_embeddings(vocab_file, options_file, weight_file, outfile)`",
     "`BidirectionalLanguageModel(..., max_batch_size=n)`")
def test_word_inputs(files, vocab, ids, tmp_path):
    dump_token_embeddings(vocab, *files, tmp_path / "table.hdf5")
    with h5py.File(tmp_path / "table.hdf5") as file:
        table = file["embedding"]
        assert table.shape == (10, 11) and table.dtype == np.float32
        close(torch.from_numpy(table[:]), BiLm.from_files(*files).encode(WORDS))
    model = BidirectionalLanguageModel(*files, use_character_inputs=False, max_batch_size=2,
                                       embedding_weight_file=tmp_path / "table.hdf5")
    words = TokenBatcher(vocab).batch_sentences(SENTENCES)
    close(model(words)["lm_embeddings"], BidirectionalLanguageModel(*files)(ids)["lm_embeddings"])
    with pytest.raises(ValueError, match=r"at most max_batch_size \(2\) sentences, got 3"):
        model(words[[0, 1, 1]])


@row("two placeholders", "`model._graphs[placeholder].lstm_init_states`", "nothing",
     "`sess.run(tf.global_variables_initializer())`")
def test_states(model, files, ids):
    first = model(ids, stream="context")["lm_embeddings"]
    close(model(ids, stream="question")["lm_embeddings"], first)
    again = model(ids, stream="context")["lm_embeddings"]
    assert (again - first).abs().max() > 1e-3
    states = model.lstm_init_states("question")
    assert [value.shape for value in states["forward"][1]] == [(128, 37), (128, 11)] and len(states["backward"]) == 2
    assert states["backward"][0][0][:2].all() and not states["backward"][0][0][2:].any()
    model.reset_states("context")
    close(model(ids, stream="context")["lm_embeddings"], first)
    model.reset_states()
    assert not model.lstm_init_states("question")["forward"][0][0].any()
    for state in ("zero", "warm"):
        alone = BidirectionalLanguageModel(*files, state=state)
        close(alone(ids)["lm_embeddings"], alone(ids)["lm_embeddings"])


@row("`sess.run(ops['token_embeddings'], ...)` alone")
def test_token_embeddings_alone(model, ids):
    close(model.token_embeddings(ids[:, 1:]), model(ids)["token_embeddings"][:, 1:])
    model.reset_states()
    model.token_embeddings(ids)
    assert not model.lstm_init_states()["forward"][0][0].any()


@row("`elmo = weight_layers('input', ops, l2_coef=0.0)`", "`weight_layers(..., use_top_only=True)`",
     "`with tf.variable_scope('', reuse=True)", "the next `session.run` of a training loop",
     "`tf.get_variable('input_ELMo_W')`", "`tf.trainable_variables()`",
     "`tf.get_collection(tf.GraphKeys.REGULARIZATION_LOSSES)`", "`tf.reset_default_graph()`")
def test_weighted_layers(files, model, ids):
    ops = model(ids)
    elmo = weight_layers("input", ops, l2_coef=0.5)
    close(elmo["weighted_op"], ops["lm_embeddings"].mean(1))
    own = model.variables["input"]
    assert {"variables.input_ELMo.W", "variables.input_ELMo.gamma"} < set(model.state_dict())
    own.W.data, own.gamma.data = torch.tensor([1.0, 0.0, -1.0]), torch.tensor([3.0])
    shares = torch.tensor([1.0, 0.0, -1.0]).softmax(0)
    model.reset_states()
    reused = weight_layers("input", model(ids), reuse=True)
    close(reused["weighted_op"], 3 * torch.einsum("k,nktd->ntd", shares, ops["lm_embeddings"]))
    close(elmo.weights(ops)["weighted_op"], reused["weighted_op"])
    assert reused["regularization_op"].item() == pytest.approx(0.5 * 2)
    top = weight_layers("top", ops, use_top_only=True)
    close(top["weighted_op"], ops["lm_embeddings"][:, -1])
    normed = weight_layers("normed", ops, do_layer_norm=True)["weighted_op"][ops["mask"]]
    assert normed.mean().abs() < 1e-5 and not torch.allclose(normed, ops["lm_embeddings"].mean(1)[ops["mask"]])
    assert [value.item() for value in model.variables.regularization_losses()] == [1.0, 0.0]
    trained = list(model.variables.parameters())
    assert len(trained) == 5 and all(value.requires_grad for value in trained)
    assert list(elmo.parameters()) == [own.W, own.gamma] and not any(
        value.requires_grad for value in model.bilm.parameters())
    other = BidirectionalLanguageModel(*files)
    assert weight_layers("input", other(ids)).weights is not own  # no graph: each model has its names


@row("layers read from a file and fed to `weight_layers`", "weights that a model of yours owns")
def test_weights_of_other_owners(model, ids):
    ops = model(ids)
    arrays = {name: ops[name].numpy() for name in ("lm_embeddings", "mask")}
    close(weight_layers("input", arrays)["weighted_op"], ops["lm_embeddings"].mean(1))
    close(LayerWeights(3, 0.1)(ops)["weighted_op"], ops["lm_embeddings"].mean(1))
    mine = Variables()
    weight_layers("input", arrays, variables=mine)
    assert [name for name, _ in mine.named_parameters()] == ["input_ELMo.W", "input_ELMo.gamma"]


@row("`dump_bilm_embeddings(")
def test_dumped_layers(files, vocab, tmp_path):
    (tmp_path / "text").write_text("the grey sea\nwind\n")
    dump_bilm_embeddings(vocab, tmp_path / "text", *files, tmp_path / "layers.hdf5")
    found, model = read_hdf5(tmp_path / "layers.hdf5"), BidirectionalLanguageModel(*files)
    assert list(found) == ["0", "1"] and found["0"].dtype == np.float32
    for key, sentence in zip(found, SENTENCES):
        close(torch.from_numpy(found[key]), model(Batcher(vocab, 50).batch_sentences([sentence]))["lm_embeddings"][0])


@row("`bin/restart.py` of a TensorFlow checkpoint", "`bin/run_test.py`, `bin/dump_weights.py` of a TensorFlow")
def test_a_checkpoint_of_tensorflow(tmp_path, capsys):
    """Its variables are made up: only TensorFlow reads the file itself."""
    folder, pattern, vocabulary = write_folder(tmp_path / "tf")
    import_values(made_up(), folder, tmp_path / "run", vocab_file=vocabulary)
    assert run(capsys, "train", tmp_path / "run", "--resume", "--train", pattern, "--max-steps", 8, "--quiet")[0] == 0
    assert checkpoint.in_order(tmp_path / "run")[-1].name == "step-00000008.pt"
    status, printed, _ = run(capsys, "perplexity", tmp_path / "run", pattern, "--batch-size", 2, "--quiet")
    assert status == 0 and "perplexity" in printed
    assert run(capsys, "export", tmp_path / "run", tmp_path / "exported")[0] == 0
    assert BiLm.from_model(tmp_path / "exported").num_layers == 3


@row("`InvalidNumberOfCharacters`")
def test_options_with_261_characters(files):
    assert data.InvalidNumberOfCharacters is ConfigurationError
    for count in (261, 262):
        assert Options.from_dict({**TINY, "char_cnn": {**TINY["char_cnn"], "n_characters": count}})


@row("`BidirectionalLanguageModelGraph`, `_pretrained_initializer`", "`bilm.training.LanguageModel`")
@pytest.mark.parametrize("module, name", [
    ("model", "BidirectionalLanguageModelGraph"), ("model", "_pretrained_initializer"), ("training", "LanguageModel"),
    ("training", "average_gradients"), ("training", "clip_grads"), ("training", "print_variable_summary")])
def test_parts_of_a_graph_are_an_import_error(module, name):
    with pytest.raises(ImportError, match=f"cannot import name '{name}'"):
        exec(f"from elmo_fast.compat.bilm.{module} import {name}")


@row("`train(options, data, n_gpus", "`test(options, ckpt_file, data, batch_size=256)`",
     "`load_options_latest_checkpoint(", "`dump_weights(dir, outfile)`")
def test_training_calls(trained, corpus, tmp_path):
    options, last = training.load_options_latest_checkpoint(trained)
    assert options["n_train_tokens"] == 24 and last.endswith("step-00000002.pt") and not (tmp_path / "log").exists()
    text = data.BidirectionalLMDataset(corpus[0], training.load_vocab(corpus[1], 12), test=True)
    assert 1 < training.test(options, last, text, batch_size=2) < 2 * 28
    training.dump_weights(trained, tmp_path / "weights.hdf5")
    found = read_weights(tmp_path / "weights.hdf5", Options.from_dict(options))
    assert all(np.array_equal(value, checkpoint.weights_of_run(trained)[1][name]) for name, value in found.items())


@row("`options['n_train_tokens']`")
def test_the_number_of_tokens_decides(corpus, tmp_path):
    text = data.BidirectionalLMDataset(corpus[0], training.load_vocab(corpus[1], 12))
    training.train({**OPTIONS, "n_train_tokens": 3 * 4 * 5}, text, 1, tmp_path / "run", tmp_path)
    assert checkpoint.in_order(tmp_path / "run")[-1].name == "step-00000005.pt"
    assert training._N_TRAIN_TOKENS == 768_648_884


@row("`python bin/train_elmo.py", "`python bin/restart.py --save_dir", "`python bin/run_test.py --save_dir",
     "`python bin/dump_weights.py --save_dir")
def test_scripts(corpus, tmp_path, monkeypatch, capsys):
    save, text = ("--save_dir", tmp_path / "run"), ("--vocab_file", corpus[1], "--train_prefix", corpus[0])
    counts = ("--n_gpus", 1, "--n_train_tokens", 24, "--n_epochs", 1, "--batch_size", 3)
    options = write_options(tmp_path / "o.json", OPTIONS)
    for arguments in (("train_elmo", *save, *text, *counts, "--options_file", options),
                      ("restart", *save, *text, *counts),
                      ("run_test", *save, *text[:2], "--test_prefix", corpus[0], "--batch_size", 4),
                      ("dump_weights", *save, "--outfile", tmp_path / "weights.hdf5")):
        monkeypatch.setattr(sys, "argv", ["bilm", *map(str, arguments)])
        __main__.main()
    assert checkpoint.in_order(tmp_path / "run")[-1].name == "step-00000004.pt"
    assert "AVERAGE PERPLEXITY = " in capsys.readouterr().out and (tmp_path / "weights.hdf5").is_file()
