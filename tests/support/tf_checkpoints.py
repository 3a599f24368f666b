"""Checkpoints of bilm-tf's training with random variables, and the runs imported from them."""

import json
from contextlib import nullcontext
from unittest import mock

import numpy as np
import torch

from elmo_fast.compat.bilm import import_tf
from elmo_fast.compat.bilm.import_tf import Variables, import_checkpoint, tf_names
from elmo_fast.text.vocabulary import Vocabulary
from elmo_fast.train import checkpoint
from elmo_fast.train.config import TrainConfig
from elmo_fast.train.loop import Trainer
from elmo_fast.train.model import LanguageModel, initial_weights
from elmo_fast.train.optimizer import Replicas
from tests.support import training
from tests.support.training import TINY, VOCABULARY, write_corpus

_OF_BILM_TF = {"bidirectional": True, "n_tokens_vocab": VOCABULARY, "dropout": 0.0, "learning_rate": 0.2,
               "all_clip_norm_val": 0.5, "n_epochs": 3, "n_train_tokens": 1000}
OPTIONS = {**_OF_BILM_TF, **TINY}
KINDS = {name: {**_OF_BILM_TF, **content, "sample_softmax": False} for name, content in training.KINDS.items()}


def names_of(content):
    return tf_names(TrainConfig.from_dict({"bidirectional": False, **content}))


def restored(folder, values=None):
    """A trainer without a text, in the state of the last checkpoint of a run, which must equal `values`."""
    config = TrainConfig.from_file(folder / "options.json")
    vocabulary = Vocabulary(folder / "vocab.txt", validate_file=True)
    trainer = Trainer(LanguageModel(config, initial_weights(config, 9)), [], vocabulary, Replicas(torch.device("cpu")))
    trainer.restore(checkpoint.read(checkpoint.choose(folder)))
    for name, tf_name in tf_names(config).items() if values else ():
        assert np.array_equal(trainer.model.weights()[name], values[tf_name]), name
        assert np.array_equal(accumulators(trainer)[name], values[f"{tf_name}/Adagrad"]), name
    return trainer


def accumulators(trainer):
    return {name: trainer.updater.optimizer.state[parameter]["sum"].numpy()
            for name, parameter in trainer.model.by_name().items()}


def made_up(content=OPTIONS, seed=0, **changes):
    """Random variables of a checkpoint of bilm-tf's, by TensorFlow's names; some replaced, or left out (None)."""
    config, generator = TrainConfig.from_dict({"bidirectional": False, **content}), np.random.default_rng(seed)
    weights = initial_weights(config, seed)
    variables = {tf_name: weights[name] + generator.normal(0, 0.1, weights[name].shape).astype(np.float32)
                 for name, tf_name in tf_names(config).items()}
    variables.update({f"{name}/Adagrad": generator.uniform(1, 5, value.shape).astype(np.float32)
                      for name, value in list(variables.items())})
    variables = {**variables, "global_step": np.float32(7), "train_perplexity": np.float32(3), **changes}
    return {name: value for name, value in variables.items() if value is not None}


def write_folder(folder, content=OPTIONS, state='model_checkpoint_path: "model.ckpt-7"\n'):
    """bilm-tf's directory with an empty checkpoint, and beside it a text (pattern) and its vocabulary."""
    folder.mkdir()
    (folder / "options.json").write_text(json.dumps(content))
    (folder / "model.ckpt-7.index").write_bytes(b"")
    if state:
        (folder / "checkpoint").write_text(state)
    return folder, *write_corpus(folder.parent / "text")


def import_values(values, source, output, **arguments):
    """Import variables in place of those of the checkpoint at `source`."""
    arrays = {name: np.asarray(value) for name, value in values.items()}
    with mock.patch.object(import_tf, "open_checkpoint", lambda prefix, _: nullcontext(Variables(prefix, arrays))):
        return import_checkpoint(source, output, **arguments)


def imported(tmp_path, values, content=OPTIONS, **arguments):
    """Import variables as the run `tmp_path / "run"`; returns the run, the import's result, and a text's pattern."""
    folder, pattern, vocabulary = write_folder(tmp_path / "tf", content)
    run = tmp_path / "run"
    return run, import_values(values, folder, run, vocab_file=vocabulary, **arguments), pattern
