"""Imports a checkpoint of bilm-tf's training as a run: weights, softmax, Adagrad's accumulators, number of steps."""

import contextlib
import itertools
import os
import re
import subprocess
import sys
import tempfile
import urllib.parse
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from elmo_fast.arguments import local_path
from elmo_fast.environment import install_line
from elmo_fast.errors import ConfigurationError
from elmo_fast.files.atomic import atomic_directory
from elmo_fast.files.json import read_json
from elmo_fast.files.stops import interruptible
from elmo_fast.nn.softmax_head import SOFTMAX
from elmo_fast.text.vocabulary import Vocabulary
from elmo_fast.train import checkpoint
from elmo_fast.train.checkpoint import copy_vocabulary
from elmo_fast.train.config import OptimizerConfig, TrainConfig
from elmo_fast.train.loop import Trainer
from elmo_fast.train.model import LanguageModel, parameter_shapes
from elmo_fast.train.optimizer import Replicas, Updater
from elmo_fast.train.run_files import OPTIONS_FILE, RUN_FILE, VOCABULARY_FILE, find_tf_checkpoint
from elmo_fast.weights.datasets import check_finite, lstm_name

_SCOPE, _ACCUMULATOR = "lm", "Adagrad"
_TF_LSTM = {"W_0": "kernel", "B": "bias", "W_P_0": "projection/kernel"}
# Variables besides weights and accumulators: counters of bilm-tf and of TensorFlow's Adam.
_COUNTERS = frozenset({"global_step", "train_perplexity", "beta1_power", "beta2_power"})

_NO_TENSORFLOW, _UNREADABLE = 103, 104  # exit statuses of the reader
# Run by a Python that has TensorFlow, in its own process: TensorFlow and Triton both bring a copy of LLVM, and a
# process that loads both aborts. Writes every variable as FOLDER/NAME.npy, with NAME percent-encoded.
_READER = f"""
import os, sys, urllib.parse

def fail(status, error):
    print(" ".join(f"{{type(error).__name__}}: {{error}}".split()), file=sys.stderr, flush=True)
    os._exit(status)  # before anything else reaches stderr

prefix, folder = sys.argv[1:]
try:
    import numpy, tensorflow
except ImportError as error:
    fail({_NO_TENSORFLOW}, error)
try:
    reader = tensorflow.train.load_checkpoint(prefix)
    names = sorted(reader.get_variable_to_shape_map())
except Exception as error:  # TensorFlow's errors share no other base class
    fail({_UNREADABLE}, error)
for name in names:
    try:
        values = numpy.asarray(reader.get_tensor(name))
    except Exception as error:
        fail({_UNREADABLE}, error)
    values = values if values.dtype.kind in "fiub" else values.astype("S")
    numpy.save(os.path.join(folder, urllib.parse.quote(name, safe="") + ".npy"), values)
"""


class Variables(NamedTuple):
    """The variables of a checkpoint by name. `prefix` is the checkpoint's path without the extensions of its files."""

    prefix: Path
    arrays: Mapping[str, np.ndarray]

    def read(self, name: str) -> np.ndarray:
        """Return a variable's values as float32. `ConfigurationError` if they are not floating-point numbers."""
        values = self.arrays[name]
        if values.dtype.kind != "f":
            raise ConfigurationError(f"checkpoint {self.prefix}: variable {name}: expected floating-point numbers, "
                                     f"found {values.dtype}")
        return np.array(values, dtype=np.float32)

    def read_accumulator(self, name: str) -> torch.Tensor:
        """Return a variable's sums of squared gradients. Adagrad divides by their roots, so they must be above 0."""
        values = self.read(f"{name}/{_ACCUMULATOR}")
        if not ((values > 0) & (values < np.inf)).all():
            raise ConfigurationError(f"checkpoint {self.prefix}: variable {name}/{_ACCUMULATOR}: expected numbers "
                                     f"above 0, found {values.min()} to {values.max()}")
        return torch.from_numpy(values)

    def step(self) -> int:
        """Return the steps of training: variable `global_step`, else the number in the checkpoint's name, else 0."""
        if "global_step" in self.arrays:
            steps = self.arrays["global_step"]
            if steps.shape or not 0 <= steps < np.inf:
                raise ConfigurationError(f"checkpoint {self.prefix}: variable global_step: expected a number of steps, "
                                         f"found {steps!r:.80}")
            return int(steps)
        number = re.search(r"-(\d+)$", self.prefix.name)
        return int(number[1]) if number else 0


class Imported(NamedTuple):
    """The imported checkpoint, its steps of training, the model's variables, and how many lacked an accumulator."""

    checkpoint: Path
    step: int
    variables: int
    fresh_accumulators: int


def import_checkpoint(source: str | os.PathLike, output: str | os.PathLike, *,
                      vocab_file: str | os.PathLike | None = None, options_file: str | os.PathLike | None = None,
                      fresh_accumulators: bool = False, allow_nonfinite: bool = False,
                      tensorflow_python: str | os.PathLike = sys.executable) -> Imported:
    """Write a bilm-tf checkpoint as the run directory `output`, for `train --resume`, `perplexity` and `export`.

    `source` is bilm-tf's directory, whose last checkpoint is used, or a checkpoint's prefix; `options.json` and
    `vocab.txt` are expected beside it unless given. With `fresh_accumulators` missing accumulators begin at 1. Where
    the options lack the key `bidirectional`, the variables decide. bilm-tf's checkpoints hold no LSTM states and no
    position in the text: both start from the beginning. `tensorflow_python`, a Python that has TensorFlow, by default
    this one, reads the checkpoint. `ConfigurationError`, which leaves nothing at `output`, for variables that do not
    fit the options, and for NaN and infinities unless `allow_nonfinite`.
    """
    with atomic_directory(output) as folder:
        prefix = find_tf_checkpoint(source)
        options_file = local_path(options_file or prefix.parent / OPTIONS_FILE)
        if not os.path.isfile(options_file):
            raise FileNotFoundError(f"options_file: expected bilm-tf's {OPTIONS_FILE}, found none at {options_file}")
        options = read_json(options_file)
        config = bilm_tf_config(options, f"options_file {options_file}")
        vocab_file = local_path(vocab_file or prefix.parent / VOCABULARY_FILE)
        if not os.path.isfile(vocab_file):
            raise FileNotFoundError(f"--vocab: expected the vocabulary that the model was trained with, which bilm-tf "
                                    f"keeps apart from its checkpoints, found none at {vocab_file}")
        vocabulary = checkpoint.read_vocabulary(vocab_file, config.model.n_tokens_vocab)
        with open_checkpoint(prefix, tensorflow_python) as variables:
            if "bidirectional" not in options:
                config = replace(config, bidirectional=any(name.startswith(f"{_SCOPE}/RNN_1/") for name in
                                                           variables.arrays))
            without = _check_variables(variables, config, fresh_accumulators)
            trainer = _trainer(variables, config, vocabulary, without, allow_nonfinite)
        content = {**trainer.state(), "streams": None, "shards": None, "evaluations": []}  # None: no text was read yet
        copy_vocabulary(vocab_file, folder)
        checkpoint.write_json(folder / OPTIONS_FILE, config.to_dict())
        checkpoint.write_json(folder / RUN_FILE, {})
        checkpoint.save(folder, {**content, "files": checkpoint.described_files(folder)}, keep=1)
        return Imported(prefix, trainer.step_number, len(set(tf_names(config).values())), len(without))


def _trainer(variables: Variables, config: TrainConfig, vocabulary: Vocabulary, without: set[str],
             allow_nonfinite: bool) -> Trainer:
    """Make a trainer from a checkpoint's variables; `without` are the variables without an accumulator."""
    names = tf_names(config)
    weights = {name: variables.read(tf_name) for name, tf_name in names.items()}
    for name, values in ({} if allow_nonfinite else weights).items():
        check_finite(f"checkpoint {variables.prefix}: variable {names[name]}", values)
    trainer = Trainer(LanguageModel(config, weights), [], vocabulary, Replicas(torch.device("cpu")))
    trainer.step_number = variables.step()
    for name, parameter in trainer.model.by_name().items():
        if names[name] not in without:
            sums = trainer.updater.optimizer.state[parameter]["sum"]
            sums.copy_(variables.read_accumulator(names[name]))
    return trainer


def bilm_tf_config(content: Mapping[str, Any], source: str) -> TrainConfig:
    """The configuration that bilm-tf's trainer reads in `content`, where absent keys have its defaults.

    A null is refused: bilm-tf takes it for false or fails.
    """
    nulls = [field.name for field in fields(OptimizerConfig)
             if field.default is not None and content.get(field.name, field.default) is None]
    if nulls:
        raise ConfigurationError(f"{source}: {nulls[0]}: expected a value, or no such key, got null")
    if content.get("n_tokens_vocab") is None:
        raise ConfigurationError(f"{source}: n_tokens_vocab: expected the number of words of the softmax, found none")
    if isinstance(content.get("lstm"), dict):
        content = {**content, "lstm": {"use_skip_connections": False, **content["lstm"]}}
    return TrainConfig.from_dict({"bidirectional": False, **content, "optimizer": "adagrad"}, source)


def tf_names(config: TrainConfig) -> dict[str, str]:
    """Return TensorFlow's name of every dataset, softmax included; datasets of a shared table have the same name.

    From `bilm/training.py`, as TensorFlow 1.2 and later name its variables.
    """
    names = {name: f"{_SCOPE}/{name}" for name in parameter_shapes(config)}
    for direction, layer, dataset in itertools.product((0, 1), range(config.model.lstm.n_layers), _TF_LSTM):
        name = lstm_name(direction, layer, dataset)
        if name in names:
            scope = f"{_SCOPE}/RNN_{direction}/rnn" if config.bidirectional else f"{_SCOPE}/rnn"
            cell = f"{scope}/multi_rnn_cell/cell_{layer}" if config.model.lstm.n_layers > 1 else scope
            names[name] = f"{cell}/lstm_cell/{_TF_LSTM[dataset]}"
    if config.training.share_embedding_softmax:
        names[SOFTMAX[0]] = names["embedding"]
    return names


def _check_variables(variables: Variables, config: TrainConfig, fresh_accumulators: bool) -> set[str]:
    """Return variables without accumulator. `ConfigurationError` for missing, misshapen or unexpected variables."""
    source, names = f"checkpoint {variables.prefix}", tf_names(config)
    shapes = {name: values.shape for name, values in variables.arrays.items()}
    expected = {names[name]: shape for name, shape in parameter_shapes(config).items()}
    accumulators = {f"{name}/{_ACCUMULATOR}": shape for name, shape in expected.items()}
    missing = sorted(expected.keys() - shapes.keys())
    if missing:
        raise ConfigurationError(f"{source}: expected the variable {_summary(missing)}, which the options require, "
                                 f"found {_summary(shapes)}")
    for name, shape in {**expected, **accumulators}.items():
        if shapes.get(name, shape) != shape:
            raise ConfigurationError(f"{source}: variable {name}: expected shape {shape}, found {shapes[name]}")
    without = {name for name in expected if f"{name}/{_ACCUMULATOR}" not in shapes}
    if without and not fresh_accumulators:
        raise ConfigurationError(f"{source}: expected the accumulators of bilm-tf's optimizer, found none named "
                                 f"{_summary(accumulators.keys() - shapes.keys())}; --fresh-accumulators begins them "
                                 f"at {Updater.INITIAL_ACCUMULATOR:g}")
    known = expected.keys() | accumulators.keys() | _COUNTERS
    surplus = [name for name in shapes.keys() - known if name.rpartition("/")[0] not in without]
    if surplus:
        raise ConfigurationError(f"{source}: expected the variables that the options require "
                                 f"({config.model.lstm.n_layers} LSTM layers), found {_summary(surplus)} beside them")
    return without


def _summary(names: Iterable[str]) -> str:
    first, *more = sorted(names) or ["no variable"]
    return f"{first} and {len(more)} more" if more else first


@contextlib.contextmanager
def open_checkpoint(prefix: Path, tensorflow_python: str | os.PathLike = sys.executable) -> Iterator[Variables]:
    """The variables of a checkpoint, in temporary files that exist as long as the context.

    `tensorflow_python` reads the checkpoint. `ImportError` names the extra if it has no TensorFlow;
    `ConfigurationError` for a damaged file.
    """
    python = local_path(tensorflow_python)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:  # Windows keeps files that are mapped
        try:
            process = interruptible(subprocess.run)([python, "-c", _READER, prefix, folder], stdin=subprocess.DEVNULL,
                                                    capture_output=True,
                                                    env={"TF_CPP_MIN_LOG_LEVEL": "2", **os.environ})
        except OSError as error:
            raise ConfigurationError(f"tensorflow_python: expected a Python, got {python!r} ({error})") from error
        reason = f"{process.stderr.decode(errors='replace').strip().rpartition(chr(10))[2]:.200}"
        if process.returncode == _NO_TENSORFLOW:
            raise ImportError(f"import-tf: {python} lacks a package to read checkpoints with ({reason}): "
                              f"{install_line('tensorflow')}, or name a Python that has TensorFlow by "
                              "--tensorflow-python")
        if process.returncode == _UNREADABLE:
            raise ConfigurationError(f"checkpoint {prefix}: expected a checkpoint of TensorFlow, got another, a "
                                     f"truncated or a damaged file ({reason})")
        if process.returncode:
            raise RuntimeError(f"import-tf: the process that reads {prefix} ended with status {process.returncode} "
                               f"({reason})")
        arrays = {urllib.parse.unquote(path.stem): np.load(path, mmap_mode="r") for path in Path(folder).iterdir()}
        try:
            yield Variables(prefix, arrays)
        finally:
            arrays.clear()
