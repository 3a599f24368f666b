"""bilm-tf's module `bilm.training` on this project's trainer: `train`, `test` and the other functions of its scripts.

`train` writes a run's directory, which `elmo-fast perplexity`, `export` and `train --resume` also read.
"""

import itertools
import logging
import math
import numbers
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from elmo_fast.arguments import check_count, check_path, shown
from elmo_fast.compat.bilm.data import BidirectionalLMDataset, LMDataset
from elmo_fast.compat.bilm.import_tf import bilm_tf_config
from elmo_fast.errors import ConfigurationError
from elmo_fast.files import stops
from elmo_fast.files.json import read_json
from elmo_fast.files.lock import locked
from elmo_fast.nn.softmax_head import SOFTMAX
from elmo_fast.ops.device import available_device
from elmo_fast.text.batching import groups_of
from elmo_fast.text.vocabulary import UnicodeCharsVocabulary, Vocabulary
from elmo_fast.train import checkpoint
from elmo_fast.train import model as networks  # its LanguageModel is not that of bilm-tf
from elmo_fast.train.config import RunConfig, TrainConfig
from elmo_fast.train.data import Batch
from elmo_fast.train.evaluate import STEPS, perplexity_of_batches
from elmo_fast.train.loop import Run, Trainer
from elmo_fast.train.model import initial_weights
from elmo_fast.train.optimizer import Replicas
from elmo_fast.train.run_files import OPTIONS_FILE, RUN_FILE
from elmo_fast.weights.datasets import write_weights

__all__ = ["dump_weights", "load_options_latest_checkpoint", "load_vocab", "test", "train"]

logger = logging.getLogger(__name__)
_N_TRAIN_TOKENS = 768648884  # bilm-tf's default: the 1B Word Benchmark

Arrays = Mapping[str, np.ndarray]
Dataset = LMDataset | BidirectionalLMDataset  # or a class of the caller with their `vocab` and `iter_batches`


def train(options: Mapping[str, Any], data: Dataset, n_gpus: int, tf_save_dir: str | os.PathLike,
          tf_log_dir: str | os.PathLike | None = None, restart_ckpt_file: str | os.PathLike | None = None) -> None:
    """Train for `n_epochs * int(n_train_tokens / (batch_size * unroll_steps * n_gpus))` batches of `data`.

    The gradient of a step is the mean over `n_gpus` parts of `batch_size` rows, which have separate states; all run on
    one device, the first GPU if there is one. Without the key `bidirectional` in the options, `data` decides the
    directions, two for a `BidirectionalLMDataset`, and a warning is logged. Options, vocabulary, log, and a checkpoint
    every 1250 batches are written into `tf_save_dir`; `tf_log_dir` is ignored. With `restart_ckpt_file` training starts
    from the weights and accumulators of that checkpoint and zero states, and runs for the same number of batches. From
    bilm-tf's `train`.
    """
    check_count("n_gpus", n_gpus)
    config = _config(options, data, n_gpus)
    epoch, batches = _batches(options, config, n_gpus)
    folder = Path(check_path("tf_save_dir", tf_save_dir))
    if folder.exists() and not folder.is_dir():
        raise NotADirectoryError(f"tf_save_dir: expected a directory, got the file {folder}")
    trainer = _Trainer(config, data, initial_weights(config, config.training.seed))
    if restart_ckpt_file is not None:
        trainer.restore({**checkpoint.read(restart_ckpt_file, "optimizer"), "streams": None})
    elif checkpoint.in_order(folder):
        raise ConfigurationError(f"tf_save_dir: expected a directory without checkpoints, or restart_ckpt_file, found "
                                 f"checkpoints in {folder}")
    trainer.steps_per_epoch, trainer.total_steps = epoch, trainer.step_number + batches
    folder.mkdir(parents=True, exist_ok=True)
    with stops.stoppable(terminate=True), locked(folder):
        checkpoint.copy_vocabulary(data.vocab.filename, folder)
        checkpoint.write_json(folder / OPTIONS_FILE, config.to_dict())
        checkpoint.write_json(folder / RUN_FILE, {})
        Run(folder, trainer, data.vocab, [], RunConfig(checkpoint_every=1250, log_every=100), []).train()


def _config(options: Mapping[str, Any], data: Dataset, n_gpus: int) -> TrainConfig:
    if options.get("optimizer", "adagrad") != "adagrad":
        raise ConfigurationError(f"options: optimizer: expected adagrad, as in bilm-tf, got "
                                 f"{shown(options['optimizer'])}; elmo-fast train has others")
    if "bidirectional" not in options:
        options = {**options, "bidirectional": isinstance(data, BidirectionalLMDataset)}
        logger.warning("options: no key bidirectional: training a %s model, by the directions of the data",
                       "two-direction" if options["bidirectional"] else "forward")
    return bilm_tf_config({**options, "accumulate": n_gpus}, "options")


def _batches(options: Mapping[str, Any], config: TrainConfig, n_gpus: int) -> tuple[int, int]:
    """Return the number of batches in an epoch, and in the run."""
    tokens, training = options.get("n_train_tokens", _N_TRAIN_TOKENS), config.training
    if isinstance(tokens, bool) or not isinstance(tokens, numbers.Real) or not 0 <= tokens < math.inf:
        raise ConfigurationError(f"options: n_train_tokens: expected a number, got {shown(tokens)}")
    epoch = int(tokens / (training.batch_size * training.unroll_steps * n_gpus))
    batches = int(training.n_epochs * epoch)
    if batches < 1:
        raise ConfigurationError(f"options: n_train_tokens: expected enough for a batch of {training.batch_size} x "
                                 f"{training.unroll_steps} x {n_gpus} tokens, got {tokens}")
    return epoch, batches


def test(options: Mapping[str, Any], ckpt_file: str | os.PathLike, data: Dataset,
         batch_size: int = 256) -> float:  # noqa: PT028 (the name is bilm-tf's)
    """Return the perplexity of a checkpoint on all of `data`, read in batches of a single step. From bilm-tf's `test`.

    Without the key `bidirectional` in the options, the checkpoint decides the directions.
    """
    weights = {name: value.numpy() for name, value in checkpoint.read(ckpt_file)["weights"].items()}
    config = bilm_tf_config({"bidirectional": any(name.startswith("RNN_1/") for name in weights), **options}, "options")
    _check_vocabulary(config, data)
    model = networks.LanguageModel(config, initial_weights(config, 0)).to(available_device(None))
    model.load_weights(weights)
    groups = groups_of(data.iter_batches(batch_size, 1), STEPS)
    batches = (_batch(config, {name: None if value is None else np.concatenate([part[name] for part in group], axis=1)
                               for name, value in group[0].items()}) for group in groups)
    first = next(batches, None)
    if first is None:
        raise ValueError(f"batch_size: expected at most the number of sentences of the data, got {batch_size}")
    return perplexity_of_batches(model, itertools.chain([first], batches), batch_size).total


def load_options_latest_checkpoint(tf_save_dir: str | os.PathLike) -> tuple[dict[str, Any], str]:
    """Return the options and the path of the last checkpoint in a directory that `train` wrote. From bilm-tf.

    `elmo-fast import-tf` makes such a directory from a TensorFlow checkpoint.
    """
    tf_save_dir = check_path("tf_save_dir", tf_save_dir)
    checkpoints = checkpoint.in_order(tf_save_dir)
    if not checkpoints:
        raise FileNotFoundError(f"tf_save_dir: expected a directory that train wrote, found no checkpoint in "
                                f"{tf_save_dir}; elmo-fast import-tf makes one from a TensorFlow checkpoint")
    checkpoint.check_files(tf_save_dir, checkpoints[-1], checkpoint.read(checkpoints[-1]))
    return read_json(Path(tf_save_dir) / OPTIONS_FILE), str(checkpoints[-1])


def load_vocab(vocab_file: str | os.PathLike, max_word_length: int | None = None) -> Vocabulary:
    """Read a vocabulary with `<S>`, `</S>` and `<UNK>`; with characters if `max_word_length` is given. From bilm-tf."""
    if max_word_length:
        return UnicodeCharsVocabulary(vocab_file, max_word_length, validate_file=True)
    return Vocabulary(vocab_file, validate_file=True)


def dump_weights(tf_save_dir: str | os.PathLike, outfile: str | os.PathLike, **reading) -> None:
    """Write the weights of the last checkpoint, without the softmax, as bilm-tf's HDF5 file. From bilm-tf.

    As there, the names of the only layer of a model lack `MultiRNNCell/Cell0`, so that AllenNLP cannot read the file.
    `reading` are arguments of `weights_of_run`.
    """
    _, last = load_options_latest_checkpoint(tf_save_dir)
    config, weights = checkpoint.weights_of_run(tf_save_dir, last, **reading)
    if not config.bidirectional:
        raise ConfigurationError(f"tf_save_dir {tf_save_dir}: expected a model of two directions, since the file "
                                 "format supports no other, got a forward model")
    layer = "MultiRNNCell/Cell0/" if config.model.lstm.n_layers == 1 else ""
    write_weights(outfile, {name.replace(layer, ""): values for name, values in weights.items() if name not in SOFTMAX})


def _check_vocabulary(config: TrainConfig, data: Dataset) -> None:
    if data.vocab.size != config.model.n_tokens_vocab:
        raise ConfigurationError(f"options: n_tokens_vocab: expected the {data.vocab.size} words of the data's "
                                 f"vocabulary, got {config.model.n_tokens_vocab}")


class _Trainer(Trainer):
    """Trains on the batches of a data set, and splits their rows among its streams."""

    def __init__(self, config: TrainConfig, data: Dataset, weights: Arrays):
        device = available_device(None)
        super().__init__(networks.LanguageModel(config, weights).to(device), [], data.vocab, Replicas(device))
        _check_vocabulary(config, data)
        batches = data.iter_batches(config.training.batch_size * self.streams, config.training.unroll_steps)
        self._parts = itertools.tee(batches, self.streams)

    def _load(self, number: int, position: torch.Tensor | None) -> Iterator[Batch]:
        rows = self.config.batch_size
        for step, arrays in enumerate(self._parts[number], self.step_number):
            part = {name: value if value is None else value[number * rows : (number + 1) * rows]
                    for name, value in arrays.items()}
            batch = _batch(self.model.config, part)
            yield batch._replace(samples=self._numbering.samples(batch.targets.numpy(), number, step))
        raise ConfigurationError("data: expected batches without end (test=False), got too few")

    def state(self) -> dict[str, Any] | None:
        """Return the state without LSTM states and the position in the text, as in bilm-tf's checkpoints."""
        return {**super().state(), "streams": None, "shards": None}


def _batch(config: TrainConfig, arrays: Arrays) -> Batch:
    """Make a batch of the trainer from the arrays of `iter_batches`, without sampled words."""
    char_cnn = config.model.char_cnn
    name, shape = ("token_ids", ()) if char_cnn is None else ("tokens_characters", (char_cnn.max_characters_per_token,))
    suffixes = ("", "_reverse") if config.bidirectional else ("",)
    if any(arrays.get(name + suffix) is None for suffix in suffixes) or arrays[name].shape[2:] != shape:
        raise ConfigurationError(f"data: expected {' and '.join(name + suffix for suffix in suffixes)} of shape [rows, "
                                 f"steps{''.join(f', {size}' for size in shape)}], as in the options, got "
                                 f"{ {key: np.shape(value) for key, value in arrays.items() if value is not None} }")
    ids, targets = (np.stack([arrays[key + suffix] for suffix in suffixes]).swapaxes(1, 2).astype(np.int64)
                    for key in (name, "next_token_id"))  # [D, steps, rows, ...]
    targets = targets.reshape(len(suffixes), -1)
    tokens, index = np.unique(ids.reshape(-1, *shape) + 1, axis=0, return_inverse=True)
    return Batch(*map(torch.from_numpy, (tokens, index.reshape(targets.shape), targets)), None, torch.zeros(0))
