"""Checkpoints of bilm-tf's training, made runs: by hand without TensorFlow, and beside TensorFlow where it is there."""

import contextlib
import importlib.util
import json
import os
import resource
import stat
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch

from elmo_fast.model.options import ConfigurationError
from elmo_fast.text.vocabulary import Vocabulary
from elmo_fast.train import checkpoint
from elmo_fast.train.import_tf import import_checkpoint, tf_names
from elmo_fast.train.model import LanguageModel, initial_weights
from elmo_fast.train.checkpoint import weights_of_run
from elmo_fast.train.config import TrainConfig, read_json
from elmo_fast.train.log import read_log
from elmo_fast.train.replicas import Replicas
from elmo_fast.train.setup import start_or_resume
from elmo_fast.train.import_tf import PYTHON_VARIABLE, Variables, find_checkpoint, open_checkpoint
from elmo_fast.train.loop import Trainer
from tests.support.files import names, run
from tests.train.test_train_loss import batches_of, plain_gradients, plain_losses, zero_states
from tests.support.training import TINY, WORD_INPUT, final, write_corpus

WORDS = 28
OPTIONS = {**TINY, "bidirectional": True, "n_tokens_vocab": WORDS, "dropout": 0.0, "learning_rate": 0.2,
           "all_clip_norm_val": 0.5, "n_epochs": 3, "n_train_tokens": 1000}
WORD_OPTIONS = {key: value for key, value in OPTIONS.items() if key != "char_cnn"}
FULL = {"sample_softmax": False}


def lstm(content=OPTIONS, **changes):
    return {**content, "lstm": {**content["lstm"], **changes}}


KINDS = {
    "characters": {**OPTIONS, **FULL},
    "words": {**WORD_OPTIONS, **FULL},
    "one layer": {**lstm(n_layers=1), **FULL},
    "one layer of words": {**lstm(WORD_OPTIONS, n_layers=1), **FULL},
    "no projection": {**lstm(dim=5), **FULL},
    "three layers, no skip": {**lstm(n_layers=3, use_skip_connections=False), **FULL},
    "one direction": {**OPTIONS, **FULL, "bidirectional": False},
    "one direction, one layer": {**lstm(WORD_OPTIONS, n_layers=1), **FULL, "bidirectional": False},
    "shared table": {**WORD_OPTIONS, **FULL, "share_embedding_softmax": True},
    "tanh": {**OPTIONS, **FULL, "char_cnn": {**OPTIONS["char_cnn"], "activation": "tanh", "n_highway": 2}},
}


def plan_of(content):
    return TrainConfig.from_dict({"bidirectional": False, **content})


def restored(folder):
    """A trainer without a text, where the last checkpoint of a run stands."""
    plan = TrainConfig.from_dict(read_json(folder / "options.json"))
    vocabulary = Vocabulary(folder / "vocab.txt", validate_file=True)
    trainer = Trainer(LanguageModel(plan, initial_weights(plan, 9)), [], vocabulary, Replicas(torch.device("cpu")))
    trainer.restore(checkpoint.read(checkpoint.choose(folder)))
    return trainer


def slots(trainer):
    return {name: trainer.updater.optimizer.state[parameter]["sum"].numpy()
            for name, parameter in trainer.model.by_name().items()}


# ---- without TensorFlow --------------------------------------------------------------------


def made_up(content, seed=0):
    """Variables of a checkpoint of bilm-tf's, of random values, by TensorFlow's names."""
    plan, generator = plan_of(content), np.random.default_rng(seed)
    weights = initial_weights(plan, seed)
    found = {tf_name: weights[name] + generator.normal(0, 0.1, weights[name].shape).astype(np.float32)
             for name, tf_name in tf_names(plan).items()}
    found.update({f"{name}/Adagrad": generator.uniform(1, 5, value.shape).astype(np.float32)
                  for name, value in list(found.items())})
    return {**found, "global_step": np.float32(7), "train_perplexity": np.float32(3)}


def opener(values):
    """What reads a checkpoint out of a dictionary."""
    arrays = {name: np.asarray(value) for name, value in values.items()}
    return lambda prefix: contextlib.nullcontext(Variables(prefix, arrays))


def write_folder(folder, content=OPTIONS, state='model_checkpoint_path: "model.ckpt-7"\n'):
    """bilm-tf's directory with a checkpoint that only a stand-in can read, and the text and vocabulary beside it."""
    folder.mkdir()
    (folder / "options.json").write_text(json.dumps(content))
    (folder / "model.ckpt-7.index").write_bytes(b"")
    if state:
        (folder / "checkpoint").write_text(state)
    return folder, *write_corpus(folder.parent / "text")


def test_the_names_are_those_that_bilm_tf_saves():
    """As listed by TensorFlow from checkpoints that bilm-tf's own trainer wrote."""
    cell = "lm/RNN_1/rnn/multi_rnn_cell/cell_1/lstm_cell"
    found = tf_names(plan_of(OPTIONS))
    assert found["RNN_1/RNN/MultiRNNCell/Cell1/LSTMCell/W_0"] == f"{cell}/kernel"
    assert found["RNN_1/RNN/MultiRNNCell/Cell1/LSTMCell/B"] == f"{cell}/bias"
    assert found["RNN_1/RNN/MultiRNNCell/Cell1/LSTMCell/W_P_0"] == f"{cell}/projection/kernel"
    assert {"lm/char_embed", "lm/CNN/W_cnn_2", "lm/CNN/b_cnn_0", "lm/CNN_high_0/W_carry", "lm/CNN_high_0/b_transform",
            "lm/CNN_proj/W_proj", "lm/CNN_proj/b_proj", "lm/softmax/W", "lm/softmax/b"} < set(found.values())
    assert len(set(found.values())) == 1 + 6 + 4 + 2 + 2 * 2 * 3 + 2
    for content, expected in (
        (lstm(n_layers=1), "lm/RNN_0/rnn/lstm_cell/projection/kernel"),
        ({**OPTIONS, "bidirectional": False}, "lm/rnn/multi_rnn_cell/cell_0/lstm_cell/projection/kernel"),
        ({**lstm(n_layers=1), "bidirectional": False}, "lm/rnn/lstm_cell/projection/kernel"),
    ):
        assert tf_names(plan_of(content))["RNN_0/RNN/MultiRNNCell/Cell0/LSTMCell/W_P_0"] == expected
    shared = tf_names(plan_of(KINDS["shared table"]))
    assert shared["softmax/W"] == shared["embedding"] == "lm/embedding" and "lm/softmax/W" not in shared.values()


@pytest.mark.parametrize("kind", KINDS)
def test_every_variable_and_its_slot_arrive(kind, tmp_path):
    content = KINDS[kind]
    folder, _, vocabulary = write_folder(tmp_path / "tf", content)
    values = made_up(content)
    done = import_checkpoint(folder, tmp_path / "run", vocab_file=vocabulary, opener=opener(values))
    assert (done.checkpoint, done.step, done.fresh_accumulators) == (folder / "model.ckpt-7", 7, 0)
    assert 2 * done.variables + 2 == len(values)
    assert names(tmp_path / "run") == ["checkpoints", "options.json", "run.json", "vocab.txt"]
    assert names(tmp_path / "run" / "checkpoints") == ["step-00000007.pt"]
    trainer, (_, weights) = restored(tmp_path / "run"), weights_of_run(tmp_path / "run")
    expected, found = tf_names(plan_of(content)), slots(trainer)
    assert weights.keys() == expected.keys() == found.keys() and trainer.step_number == 7
    for name, tf_name in expected.items():
        assert np.array_equal(weights[name], values[tf_name]), name
        assert np.array_equal(trainer.model.weights()[name], values[tf_name]), name
        assert np.array_equal(found[name], values[f"{tf_name}/Adagrad"]), name


@pytest.mark.parametrize("content", [OPTIONS, WORD_OPTIONS], ids=["characters", "words"])
def test_the_next_updates_are_adagrads_from_its_accumulators(content, tmp_path):
    """Sampled softmax: the loss in NumPy, and the update in float64 from gradients of the reference."""
    content = {**content, "lstm": {**content["lstm"], "cell_clip": 0.2, "proj_clip": 0.05}}
    folder, _, vocabulary = write_folder(tmp_path / "tf", content)
    values = made_up(content)
    import_checkpoint(folder, tmp_path / "run", vocab_file=vocabulary, opener=opener(values))
    trainer = restored(tmp_path / "run")
    of, names_ = trainer.model.config, tf_names(trainer.model.config)
    weights = {name: values[tf_name].astype(np.float64) for name, tf_name in names_.items()}
    sums = {name: values[f"{tf_name}/Adagrad"].astype(np.float64) for name, tf_name in names_.items()}
    for number, batch in enumerate(batches_of(of, tmp_path / "more", count=2)[1]):
        losses, _, touched = trainer.model.losses(batch, trainer.model.zero_state(3), None)
        if not number:
            expected, _ = plain_losses(weights, of, batch, zero_states(of))
            np.testing.assert_allclose(losses.detach().numpy(), expected, rtol=3e-6)
        gradients = plain_gradients(trainer.model, batch, lambda x: x, of.training.unroll_steps)
        (losses.mean() * of.training.unroll_steps).backward()
        trainer.updater.step(touched, of.training.learning_rate)
        norm = np.sqrt(sum(float((each**2).sum()) for each in gradients.values()))
        assert norm > 0.5
        for name, gradient in gradients.items():
            gradient = gradient.numpy() * min(1, 0.5 / norm)
            sums[name] += gradient**2
            weights[name] -= 0.2 * gradient / np.sqrt(sums[name])
    found = slots(trainer)
    for name, value in trainer.model.weights().items():
        np.testing.assert_allclose(value, weights[name], atol=3e-6, err_msg=name)
        np.testing.assert_allclose(found[name], sums[name], rtol=3e-6, err_msg=name)


def test_training_goes_on_and_resumes_exactly(tmp_path, capsys, caplog):
    folder, pattern, vocabulary = write_folder(tmp_path / "tf")
    (folder / "vocab.txt").write_bytes(vocabulary.read_bytes())  # found there without being named
    for name in ("whole", "parts"):
        import_checkpoint(folder, tmp_path / name, opener=opener(made_up(OPTIONS)))
    text = {"train": [pattern], "heldout": [pattern], "evaluate_batch_size": 5}
    changes = {"batch_size": 4, "accumulate": 2, "learning_rate": 0.1, "log_every": 1, "quiet": True}
    start_or_resume(tmp_path / "whole", resume=True, **text, **changes, max_steps=13)
    start_or_resume(tmp_path / "parts", resume=True, **text, **changes, max_steps=10)
    start_or_resume(tmp_path / "parts", resume=True, max_steps=13)
    (whole, log), (parts, _) = final(tmp_path / "whole"), final(tmp_path / "parts")
    assert whole["step"] == parts["step"] == 13 and len(whole["streams"]) == 2
    assert all(torch.equal(value, parts["weights"][name]) for name, value in whole["weights"].items())
    assert [line["step"] for line in log if line["kind"] == "train"] == [8, 9, 10, 11, 12, 13]
    assert all(line["learning_rate"] == 0.1 for line in log if line["kind"] == "train")
    assert json.loads((tmp_path / "whole" / "options.json").read_text())["batch_size"] == 4
    assert json.loads((tmp_path / "whole" / "run.json").read_text())["train"] == [pattern]
    status, _, errors = run(capsys, "train", tmp_path / "whole", "--resume", "--train", pattern)
    assert status == 2 and "--train: expected no such argument beside --resume" in errors
    start_or_resume(tmp_path / "whole", resume=True)
    assert "step 13 of 13, so there is nothing left to do" in caplog.text


def test_a_run_without_a_text_asks_for_one(tmp_path, capsys):
    folder, pattern, vocabulary = write_folder(tmp_path / "tf")
    import_checkpoint(folder, tmp_path / "run", vocab_file=vocabulary, opener=opener(made_up(OPTIONS)))
    before = (tmp_path / "run" / "options.json").read_bytes()
    for arguments, message in (
        ([], "--train: expected files beside --resume, since this run was imported without a text"),
        (["--train", pattern, "--optimizer", "adamw"], "--optimizer: expected no such argument beside --resume"),
        (["--train", pattern, "--vocab", vocabulary], "--vocab: expected no such argument beside --resume"),
        (["--train", tmp_path / "no*.txt"], "expected"),
        (["--train", pattern, "--negatives", 29], "expected at most the 28 words of the vocabulary"),
    ):
        status, _, errors = run(capsys, "train", tmp_path / "run", "--resume", *arguments)
        assert status == 2 and message in errors and errors.count("\n") == 1, errors
    assert (tmp_path / "run" / "options.json").read_bytes() == before
    status, _, errors = run(capsys, "train", tmp_path / "run", "--train", pattern, "--vocab", vocabulary)
    assert status == 2 and "expected a new directory, found checkpoints" in errors


def test_an_imported_run_is_tested_and_exported(tmp_path, capsys):
    folder, pattern, vocabulary = write_folder(tmp_path / "tf")
    values = made_up(OPTIONS)
    import_checkpoint(folder, tmp_path / "run", vocab_file=vocabulary, opener=opener(values))
    status, out, errors = run(capsys, "perplexity", tmp_path / "run", pattern, "--batch-size", 5, "--quiet")
    assert status == 0 and out.startswith("perplexity "), errors
    status, _, errors = run(capsys, "export", tmp_path / "run", tmp_path / "out", "--softmax")
    assert status == 0, errors
    with h5py.File(tmp_path / "out" / "weights.hdf5") as weights, h5py.File(tmp_path / "out" / "softmax.hdf5") as softmax:
        for name, tf_name in tf_names(plan_of(OPTIONS)).items():
            assert np.array_equal((softmax if name.startswith("softmax") else weights)[name][...], values[tf_name]), name
        assert weights["char_embed"].shape[0] == 261


def test_options_have_bilm_tfs_defaults(tmp_path):
    """One direction, no skip connections, no clips, one layer where the options say nothing."""
    content = {**{key: value for key, value in WORD_OPTIONS.items() if key not in ("bidirectional", "learning_rate")},
               "lstm": {"dim": 12, "projection_dim": 5}}
    folder, _, vocabulary = write_folder(tmp_path / "tf", content)
    values = made_up(lstm(content, n_layers=1, use_skip_connections=False))
    import_checkpoint(folder, tmp_path / "run", vocab_file=vocabulary, opener=opener(values))
    plan, weights = weights_of_run(tmp_path / "run")
    assert not plan.bidirectional and not plan.model.lstm.use_skip_connections and plan.model.lstm.n_layers == 1
    assert plan.model.lstm.cell_clip is None and plan.training.learning_rate == 0.2
    assert np.array_equal(weights["RNN_0/RNN/MultiRNNCell/Cell0/LSTMCell/W_0"], values["lm/rnn/lstm_cell/kernel"])


def changed(**changes):
    """Variables of OPTIONS, some replaced, or left out (None)."""
    values = {**made_up(OPTIONS), **changes}
    return {name: value for name, value in values.items() if value is not None}


KERNEL = "lm/RNN_0/rnn/multi_rnn_cell/cell_1/lstm_cell/kernel"
NO_SLOTS = {name: None for name in made_up(OPTIONS) if name.endswith("/Adagrad")}


@pytest.mark.parametrize("changes, message", [
    ({KERNEL: None}, f"expected the variable {KERNEL}, which the options require, found global_step and"),
    ({KERNEL: np.zeros((10, 44), np.float32)}, rf"variable {KERNEL}: expected shape \(10, 48\), found \(10, 44\)"),
    ({"lm/char_embed": np.zeros((262, 3), np.float32)}, r"lm/char_embed: expected shape \(261, 3\), found \(262, 3\)"),
    ({f"{KERNEL}/Adagrad": np.ones((10, 44), np.float32)}, rf"{KERNEL}/Adagrad: expected shape \(10, 48\)"),
    ({KERNEL.replace("cell_1", "cell_2"): np.zeros((10, 48), np.float32)},
     r"expected the variables that the options require \(2 LSTM layers\), found .*cell_2/lstm_cell/kernel beside them"),
    ({f"{KERNEL}/Adagrad": None}, f"found none named {KERNEL}/Adagrad; --fresh-accumulators begins them at 1"),
    (NO_SLOTS, "found none named lm/CNN/W_cnn_0/Adagrad and 26 more; --fresh-accumulators begins them at 1"),
    ({"lm/softmax/b/Adagrad": np.zeros(WORDS, np.float32)}, "softmax/b/Adagrad: expected numbers above 0, found 0.0"),
    ({"lm/softmax/b/Adagrad": np.full(WORDS, np.nan, np.float32)}, "softmax/b/Adagrad: expected numbers above 0, found nan"),
    ({"lm/softmax/b": np.zeros(WORDS, np.int64)}, "lm/softmax/b: expected floating-point numbers, found int64"),
    ({"global_step": np.float32("nan")}, "global_step: expected a number of steps"),
], ids=str)
def test_variables_that_do_not_fit_are_refused(changes, message, tmp_path):
    folder, _, vocabulary = write_folder(tmp_path / "tf")
    with pytest.raises(ConfigurationError, match=message):
        import_checkpoint(folder, tmp_path / "run", vocab_file=vocabulary, opener=opener(changed(**changes)))
    assert names(tmp_path) == ["text", "tf"]


def test_missing_accumulators_begin_at_one_when_asked(tmp_path):
    """Those of another optimizer are left out then."""
    folder, _, vocabulary = write_folder(tmp_path / "tf")
    values = changed(**{f"{KERNEL}/Adagrad": None, f"{KERNEL}/Adam": np.zeros((10, 48)), "beta1_power": np.float32(0.9)})
    done = import_checkpoint(folder, tmp_path / "run", vocab_file=vocabulary, opener=opener(values),
                             fresh_accumulators=True)
    assert done.fresh_accumulators == 1
    found = slots(restored(tmp_path / "run"))
    for name, tf_name in tf_names(plan_of(OPTIONS)).items():
        expected = np.ones((10, 48)) if tf_name == KERNEL else values[f"{tf_name}/Adagrad"]
        assert np.array_equal(found[name], expected), name


def test_without_a_counter_the_step_is_in_the_name(tmp_path):
    folder, _, vocabulary = write_folder(tmp_path / "tf")
    values = opener(changed(global_step=None))
    assert import_checkpoint(folder, tmp_path / "one", vocab_file=vocabulary, opener=values).step == 7
    (folder / "model.index").write_bytes(b"")
    assert import_checkpoint(folder / "model", tmp_path / "two", vocab_file=vocabulary, opener=values).step == 0
    start_or_resume(tmp_path / "two", resume=True, train=[str(tmp_path / "text" / "part-*.txt")], max_steps=2, quiet=True)
    assert final(tmp_path / "two")[0]["step"] == 2


def test_a_checkpoint_is_found_by_directory_prefix_or_file(tmp_path):
    folder, *_ = write_folder(tmp_path / "tf", state='model_checkpoint_path: "/another/machine/tf/model.ckpt-7"\n'
                                                     'all_model_checkpoint_paths: "/another/machine/tf/model.ckpt-5"\n')
    (folder / "model.ckpt-5.index").write_bytes(b"")
    assert find_checkpoint(folder) == folder / "model.ckpt-7"
    for ending in ("", ".index", ".meta", ".data-00000-of-00001"):
        assert find_checkpoint(folder / f"model.ckpt-5{ending}") == folder / "model.ckpt-5"
    (folder / "old.ckpt-3").write_bytes(b"")  # the format of one file
    assert find_checkpoint(folder / "old.ckpt-3") == folder / "old.ckpt-3"


def test_what_is_not_there_or_too_much_is_said_in_a_line(tmp_path, capsys):
    folder, _, vocabulary = write_folder(tmp_path / "tf", state=None)
    (tmp_path / "empty").mkdir()
    bare, *_ = write_folder(tmp_path / "bare", state='model_checkpoint_path: "model.ckpt-9"\n')
    other, *_ = write_folder(tmp_path / "other", {key: value for key, value in OPTIONS.items() if key != "n_tokens_vocab"})
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
        ([ready, out, "--options-file", tmp_path / "no.json"], "options_file: expected bilm-tf's options.json, found none"),
        ([other, out, "--vocab", vocabulary], "n_tokens_vocab: expected the number of words of the softmax, found none"),
        ([ready, out, "--options-file", vocabulary], "expected JSON"),
    ):
        status, _, errors = run(capsys, "import-tf", *arguments)
        assert status == 2 and message in errors and errors.count("\n") == 1, errors
    assert not out.exists()


def test_a_full_disk_leaves_nothing(tmp_path):
    folder, _, vocabulary = write_folder(tmp_path / "tf")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (6000, before[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            import_checkpoint(folder, tmp_path / "run", vocab_file=vocabulary, opener=opener(made_up(OPTIONS)))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert names(tmp_path) == ["text", "tf"]


def program(path, text):
    """A shell script that stands for a Python."""
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def test_a_python_without_tensorflow_names_the_extra(tmp_path, capsys, monkeypatch):
    folder, _, vocabulary = write_folder(tmp_path / "tf")
    for python, message, expected in (
        (program(tmp_path / "bare", f'exec {sys.executable} -S -E "$@"'), "install elmo-fast[tensorflow], or name", 1),
        (program(tmp_path / "dies", "echo bad luck >&2; exit 3"), "ended with status 3 (bad luck)", 1),
        (str(tmp_path / "absent"), f"{PYTHON_VARIABLE}: expected a Python, got", 2),
    ):
        monkeypatch.setenv(PYTHON_VARIABLE, python)
        status, _, errors = run(capsys, "import-tf", folder, tmp_path / "run", "--vocab", vocabulary)
        assert status == expected and message in errors and errors.count("\n") == 1, errors
    assert not (tmp_path / "run").exists()


# ---- beside TensorFlow ---------------------------------------------------------------------


@pytest.fixture(scope="session")
def tensorflow_python():
    """A Python that has TensorFlow: this one, or the one that ELMO_FAST_TEST_TENSORFLOW_PYTHON names."""
    if importlib.util.find_spec("tensorflow"):
        return sys.executable
    python = os.environ.get("ELMO_FAST_TEST_TENSORFLOW_PYTHON")
    if not python:
        pytest.skip("no tensorflow here (set ELMO_FAST_TEST_TENSORFLOW_PYTHON to a Python that has it)")
    return python


def write_batches(folder, content):
    """Four batches of made-up text into a folder, for TensorFlow; returns them."""
    plan = plan_of(content)
    _, batches = batches_of(plan, folder / "text", count=4)
    arrays = {}
    for n, batch in enumerate(batches):
        ids = batch.tokens[batch.rows].numpy() - 1
        arrays[f"ids{n}"] = ids.reshape(len(ids), plan.training.unroll_steps, plan.training.batch_size, *ids.shape[2:])
        arrays[f"targets{n}"] = batch.targets.numpy().reshape(arrays[f"ids{n}"].shape[:3])
    np.savez(folder / "batches.npz", **arrays)
    return batches


@pytest.fixture(scope="session")
def trained(tensorflow_python, tmp_path_factory):
    """Folder, batches and TensorFlow's numbers of every kind."""
    found = {}
    for number, (kind, content) in enumerate(KINDS.items()):
        folder = tmp_path_factory.mktemp(f"tf-{number}")
        (folder / "options.json").write_text(json.dumps(content))
        found[kind] = folder, write_batches(folder, content)
    writer = Path(__file__).parents[1] / "support" / "tf_writer.py"
    done = subprocess.run([tensorflow_python, writer, *(folder for folder, _ in found.values())], capture_output=True,
                          text=True, timeout=560, env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2"})
    assert done.returncode == 0, done.stderr[-3000:]
    return {kind: (folder, batches, dict(np.load(folder / "truth.npz"))) for kind, (folder, batches) in found.items()}


def saved(truth, part):
    return {name.removeprefix(part): value for name, value in truth.items() if name.startswith(part)}


@pytest.mark.parametrize("kind", KINDS)
def test_training_goes_on_as_in_tensorflow(kind, trained, tmp_path):
    folder, batches, truth = trained[kind]
    import_checkpoint(folder, tmp_path / "run", vocab_file=folder / "text" / "vocab.txt",
                      opener=opener(saved(truth, "saved/")))
    trainer = restored(tmp_path / "run")
    learning, expected = trainer.model.config.training, tf_names(trainer.model.config)
    assert trainer.step_number == 2
    before = trainer.model.weights()
    for n in (2, 3):
        losses, _, touched = trainer.model.losses(batches[n], trainer.model.zero_state(learning.batch_size), None)
        assert float(losses.detach().mean()) == pytest.approx(float(truth[f"loss{n}"]), rel=2e-6)
        (losses.mean() * learning.unroll_steps).backward()
        assert float(trainer.updater.step(touched, learning.learning_rate)) > learning.all_clip_norm_val
    after, found = trainer.model.weights(), slots(trainer)
    for name, tf_name in expected.items():
        assert np.array_equal(before[name], truth[f"saved/{tf_name}"]), name
        np.testing.assert_allclose(after[name], truth[f"after/{tf_name}"], atol=1e-6, err_msg=name)
        np.testing.assert_allclose(found[name], truth[f"after/{tf_name}/Adagrad"], rtol=1e-6, err_msg=name)
        assert not np.array_equal(before[name], after[name]), name
    gathered = [name for name, tf_name in expected.items() if truth[f"saved/{tf_name}/Adagrad"].max() > 1]
    assert len(gathered) > len(expected) // 2  # at the far end of three layers gradients are too small to count


def test_the_command_reads_tensorflows_files(trained, tensorflow_python, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv(PYTHON_VARIABLE, tensorflow_python)
    folder, _, truth = trained["characters"]
    vocabulary, pattern = folder / "text" / "vocab.txt", folder / "text" / "part-*.txt"
    status, out, errors = run(capsys, "import-tf", folder, tmp_path / "run", "--vocab", vocabulary)
    assert status == 0 and not errors and "model.ckpt-2 after 2 steps, 27 variables, 27 with their accumulators" in out
    _, weights = weights_of_run(tmp_path / "run")
    found = slots(restored(tmp_path / "run"))
    for name, tf_name in tf_names(plan_of(KINDS["characters"])).items():
        assert np.array_equal(weights[name], truth[f"saved/{tf_name}"]), name
        assert np.array_equal(found[name], truth[f"saved/{tf_name}/Adagrad"]), name
    status, _, errors = run(capsys, "train", tmp_path / "run", "--resume", "--train", pattern, "--max-steps", 4, "--quiet",
                            "--log-every", 1)
    assert status == 0 and [line["step"] for line in read_log(tmp_path / "run") if line["kind"] == "train"] == [3, 4]


def test_damaged_files_are_refused(trained, tensorflow_python, tmp_path, monkeypatch):
    monkeypatch.setenv(PYTHON_VARIABLE, tensorflow_python)
    folder, *_ = trained["words"]
    for ending in (".index", ".data-00000-of-00001"):
        (tmp_path / f"m{ending}").write_bytes((folder / f"model.ckpt-2{ending}").read_bytes())
    with open_checkpoint(tmp_path / "m") as variables:
        assert variables.read("lm/embedding").shape == (WORDS, 5) and variables.step() == 2
        with pytest.raises(ConfigurationError, match="got something else or one cut short or damaged"):
            variables.read("no such variable")
        assert variables.read("lm/softmax/b").shape == (WORDS,)
    data = tmp_path / "m.data-00000-of-00001"
    data.write_bytes(data.read_bytes()[:100])
    with pytest.raises(ConfigurationError, match="cut short or damaged"), open_checkpoint(tmp_path / "m") as variables:
        [variables.read(name) for name in variables.shapes]
    (tmp_path / "m.index").write_bytes(b"no index")
    with pytest.raises(ConfigurationError, match="cut short or damaged"), open_checkpoint(tmp_path / "m"):
        pass
