"""Checkpoints of bilm-tf's training, imported as runs. Their variables are made up; TensorFlow is not needed."""

import json
import resource

import h5py
import numpy as np
import pytest
import torch

from elmo_fast.model.options import ConfigurationError
from elmo_fast.train.checkpoint import weights_of_run
from elmo_fast.train.import_tf import find_checkpoint, import_checkpoint
from elmo_fast.train.setup import start_or_resume
from tests.support import plain_training as plain
from tests.support.files import names, run
from tests.support.tf_checkpoints import (
    KINDS,
    OPTIONS,
    WORD_OPTIONS,
    accumulators,
    checkpoint_of,
    imported,
    made_up,
    names_of,
    restored,
    update,
    write_folder,
)
from tests.support.training import final, with_lstm, write_batches


def test_the_names_are_those_that_bilm_tf_saves():
    """As listed by TensorFlow from checkpoints that bilm-tf's own trainer wrote."""
    cell = "lm/RNN_1/rnn/multi_rnn_cell/cell_1/lstm_cell"
    found = names_of(OPTIONS)
    assert found["RNN_1/RNN/MultiRNNCell/Cell1/LSTMCell/W_0"] == f"{cell}/kernel"
    assert found["RNN_1/RNN/MultiRNNCell/Cell1/LSTMCell/B"] == f"{cell}/bias"
    assert found["RNN_1/RNN/MultiRNNCell/Cell1/LSTMCell/W_P_0"] == f"{cell}/projection/kernel"
    assert {"lm/char_embed", "lm/CNN/W_cnn_2", "lm/CNN/b_cnn_0", "lm/CNN_high_0/W_carry", "lm/CNN_high_0/b_transform",
            "lm/CNN_proj/W_proj", "lm/CNN_proj/b_proj", "lm/softmax/W", "lm/softmax/b"} < set(found.values())
    assert len(set(found.values())) == 1 + 6 + 4 + 2 + 2 * 2 * 3 + 2
    one_layer = with_lstm(OPTIONS, n_layers=1)
    for content, expected in (
        (one_layer, "lm/RNN_0/rnn/lstm_cell/projection/kernel"),
        ({**OPTIONS, "bidirectional": False}, "lm/rnn/multi_rnn_cell/cell_0/lstm_cell/projection/kernel"),
        ({**one_layer, "bidirectional": False}, "lm/rnn/lstm_cell/projection/kernel"),
    ):
        assert names_of(content)["RNN_0/RNN/MultiRNNCell/Cell0/LSTMCell/W_P_0"] == expected
    shared = names_of(KINDS["shared table"])
    assert shared["softmax/W"] == shared["embedding"] == "lm/embedding" and "lm/softmax/W" not in shared.values()


@pytest.mark.parametrize("kind", KINDS)
def test_every_variable_and_its_accumulator_arrive(kind, tmp_path):
    content = KINDS[kind]
    values = made_up(content)
    folder, done, _ = imported(tmp_path, values, content)
    assert (done.checkpoint, done.step, done.fresh_accumulators) == (tmp_path / "tf" / "model.ckpt-7", 7, 0)
    assert 2 * done.variables + 2 == len(values)
    assert names(folder) == ["checkpoints", "options.json", "run.json", "vocab.txt"]
    assert names(folder / "checkpoints") == ["step-00000007.pt"]
    trainer, (_, weights) = restored(folder), weights_of_run(folder)
    expected, found = names_of(content), accumulators(trainer)
    assert weights.keys() == expected.keys() == found.keys() and trainer.step_number == 7
    for name, tf_name in expected.items():
        assert np.array_equal(weights[name], values[tf_name]), name
        assert np.array_equal(trainer.model.weights()[name], values[tf_name]), name
        assert np.array_equal(found[name], values[f"{tf_name}/Adagrad"]), name


@pytest.mark.parametrize("content", [OPTIONS, WORD_OPTIONS], ids=["characters", "words"])
def test_the_next_updates_are_adagrads_from_its_accumulators(content, tmp_path):
    """Sampled softmax: the loss in NumPy, and the update in float64 from gradients of the reference."""
    content = with_lstm(content, cell_clip=0.2, proj_clip=0.05)
    values = made_up(content)
    trainer = restored(imported(tmp_path, values, content)[0])
    config, tf = trainer.model.config, names_of(content)
    weights = {name: values[tf_name].astype(np.float64) for name, tf_name in tf.items()}
    sums = {name: values[f"{tf_name}/Adagrad"].astype(np.float64) for name, tf_name in tf.items()}
    for number, batch in enumerate(write_batches(config, tmp_path / "more", count=2)):
        gradients = plain.gradients(trainer.model, batch)
        losses, _ = update(trainer, batch)
        if not number:
            expected, _ = plain.losses(weights, config, batch, plain.zero_states(config))
            np.testing.assert_allclose(losses, expected, rtol=3e-6)
        norm = np.sqrt(sum(float((gradient**2).sum()) for gradient in gradients.values()))
        assert norm > 0.5
        for name, gradient in gradients.items():
            gradient = gradient.numpy() * 0.5 / norm
            sums[name] += gradient**2
            weights[name] -= 0.2 * gradient / np.sqrt(sums[name])
    found = accumulators(trainer)
    for name, value in trainer.model.weights().items():
        np.testing.assert_allclose(value, weights[name], atol=3e-6, err_msg=name)
        np.testing.assert_allclose(found[name], sums[name], rtol=3e-6, err_msg=name)


def test_training_continues_and_resumes_exactly(tmp_path, capsys, caplog):
    folder, pattern, vocabulary = write_folder(tmp_path / "tf")
    (folder / "vocab.txt").write_bytes(vocabulary.read_bytes())  # found there without being named
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    with checkpoint_of(made_up()):
        for output in (whole, parts):
            import_checkpoint(folder, output)
    first = {"resume": True, "train": [pattern], "heldout": [pattern], "evaluate_batch_size": 5, "batch_size": 4,
             "accumulate": 2, "learning_rate": 0.1, "log_every": 1, "quiet": True}
    start_or_resume(whole, **first, max_steps=13)
    start_or_resume(parts, **first, max_steps=10)
    start_or_resume(parts, resume=True, max_steps=13)
    (state, log), (other, _) = final(whole), final(parts)
    assert state["step"] == other["step"] == 13 and len(state["streams"]) == 2
    assert all(torch.equal(value, other["weights"][name]) for name, value in state["weights"].items())
    trained = [(line["step"], line["learning_rate"]) for line in log if line["kind"] == "train"]
    assert trained == [(step, 0.1) for step in range(8, 14)]
    assert json.loads((whole / "options.json").read_text())["batch_size"] == 4
    assert json.loads((whole / "run.json").read_text())["train"] == [pattern]
    status, _, errors = run(capsys, "train", whole, "--resume", "--train", pattern)
    assert status == 2 and "--train: expected no such argument beside --resume" in errors
    start_or_resume(whole, resume=True)
    assert "step 13 of 13, so there is nothing left to do" in caplog.text


def test_a_run_without_a_text_needs_one(tmp_path, capsys):
    folder, _, pattern = imported(tmp_path, made_up())
    vocabulary, resume = tmp_path / "text" / "vocab.txt", ["--resume", "--train", pattern]
    before = (folder / "options.json").read_bytes()
    for arguments, message in (
        (["--resume"], "--train: expected files beside --resume, since this run was imported without a text"),
        ([*resume, "--optimizer", "adamw"], "--optimizer: expected no such argument beside --resume"),
        ([*resume, "--vocab", vocabulary], "--vocab: expected no such argument beside --resume"),
        (["--resume", "--train", tmp_path / "no*.txt"], "expected"),
        ([*resume, "--negatives", 29], "expected at most the 28 words of the vocabulary"),
        (["--train", pattern, "--vocab", vocabulary], "expected a new directory, found checkpoints"),
    ):
        status, _, errors = run(capsys, "train", folder, *arguments)
        assert status == 2 and message in errors and errors.count("\n") == 1, errors
    assert (folder / "options.json").read_bytes() == before


def test_an_imported_run_is_evaluated_and_exported(tmp_path, capsys):
    values = made_up()
    folder, _, pattern = imported(tmp_path, values)
    status, out, errors = run(capsys, "perplexity", folder, pattern, "--batch-size", 5, "--quiet")
    assert status == 0 and out.startswith("perplexity "), errors
    status, _, errors = run(capsys, "export", folder, tmp_path / "out", "--softmax")
    assert status == 0, errors
    out = tmp_path / "out"
    with h5py.File(out / "weights.hdf5") as weights, h5py.File(out / "softmax.hdf5") as softmax:
        for name, tf_name in names_of(OPTIONS).items():
            found = (softmax if name.startswith("softmax") else weights)[name][...]
            assert np.array_equal(found, values[tf_name]), name
        assert weights["char_embed"].shape[0] == 261


def test_options_have_bilm_tfs_defaults(tmp_path):
    """One direction, no skip connections, no clips, one layer where the options are silent."""
    content = {**{key: value for key, value in WORD_OPTIONS.items() if key not in ("bidirectional", "learning_rate")},
               "lstm": {"dim": 12, "projection_dim": 5}}
    values = made_up(with_lstm(content, n_layers=1, use_skip_connections=False))
    config, weights = weights_of_run(imported(tmp_path, values, content)[0])
    assert not config.bidirectional and not config.model.lstm.use_skip_connections and config.model.lstm.n_layers == 1
    assert config.model.lstm.cell_clip is None and config.training.learning_rate == 0.2
    assert np.array_equal(weights["RNN_0/RNN/MultiRNNCell/Cell0/LSTMCell/W_0"], values["lm/rnn/lstm_cell/kernel"])


KERNEL = "lm/RNN_0/rnn/multi_rnn_cell/cell_1/lstm_cell/kernel"
NO_ACCUMULATORS = {name: None for name in made_up() if name.endswith("/Adagrad")}


@pytest.mark.parametrize("changes, message", [
    ({KERNEL: None}, f"expected the variable {KERNEL}, which the options require, found global_step and"),
    ({KERNEL: np.zeros((10, 44), np.float32)}, rf"variable {KERNEL}: expected shape \(10, 48\), found \(10, 44\)"),
    ({"lm/char_embed": np.zeros((262, 3), np.float32)}, r"lm/char_embed: expected shape \(261, 3\), found \(262, 3\)"),
    ({f"{KERNEL}/Adagrad": np.ones((10, 44), np.float32)}, rf"{KERNEL}/Adagrad: expected shape \(10, 48\)"),
    ({KERNEL.replace("cell_1", "cell_2"): np.zeros((10, 48), np.float32)},
     r"expected the variables that the options require \(2 LSTM layers\), found .*cell_2/lstm_cell/kernel beside them"),
    ({f"{KERNEL}/Adagrad": None}, f"found none named {KERNEL}/Adagrad; --fresh-accumulators begins them at 1"),
    (NO_ACCUMULATORS, "found none named lm/CNN/W_cnn_0/Adagrad and 26 more; --fresh-accumulators begins them at 1"),
    ({"lm/softmax/b/Adagrad": np.zeros(28, np.float32)}, "softmax/b/Adagrad: expected numbers above 0, found 0.0"),
    ({"lm/softmax/b/Adagrad": np.full(28, np.nan, np.float32)}, "b/Adagrad: expected numbers above 0, found nan"),
    ({"lm/softmax/b": np.zeros(28, np.int64)}, "lm/softmax/b: expected floating-point numbers, found int64"),
    ({"global_step": np.float32("nan")}, "global_step: expected a number of steps"),
], ids=str)
def test_variables_that_do_not_fit(changes, message, tmp_path):
    with pytest.raises(ConfigurationError, match=message):
        imported(tmp_path, made_up(**changes))
    assert names(tmp_path) == ["text", "tf"]


def test_missing_accumulators_begin_at_one_on_request(tmp_path):
    """Those of another optimizer are then ignored."""
    values = made_up(**{f"{KERNEL}/Adagrad": None, f"{KERNEL}/Adam": np.zeros((10, 48)),
                        "beta1_power": np.float32(0.9)})
    folder, done, _ = imported(tmp_path, values, fresh_accumulators=True)
    assert done.fresh_accumulators == 1
    found = accumulators(restored(folder))
    for name, tf_name in names_of(OPTIONS).items():
        expected = np.ones((10, 48)) if tf_name == KERNEL else values[f"{tf_name}/Adagrad"]
        assert np.array_equal(found[name], expected), name


def test_without_a_counter_the_step_is_in_the_name(tmp_path):
    folder, pattern, vocabulary = write_folder(tmp_path / "tf")
    (folder / "model.index").write_bytes(b"")
    with checkpoint_of(made_up(global_step=None)):
        assert import_checkpoint(folder, tmp_path / "one", vocab_file=vocabulary).step == 7
        assert import_checkpoint(folder / "model", tmp_path / "two", vocab_file=vocabulary).step == 0
    start_or_resume(tmp_path / "two", resume=True, train=[pattern], max_steps=2, quiet=True)
    assert final(tmp_path / "two")[0]["step"] == 2


def test_a_checkpoint_is_found_by_directory_prefix_or_file(tmp_path):
    folder, *_ = write_folder(tmp_path / "tf", state='model_checkpoint_path: "/another/machine/tf/model.ckpt-7"\n'
                                                     'all_model_checkpoint_paths: "/another/machine/tf/model.ckpt-5"\n')
    (folder / "model.ckpt-5.index").write_bytes(b"")
    assert find_checkpoint(folder) == folder / "model.ckpt-7"
    for ending in ("", ".index", ".meta", ".data-00000-of-00001"):
        assert find_checkpoint(folder / f"model.ckpt-5{ending}") == folder / "model.ckpt-5"
    (folder / "old.ckpt-3").write_bytes(b"")  # the format of a single file
    assert find_checkpoint(folder / "old.ckpt-3") == folder / "old.ckpt-3"


def test_what_is_missing_is_named_in_a_line(tmp_path, capsys):
    folder, _, vocabulary = write_folder(tmp_path / "tf", state=None)
    (tmp_path / "empty").mkdir()
    bare, *_ = write_folder(tmp_path / "bare", state='model_checkpoint_path: "model.ckpt-9"\n')
    other, *_ = write_folder(tmp_path / "other", {**OPTIONS, "n_tokens_vocab": None})
    ready, *_ = write_folder(tmp_path / "ready")
    (tmp_path / "short.txt").write_text("<S>\n</S>\n<UNK>\n")
    out = tmp_path / "out"
    for arguments, message in (
        ([folder, out], f"expected a file named checkpoint in {folder}, found the checkpoints model.ckpt-7: name one"),
        ([tmp_path / "empty", out], "found no checkpoint"),
        ([bare, out], "expected model.ckpt-9, which"),
        ([tmp_path / "absent", out], "expected a directory of bilm-tf's, or a checkpoint's path such as"),
        ([ready, tmp_path / "text"], "output: expected a new directory, found"),
        ([ready, out], "--vocab: expected the vocabulary that the model was trained with"),
        ([ready, out, "--vocab", tmp_path / "short.txt"], "expected the 28 words of the softmax, got 3"),
        ([ready, out, "--options-file", tmp_path / "no.json"], "expected bilm-tf's options.json, found none"),
        ([other, out, "--vocab", vocabulary], "n_tokens_vocab: expected the number of words"),
        ([ready, out, "--options-file", vocabulary], "expected JSON"),
    ):
        status, _, errors = run(capsys, "import-tf", *arguments)
        assert status == 2 and message in errors and errors.count("\n") == 1, errors
    assert not out.exists()


def test_a_full_disk_leaves_nothing(tmp_path):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (6000, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            imported(tmp_path, made_up())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert names(tmp_path) == ["text", "tf"]
