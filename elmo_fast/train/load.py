"""A trained language model from a run or from exported files, with its vocabulary."""

import os
from pathlib import Path

import numpy as np

from elmo_fast.model.options import ConfigurationError, Options
from elmo_fast.model.softmax_head import SOFTMAX, read_softmax
from elmo_fast.model.sources import SOFTMAX_FILE, ModelFiles, find_model
from elmo_fast.model.weights import read_weights
from elmo_fast.text.vocabulary import Vocabulary
from elmo_fast.train import checkpoints
from elmo_fast.train.language_model import LanguageModel
from elmo_fast.train.options import Plan, read_json

OPTIONS_FILE, VOCABULARY_FILE = "options.json", "vocab.txt"


def load_language_model(model: str | os.PathLike, checkpoint: str | os.PathLike | None = None,
                        softmax_file: str | os.PathLike | None = None,
                        vocab_file: str | os.PathLike | None = None) -> tuple[LanguageModel, Vocabulary]:
    """The model of a run's directory, or of exported files with their softmax, and its vocabulary."""
    if is_run(model):
        plan, weights = weights_of_run(model, checkpoint)
        vocab_file = vocab_file or Path(model) / VOCABULARY_FILE
    else:
        plan, weights, beside = _weights_of_files(model, softmax_file)
        vocab_file = vocab_file or beside
    if vocab_file is None:
        raise ConfigurationError(f"vocab: expected the vocabulary of {model}, found no {VOCABULARY_FILE} beside it")
    vocabulary = Vocabulary(vocab_file, validate_file=True)
    if vocabulary.size != len(weights[SOFTMAX[0]]):
        raise ConfigurationError(f"vocabulary {vocab_file}: expected the {len(weights[SOFTMAX[0]])} words of the softmax, "
                                 f"got {vocabulary.size}")
    return LanguageModel(plan, weights), vocabulary


def is_run(path: str | os.PathLike) -> bool:
    """Whether a path is a run's directory: one with checkpoints."""
    return checkpoints.folder(path).is_dir()


def weights_of_run(run: str | os.PathLike,
                   checkpoint: str | os.PathLike | None = None) -> tuple[Plan, dict[str, np.ndarray]]:
    """Plan and weights by dataset name, softmax included, of a run's best checkpoint, its last, or the one named."""
    content = checkpoints.read(checkpoints.choose(run, checkpoint))
    plan = Plan.from_dict(read_json(Path(run) / OPTIONS_FILE), f"options_file {Path(run) / OPTIONS_FILE}")
    return plan, {name: value.numpy() for name, value in content["weights"].items()}


def _weights_of_files(model, softmax_file) -> tuple[Plan, dict[str, np.ndarray], Path | None]:
    files = find_model(model)
    options = Options.from_file(files.options_file)
    softmax = read_softmax(softmax_file or _beside(files), options.lstm.projection_dim)
    content = {**options.raw, "n_tokens_vocab": len(softmax[SOFTMAX[0]])}
    return Plan.from_dict(content), {**read_weights(files.weight_file, options), **softmax}, files.vocab_file


def _beside(files: ModelFiles) -> Path:
    path = files.weight_file.parent / SOFTMAX_FILE
    if not path.is_file():
        raise FileNotFoundError(f"softmax: expected {SOFTMAX_FILE}, which export writes with --softmax, found nothing "
                                f"at {path}")
    return path
