"""Checkpoints of bilm-tf's training, imported as runs, with random variables and without TensorFlow."""

import json

import numpy as np
import pytest
import torch

from elmo_fast.errors import ConfigurationError
from elmo_fast.train.checkpoint import weights_of_run
from elmo_fast.train.run_files import find_tf_checkpoint
from elmo_fast.train.setup import start_or_resume
from tests.support.files import names, run
from tests.support.tf_checkpoints import (
    KINDS,
    OPTIONS,
    import_values,
    imported,
    made_up,
    names_of,
    restored,
    write_folder,
)
from tests.support.training import VOCABULARY, check_refusals, final, with_lstm


def test_the_names_are_those_of_bilm_tfs_checkpoints():
    """TensorFlow lists these names for checkpoints of bilm-tf's own trainer."""
    tf_names = names_of(OPTIONS)
    for ours, theirs in (("W_0", "kernel"), ("B", "bias"), ("W_P_0", "projection/kernel")):
        cell = f"lm/RNN_1/rnn/multi_rnn_cell/cell_1/lstm_cell/{theirs}"
        assert tf_names[f"RNN_1/RNN/MultiRNNCell/Cell1/LSTMCell/{ours}"] == cell
    assert {"lm/char_embed", "lm/CNN/W_cnn_2", "lm/CNN/b_cnn_0", "lm/CNN_high_0/W_carry", "lm/CNN_high_0/b_transform",
            "lm/CNN_proj/W_proj", "lm/CNN_proj/b_proj", "lm/softmax/W", "lm/softmax/b"} < set(tf_names.values())
    assert len(set(tf_names.values())) == 1 + 6 + 4 + 2 + 2 * 2 * 3 + 2
    for kind, expected in (("one layer", "lm/RNN_0/rnn/lstm_cell/projection/kernel"),
                           ("one direction", "lm/rnn/multi_rnn_cell/cell_0/lstm_cell/projection/kernel"),
                           ("one direction, one layer", "lm/rnn/lstm_cell/projection/kernel")):
        assert names_of(KINDS[kind])["RNN_0/RNN/MultiRNNCell/Cell0/LSTMCell/W_P_0"] == expected
    shared = names_of(KINDS["shared table"])
    assert shared["softmax/W"] == shared["embedding"] == "lm/embedding" and "lm/softmax/W" not in shared.values()


@pytest.mark.parametrize("kind", KINDS)
def test_every_variable_and_its_accumulator_arrive(kind, tmp_path):
    values = made_up(KINDS[kind])
    folder, result, _ = imported(tmp_path, values, KINDS[kind])
    assert (result.checkpoint, result.step, result.fresh_accumulators) == (tmp_path / "tf" / "model.ckpt-7", 7, 0)
    assert 2 * result.variables + 2 == len(values)
    assert names(folder) == ["checkpoints", "options.json", "run.json", "vocab.txt"]
    assert names(folder / "checkpoints") == ["step-00000007.pt"]
    trainer, (_, weights) = restored(folder, values), weights_of_run(folder)
    assert weights.keys() == names_of(KINDS[kind]).keys() and trainer.step_number == 7
    assert all(np.array_equal(weights[name], value) for name, value in trainer.model.weights().items())


def test_training_continues_and_resumes_exactly(tmp_path, capsys, caplog):
    folder, pattern, vocabulary = write_folder(tmp_path / "tf")
    (folder / "vocab.txt").write_bytes(vocabulary.read_bytes())  # the default vocabulary
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    for output in (whole, parts):
        import_values(made_up(), folder, output)
    first = {"resume": True, "train": [pattern], "heldout": [pattern], "evaluate_batch_size": 5, "batch_size": 4,
             "accumulate": 2, "learning_rate": 0.1, "log_every": 1, "quiet": True}
    start_or_resume(whole, **first, max_steps=13)
    start_or_resume(parts, **first, max_steps=10)
    start_or_resume(parts, resume=True, max_steps=13)
    (state, log), (resumed_state, _) = final(whole), final(parts)
    assert state["step"] == resumed_state["step"] == 13 and len(state["streams"]) == 2
    assert all(torch.equal(value, resumed_state["weights"][name]) for name, value in state["weights"].items())
    rates = [(line["step"], line["learning_rate"]) for line in log if line["kind"] == "train"]
    assert rates == [(step, 0.1) for step in range(8, 14)]
    assert json.loads((whole / "options.json").read_text())["batch_size"] == 4
    assert json.loads((whole / "run.json").read_text())["train"] == [pattern]
    check_refusals(capsys, (["train", whole, "--resume", "--train", pattern],
                            "--train: expected no such argument beside --resume"))
    start_or_resume(whole, resume=True)
    assert "step 13 of 13, so there is nothing left to do" in caplog.text


def test_a_run_without_a_text_is_evaluated_and_exported_and_needs_one_to_train(tmp_path, capsys):
    folder, _, pattern = imported(tmp_path, made_up())
    status, out, errors = run(capsys, "perplexity", folder, pattern, "--batch-size", 5, "--quiet")
    assert status == 0 and out.startswith("perplexity "), errors
    assert run(capsys, "export", folder, tmp_path / "out", "--softmax")[0] == 0
    vocabulary, train = tmp_path / "text" / "vocab.txt", ["train", folder]
    resume, before = [*train, "--resume", "--train", pattern], (folder / "options.json").read_bytes()
    check_refusals(
        capsys,
        ([*train, "--resume"], "--train: expected files beside --resume, since this run was imported without a text"),
        ([*resume, "--optimizer", "adamw"], "--optimizer: expected no such argument beside --resume"),
        ([*resume, "--vocab", vocabulary], "--vocab: expected no such argument beside --resume"),
        ([*train, "--resume", "--train", tmp_path / "no*.txt"], "train: expected files, found none at"),
        ([*resume, "--negatives", 29], "expected at most the 28 words of the vocabulary"),
        ([*train, "--train", pattern, "--vocab", vocabulary], "expected a new directory, found checkpoints"),
    )
    assert (folder / "options.json").read_bytes() == before


def test_options_have_bilm_tfs_defaults(tmp_path):
    """The defaults are one direction, no skip connections, no clips and one layer."""
    content = {"lstm": {"dim": 12, "projection_dim": 5}, "n_tokens_vocab": VOCABULARY}
    values = made_up(with_lstm(content, n_layers=1, use_skip_connections=False))
    config, weights = weights_of_run(imported(tmp_path, values, content)[0])
    assert not config.bidirectional and not config.model.lstm.use_skip_connections and config.model.lstm.n_layers == 1
    assert config.model.lstm.cell_clip is None and config.training.learning_rate == 0.2
    assert np.array_equal(weights["RNN_0/RNN/MultiRNNCell/Cell0/LSTMCell/W_0"], values["lm/rnn/lstm_cell/kernel"])


KERNEL = "lm/RNN_0/rnn/multi_rnn_cell/cell_1/lstm_cell/kernel"
NO_ACCUMULATORS = {name: None for name in made_up() if name.endswith("/Adagrad")}


def test_the_variables_decide_without_the_key_bidirectional(tmp_path):
    """The options.json of a published model lacks the key."""
    values = made_up()
    content = {name: value for name, value in OPTIONS.items() if name != "bidirectional"}
    config, weights = weights_of_run(imported(tmp_path, values, content)[0])
    assert config.bidirectional and np.array_equal(weights["RNN_1/RNN/MultiRNNCell/Cell1/LSTMCell/W_0"],
                                                    values[KERNEL.replace("RNN_0", "RNN_1")])


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
    """Accumulators of another optimizer are ignored."""
    values = made_up(**{f"{KERNEL}/Adagrad": None, f"{KERNEL}/Adam": np.zeros((10, 48)),
                        "beta1_power": np.float32(0.9)})
    folder, result, _ = imported(tmp_path, values, fresh_accumulators=True)
    assert result.fresh_accumulators == 1
    restored(folder, {**values, f"{KERNEL}/Adagrad": np.ones((10, 48))})


def test_without_a_counter_the_step_is_in_the_name(tmp_path):
    folder, pattern, vocabulary = write_folder(tmp_path / "tf")
    (folder / "model.index").write_bytes(b"")
    for source, output, step in ((folder, "one", 7), (folder / "model", "two", 0)):
        result = import_values(made_up(global_step=None), source, tmp_path / output, vocab_file=vocabulary)
        assert result.step == step
    start_or_resume(tmp_path / "two", resume=True, train=[pattern], max_steps=2, quiet=True)
    assert final(tmp_path / "two")[0]["step"] == 2


def test_a_checkpoint_is_found_by_directory_prefix_or_file(tmp_path):
    folder, *_ = write_folder(tmp_path / "tf", state='model_checkpoint_path: "/another/machine/tf/model.ckpt-7"\n'
                                                     'all_model_checkpoint_paths: "/another/machine/tf/model.ckpt-5"\n')
    (folder / "model.ckpt-5.index").write_bytes(b"")
    assert find_tf_checkpoint(folder) == folder / "model.ckpt-7"
    for ending in ("", ".index", ".meta", ".data-00000-of-00001"):
        assert find_tf_checkpoint(folder / f"model.ckpt-5{ending}") == folder / "model.ckpt-5"
    (folder / "old.ckpt-3").write_bytes(b"")  # the format of a single file
    assert find_tf_checkpoint(folder / "old.ckpt-3") == folder / "old.ckpt-3"


def test_missing_inputs_are_named_in_one_line(tmp_path, capsys):
    folder, _, vocabulary = write_folder(tmp_path / "tf", state=None)
    (tmp_path / "empty").mkdir()
    bare, *_ = write_folder(tmp_path / "bare", state='model_checkpoint_path: "model.ckpt-9"\n')
    unnamed, *_ = write_folder(tmp_path / "unnamed", state="all_model_checkpoint_paths: \n")
    uncounted, *_ = write_folder(tmp_path / "other", {**OPTIONS, "n_tokens_vocab": None})
    ready, *_ = write_folder(tmp_path / "ready")
    (tmp_path / "short.txt").write_text("<S>\n</S>\n<UNK>\n")
    out = tmp_path / "out"
    check_refusals(capsys, *((["import-tf", *arguments], message) for arguments, message in [
        ([folder, out], f"expected a file named checkpoint in {folder}, which names the last checkpoint there, found "),
        ([tmp_path / "empty", out], "found no checkpoint"),
        *(([place, out], "found the checkpoints model.ckpt-7: name one of them") for place in (bare, unnamed)),
        ([tmp_path / "absent", out], "expected a directory of bilm-tf's, or a checkpoint's path such as"),
        ([ready, tmp_path / "text"], "output: expected a new directory, found"),
        ([ready, out], "--vocab: expected the vocabulary that the model was trained with"),
        ([ready, out, "--vocab", tmp_path / "short.txt"], "expected the 28 words of the softmax, got 3"),
        ([ready, out, "--options-file", tmp_path / "no.json"], "expected bilm-tf's options.json, found none"),
        ([uncounted, out, "--vocab", vocabulary], "n_tokens_vocab: expected the number of words"),
        ([ready, out, "--options-file", vocabulary], "expected JSON"),
    ]))
    assert not out.exists()
