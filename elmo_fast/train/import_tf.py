"""A checkpoint of bilm-tf's training to a run of ours: weights, softmax, Adagrad's accumulators, the number of steps."""

import json
import os
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import torch

from elmo_fast.model.options import ConfigurationError
from elmo_fast.model.softmax_head import SOFTMAX
from elmo_fast.model.weights import expected_shapes, lstm_name
from elmo_fast.model.atomic_file import atomic_path
from elmo_fast.text.vocabulary import Vocabulary
from elmo_fast.train import checkpoints
from elmo_fast.train.language_model import LanguageModel
from elmo_fast.train.load import OPTIONS_FILE, VOCABULARY_FILE
from elmo_fast.train.options import Plan, read_json
from elmo_fast.train.replicas import Replicas
from elmo_fast.train.run import copy_vocabulary
from elmo_fast.train.start import RUN_FILE
from elmo_fast.train.tf_checkpoint import Variables, find_checkpoint, open_checkpoint
from elmo_fast.train.trainer import Trainer
from elmo_fast.train.updates import Updater

Opener = Callable[[Path], AbstractContextManager[Variables]]
SLOT = "Adagrad"
_SCOPE = "lm"
_TF_LSTM = {"W_0": "kernel", "B": "bias", "W_P_0": "projection/kernel"}
# Beside weights and slots: bilm-tf's counters, and those of TensorFlow's Adam.
_COUNTERS = frozenset({"global_step", "train_perplexity", "beta1_power", "beta2_power"})


@dataclass(frozen=True)
class Imported:
    """What was imported: the checkpoint, steps of training so far, the model's variables, and those without a slot."""

    checkpoint: Path
    step: int
    variables: int
    fresh_accumulators: int


def import_checkpoint(source: str | os.PathLike, output: str | os.PathLike, *,
                      vocab_file: str | os.PathLike | None = None, options_file: str | os.PathLike | None = None,
                      fresh_accumulators: bool = False, opened: Opener = open_checkpoint) -> Imported:
    """Make the run directory `output` of a bilm-tf checkpoint, which `train --resume`, `perplexity` and `export` take.

    `source` is bilm-tf's directory, whose last checkpoint is taken, or a checkpoint's prefix; `options.json` and
    `vocab.txt` lie beside it unless they are given. With `fresh_accumulators` those that the checkpoint lacks begin at 1.
    LSTM states and the place in the text are in no checkpoint of bilm-tf's: as there, both begin anew. `opened` reads
    the checkpoint of a prefix. Raises `ConfigurationError` for variables that do not fit the options; nothing is left at
    `output` then.
    """
    output = Path(output)
    _check_new(output)
    prefix = find_checkpoint(source)
    plan = _plan(options_file or prefix.parent / OPTIONS_FILE)
    vocab_file = os.fspath(vocab_file or prefix.parent / VOCABULARY_FILE)
    vocabulary = _vocabulary(vocab_file, plan)
    with opened(prefix) as variables:
        without = _check(variables, plan, fresh_accumulators)
        trainer = _trainer(variables, plan, vocabulary, without)
    _write(output, trainer, vocab_file)
    return Imported(prefix, trainer.step_number, len(set(tf_names(plan).values())), len(without))


def _trainer(variables: Variables, plan: Plan, vocabulary: Vocabulary, without: set[str]) -> Trainer:
    """A trainer without a text that stands where the checkpoint does."""
    names = tf_names(plan)
    weights = {name: variables.read(tf_name) for name, tf_name in names.items()}
    trainer = Trainer(LanguageModel(plan, weights), [], vocabulary, Replicas(torch.device("cpu")))
    trainer.step_number = variables.step()
    for name, parameter in trainer.model.by_name().items():
        if names[name] not in without:
            trainer.updater.optimizer.state[parameter]["sum"].copy_(_accumulator(variables, names[name]))
    return trainer


def _plan(options_file: str | os.PathLike) -> Plan:
    """The plan of bilm-tf's options, with bilm-tf's own defaults where they differ from ours, and its optimizer."""
    if not os.path.isfile(options_file):
        raise FileNotFoundError(f"options_file: expected bilm-tf's {OPTIONS_FILE}, found none at {options_file}")
    content, source = read_json(options_file), f"options_file {options_file}"
    if content.get("n_tokens_vocab") is None:
        raise ConfigurationError(f"{source}: n_tokens_vocab: expected the number of words of the softmax, found none")
    if isinstance(content.get("lstm"), dict):
        content["lstm"] = {"use_skip_connections": False, **content["lstm"]}
    return Plan.from_dict({"bidirectional": False, **content, "optimizer": "adagrad"}, source)


def _check_new(output: Path) -> None:
    if os.path.lexists(output):
        raise ConfigurationError(f"output: expected a new directory, found {output} there already")


def _vocabulary(vocab_file: str, plan: Plan) -> Vocabulary:
    if not os.path.isfile(vocab_file):
        raise FileNotFoundError(f"--vocab: expected the vocabulary that the model was trained with, which bilm-tf keeps "
                                f"apart from its checkpoints, found none at {vocab_file}")
    vocabulary = Vocabulary(vocab_file, validate_file=True)
    if vocabulary.size != plan.model.n_tokens_vocab:
        raise ConfigurationError(f"vocabulary {vocab_file}: expected the {plan.model.n_tokens_vocab} words of the softmax, "
                                 f"got {vocabulary.size}: give the vocabulary that the model was trained with")
    return vocabulary


# ---- names and shapes ----------------------------------------------------------------------


def tf_names(plan: Plan) -> dict[str, str]:
    """TensorFlow's name of every dataset of a plan's model, softmax included; a shared table has one under both of ours.

    From `bilm/training.py`, as TensorFlow 1.2 and later name what it makes.
    """
    names = {name: f"{_SCOPE}/{name}" for name in _shapes(plan)}
    for direction in (0, 1)[: 1 + plan.bidirectional]:
        scope = f"{_SCOPE}/RNN_{direction}/rnn" if plan.bidirectional else f"{_SCOPE}/rnn"
        for layer in range(plan.model.lstm.n_layers):
            cell = f"{scope}/multi_rnn_cell/cell_{layer}" if plan.model.lstm.n_layers > 1 else scope
            for dataset, own in _TF_LSTM.items():
                name = lstm_name(direction, layer, dataset)
                if name in names:
                    names[name] = f"{cell}/lstm_cell/{own}"
    if plan.learning.share_embedding_softmax:
        names[SOFTMAX[0]] = names["embedding"]
    return names


def _shapes(plan: Plan) -> dict[str, tuple[int, ...]]:
    """Shape of every dataset of a plan's model, softmax included."""
    shapes = {name: shape for name, shape in expected_shapes(plan.model).items()
              if plan.bidirectional or not name.startswith("RNN_1")}
    words = plan.model.n_tokens_vocab
    return {**shapes, **dict(zip(SOFTMAX, ((words, plan.model.lstm.projection_dim), (words,))))}


def _check(variables: Variables, plan: Plan, fresh_accumulators: bool) -> set[str]:
    """The variables without a slot. `ConfigurationError` unless all else is there, of its shape, and nothing more."""
    source, found, names = f"checkpoint {variables.prefix}", variables.shapes, tf_names(plan)
    expected = {names[name]: shape for name, shape in _shapes(plan).items()}
    slots = {f"{name}/{SLOT}": shape for name, shape in expected.items()}
    missing = sorted(expected.keys() - found.keys())
    if missing:
        raise ConfigurationError(f"{source}: expected the variable {_first(missing)}, which the options ask for, found "
                                 f"{_first(found)}")
    for name, shape in {**expected, **slots}.items():
        if found.get(name, shape) != shape:
            raise ConfigurationError(f"{source}: variable {name}: expected shape {shape}, found {found[name]}")
    without = {name for name in expected if f"{name}/{SLOT}" not in found}
    if without and not fresh_accumulators:
        raise ConfigurationError(f"{source}: expected the accumulators of bilm-tf's optimizer, found none named "
                                 f"{_first(slots.keys() - found.keys())}; --fresh-accumulators begins them at "
                                 f"{Updater.INITIAL_ACCUMULATOR:g}")
    known = expected.keys() | slots.keys() | _COUNTERS
    surplus = [name for name in found.keys() - known if name.rpartition("/")[0] not in without]
    if surplus:
        raise ConfigurationError(f"{source}: expected the variables that the options ask for "
                                 f"({plan.model.lstm.n_layers} LSTM layers), found {_first(surplus)} beside them")
    return without


def _first(names: Iterable[str]) -> str:
    first, *more = sorted(names) or ["no variable"]
    return f"{first} and {len(more)} more" if more else first


def _accumulator(variables: Variables, name: str) -> torch.Tensor:
    """Sums of squared gradients, by whose roots Adagrad divides: above 0."""
    values = variables.read(f"{name}/{SLOT}")
    if not (values > 0).all():
        raise ConfigurationError(f"checkpoint {variables.prefix}: variable {name}/{SLOT}: expected numbers above 0, found "
                                 f"{values.min()}")
    return torch.from_numpy(values)


# ---- the run -------------------------------------------------------------------------------


def _write(output: Path, trainer: Trainer, vocab_file: str) -> None:
    """Write the run; the directory takes its name only when all is in it."""
    _check_new(output)
    content = {**trainer.state(), "streams": None, "shards": None, "evaluations": []}  # None: no text was read yet
    output.parent.mkdir(parents=True, exist_ok=True)
    with atomic_path(output) as part:
        part.mkdir()
        copy_vocabulary(vocab_file, part)
        (part / OPTIONS_FILE).write_text(json.dumps(trainer.model.plan.to_dict(), indent=1) + "\n", encoding="utf-8")
        (part / RUN_FILE).write_text("{}\n", encoding="utf-8")
        checkpoints.save(part, trainer.step_number, content, keep=1)
