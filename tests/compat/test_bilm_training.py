"""bilm-tf's `train`, `test` and its scripts, beside loops over the plain rows of the text."""

import inspect
import re
import sys

import h5py
import numpy as np
import pytest
import torch

from elmo_fast import ConfigurationError
from elmo_fast.compat.bilm import __main__ as scripts
from elmo_fast.compat.bilm import training
from elmo_fast.compat.bilm.data import BidirectionalLMDataset, LMDataset
from elmo_fast.compat.bilm.import_tf import bilm_tf_config
from elmo_fast.text.corpus import read_shards
from elmo_fast.train import checkpoint, evaluate
from elmo_fast.train.model import LanguageModel, initial_weights
from elmo_fast.train.optimizer import Replicas, Updater
from elmo_fast.weights.datasets import read_weights
from elmo_fast.weights.options import Options
from tests.support import plain_training
from tests.support.files import names
from tests.support.training import KINDS, VOCABULARY, write_corpus, write_options


@pytest.fixture
def corpus(tmp_path):
    """A glob that matches one file, and its vocabulary."""
    return write_corpus(tmp_path / "text", shards=1)


def options_of(kind, **changes):
    """A test's options, of three batches."""
    return {"bidirectional": True, **KINDS[kind], "n_tokens_vocab": VOCABULARY, "dropout": 0, "n_epochs": 1,
            "all_clip_norm_val": 1.0, "n_train_tokens": 3 * 3 * 4, **changes}


def data_of(options, corpus, **options_of_data):
    vocab = training.load_vocab(corpus[1], options.get("char_cnn", {}).get("max_characters_per_token"))
    return (BidirectionalLMDataset if options["bidirectional"] else LMDataset)(corpus[0], vocab, **options_of_data)


def plain_run(options, corpus, folder, gpus, runs):
    """Weights after `runs` times three steps, each run from zero states and the start of the text."""
    config, vocabulary = bilm_tf_config({**options, "accumulate": gpus}, "options"), training.load_vocab(corpus[1])
    settings = config.training
    model = LanguageModel(config, initial_weights(config, settings.seed))
    updater, numbering, step = Updater(model, settings, Replicas(torch.device("cpu"))), model.numbering(
        vocabulary, settings.n_negative_samples_batch if settings.sample_softmax else None), 0
    size = settings.batch_size
    for _ in range(runs):
        states = [model.zero_state(size) for _ in range(gpus)]
        ways = [plain_training.sentences(folder, reverse) * 9 for reverse in (False, True)[: model.directions]]
        batches = [plain_training.rows(way, size * gpus, settings.unroll_steps, batches=3) for way in ways]
        for texts in zip(*batches):
            used = []
            for k in range(gpus):
                own = [[[pair[side] for row in rows[k * size : (k + 1) * size] for pair in row] for side in (0, 1)]
                       for rows in texts]
                batch = numbering.batch(own, size, np.zeros(0), k, step)
                losses, states[k], more = model.losses(batch, states[k], None)
                (losses.mean() * settings.unroll_steps / gpus).backward()
                used += more
            updater.step(used, settings.learning_rate)
            step += 1
    return model.weights()


@pytest.mark.parametrize("kind, gpus", [
    ("characters", 2), ("words", 1), ("shared table", 2), *(pytest.param(kind, 1, marks=pytest.mark.long) for kind in (
        "characters", "one direction", "full softmax"))])  # also trained by tests/train
def test_train_restart_and_test(tmp_path, corpus, kind, gpus):
    options, folder = options_of(kind), tmp_path / "run"
    options["n_train_tokens"] *= gpus
    assert training._N_TRAIN_TOKENS == 768_648_884 and list(inspect.signature(training.train).parameters) == [
        "options", "data", "n_gpus", "tf_save_dir", "tf_log_dir", "restart_ckpt_file"]
    training.train(options, data_of(options, corpus), gpus, folder, tmp_path / "log")
    for times in (1, 2):
        config, last = training.load_options_latest_checkpoint(folder)
        assert last.endswith(f"step-{3 * times:08d}.pt") and not (tmp_path / "log").exists()
        assert config["n_train_tokens"] == options["n_train_tokens"]
        expected = plain_run(options, corpus, tmp_path / "text", gpus, times)
        weights = checkpoint.read(last)["weights"]
        assert weights.keys() == expected.keys()
        for name, values in expected.items():
            np.testing.assert_allclose(weights[name].numpy(), values, rtol=0, atol=2e-6, err_msg=name)
        if times == 1:
            training.train(config, data_of(options, corpus), gpus, folder, folder, restart_ckpt_file=last)
    model, vocabulary = checkpoint.load_language_model(folder)
    total = evaluate.perplexity(model, read_shards(corpus[0], "text"), vocabulary, 5).total
    assert training.test(config, last, data_of(options, corpus, test=True), batch_size=5) == pytest.approx(total, 1e-6)


@pytest.mark.parametrize("n_characters, n_layers", [(261, 2), (262, 1)])
def test_dumped_weights(tmp_path, corpus, n_characters, n_layers):
    options = options_of("characters")
    options["lstm"] = {**options["lstm"], "n_layers": n_layers}
    options["char_cnn"] = {**options["char_cnn"], "n_characters": n_characters}
    training.train(options, data_of(options, corpus), 1, tmp_path / "run")
    training.dump_weights(tmp_path / "run", tmp_path / "weights.hdf5")
    arrays = read_weights(tmp_path / "weights.hdf5", Options.from_dict(options))
    _, weights = checkpoint.weights_of_run(tmp_path / "run")
    assert arrays.keys() == {name for name in weights if not name.startswith("softmax")}
    for name, values in arrays.items():
        np.testing.assert_array_equal(values, weights[name])
    with h5py.File(tmp_path / "weights.hdf5") as file:  # as bilm-tf names them
        assert list(file["RNN_0/RNN"]) == ["MultiRNNCell" if n_layers > 1 else "LSTMCell"]
    options = options_of("one direction")
    training.train(options, data_of(options, corpus), 1, tmp_path / "forward")
    with pytest.raises(ConfigurationError, match="expected a model of two directions"):
        training.dump_weights(tmp_path / "forward", tmp_path / "none.hdf5")


def test_scripts(tmp_path, corpus, monkeypatch, capsys, caplog):
    """Every flag of bilm-tf's four scripts. Options of published models have no key `bidirectional`."""
    def script(*arguments):
        monkeypatch.setattr(sys, "argv", ["bilm", *map(str, arguments)])
        assert scripts.main() == 0
        return capsys.readouterr().out

    file = write_options(tmp_path / "o.json", without(KINDS["characters"], "bidirectional"), dropout=0)
    save, text = ("--save_dir", tmp_path / "run"), ("--vocab_file", corpus[1], "--train_prefix", corpus[0])
    counts = ("--n_gpus", 2, "--n_train_tokens", 2 * 3 * 2 * 4, "--n_epochs", 2, "--batch_size", 3)
    script("train_elmo", *save, *text, *counts, "--options_file", file)
    options, last = training.load_options_latest_checkpoint(tmp_path / "run")
    assert last.endswith("step-00000004.pt") and options["bidirectional"] and "no key bidirectional" in caplog.text
    script("restart", *save, *text, "--n_gpus", 2, "--n_epochs", 1)
    config, last = training.load_options_latest_checkpoint(tmp_path / "run")
    assert last.endswith("step-00000006.pt")
    out = script("run_test", *save, "--vocab_file", corpus[1], "--test_prefix", corpus[0], "--batch_size", 4)
    perplexity = training.test(config, last, data_of(config, corpus, test=True), 4)
    assert out.endswith(f"AVERAGE PERPLEXITY = {perplexity}\n")
    script("dump_weights", *save, "--outfile", tmp_path / "weights.hdf5")
    assert "RNN_1/RNN/MultiRNNCell/Cell0/LSTMCell/B" in read_weights(tmp_path / "weights.hdf5",
                                                                     Options.from_dict(config))


@pytest.mark.parametrize("arguments, message", [
    (["fly"], "unknown command 'fly'"),
    (["restart", "--save_dir", "none"], "the following arguments are required: --vocab_file, --train_prefix"),
    (["dump_weights", "--save_dir", "none", "--outfile", "o"], "tf_save_dir: expected a directory that train wrote"),
    (["dump_weights", "--save_dir", "a", "--outfile", "b", "c.txt"], "unrecognized arguments: c.txt; quote a glob"),
    (["train_elmo", "--save_dir", "new", "--vocab_file", "VOCAB", "--train_prefix", "none*"],
     "filepattern: expected files of text, found none"),
    (["train_elmo", "--save_dir", "new", "--vocab_file", "TEXT", "--train_prefix", "TEXT"],
     "vocabulary: expected a file, found nothing"),
    (["train_elmo", "--save_dir", "new", "--vocab_file", "VOCAB", "--train_prefix", "TEXT", "--options_file", "VOCAB"],
     "expected JSON"),
])
def test_a_wrong_call_is_refused_in_one_line(tmp_path, corpus, monkeypatch, capsys, arguments, message):
    monkeypatch.chdir(tmp_path)
    places = {"TEXT": corpus[0], "VOCAB": str(corpus[1])}
    monkeypatch.setattr(sys, "argv", ["bilm", *(places.get(argument, argument) for argument in arguments)])
    try:
        status = scripts.main()
    except SystemExit as stop:
        status = stop.code
    error = capsys.readouterr().err
    assert status == 2 and error.count("\n") == 1 and error.startswith("bilm: error: ") and re.search(message, error)
    assert names(tmp_path) == ["text"]


def without(options, *keys):
    return {name: value for name, value in options.items() if name not in keys}


@pytest.mark.parametrize("kind, directions", [("characters", "two-direction"), ("one direction", "forward")])
def test_data_and_checkpoint_decide_the_directions_without_the_key(tmp_path, corpus, caplog, kind, directions):
    options = options_of(kind)
    silent = without(options, "bidirectional")
    training.train(silent, data_of(options, corpus), 1, tmp_path / "silent")
    assert f"no key bidirectional: training a {directions} model" in caplog.text
    training.train(options, data_of(options, corpus), 1, tmp_path / "named")
    config, last = training.load_options_latest_checkpoint(tmp_path / "silent")
    assert config["bidirectional"] == options["bidirectional"]
    weights = checkpoint.read(training.load_options_latest_checkpoint(tmp_path / "named")[1])["weights"]
    for name, values in checkpoint.read(last)["weights"].items():
        np.testing.assert_array_equal(values, weights[name])
    results = [training.test(content, last, data_of(options, corpus, test=True), 4) for content in (silent, config)]
    assert results[0] == results[1]


def test_refuses(tmp_path, corpus):
    options = options_of("characters")
    data = data_of(options, corpus)
    wrong = [
        ({**options, "share_embedding_softmax": True}, data, "share_embedding_softmax: expected false for a model"),
        ({**options, "n_tokens_vocab": 9}, data, f"n_tokens_vocab: expected the {VOCABULARY} words of the data's"),
        ({**options, "n_train_tokens": "36"}, data, "n_train_tokens: expected a number, got '36'"),
        ({**options, "sample_softmax": None}, data, "sample_softmax: expected a value, or no such key, got null"),
        ({**options, "optimizer": "adamw"}, data, "optimizer: expected adagrad, as in bilm-tf, got 'adamw'"),
        ({**options, "n_train_tokens": 3}, data, "n_train_tokens: expected enough for a batch of 3 x 4 x 1 tokens"),
        (options, data_of(options_of("words"), corpus),
         r"data: expected tokens_characters and tokens_characters_reverse of shape \[rows, steps, 12\]"),
        (options, data_of({**options, "bidirectional": False}, corpus), "data: expected tokens_characters and"),
        (options, data_of({**options, "char_cnn": {"max_characters_per_token": 9}}, corpus), "data: expected token"),
        ({**options, "n_epochs": 99}, data_of(options, corpus, test=True), "data: expected batches without end"),
    ]
    for content, batches, message in wrong:
        with pytest.raises(ConfigurationError, match=message):
            training.train(content, batches, 1, tmp_path / "new")
    with pytest.raises(ValueError, match="n_gpus: expected an integer of at least 1, got 0"):
        training.train(options, data, 0, tmp_path / "new")
    with pytest.raises(FileNotFoundError, match="tf_save_dir: expected a directory that train wrote, found no checkp"):
        training.load_options_latest_checkpoint(tmp_path)
    training.train(options, data, 1, tmp_path / "run")
    config, last = training.load_options_latest_checkpoint(tmp_path / "run")
    with pytest.raises(ConfigurationError, match="tf_save_dir: expected a directory without checkpoints"):
        training.train(options, data, 1, tmp_path / "run")
    with pytest.raises(ValueError, match="batch_size: expected at most the number of sentences of the data, got 99"):
        training.test(config, last, data_of(options, corpus, test=True), 99)
