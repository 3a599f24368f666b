"""Sets up a run from its arguments: new, from a model to fine-tune, or resumed."""

import dataclasses
import glob
import logging
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from elmo_fast.arguments import check_choice, check_path, local_path, shown
from elmo_fast.engine.precision import TRAINED
from elmo_fast.errors import ConfigurationError
from elmo_fast.files import stops
from elmo_fast.files.atomic import refuse_stdout
from elmo_fast.files.json import read_json
from elmo_fast.files.lock import locked, remove_partials
from elmo_fast.nn.softmax_head import SOFTMAX, read_softmax
from elmo_fast.ops.device import available_device
from elmo_fast.text.corpus import Shard, read_shards
from elmo_fast.text.vocabulary import Vocabulary
from elmo_fast.train import checkpoint, run_files
from elmo_fast.train.checkpoint import write_json
from elmo_fast.train.config import RunConfig, TrainArguments, TrainConfig, published_size
from elmo_fast.train.loop import Run, Trainer
from elmo_fast.train.model import LanguageModel, initial_weights
from elmo_fast.train.optimizer import Replicas
from elmo_fast.train.run_files import BEST, OPTIONS_FILE, RUN_FILE, VOCABULARY_FILE, check_run, read_log
from elmo_fast.weights.datasets import check_finite, check_is_hdf5, read_weights
from elmo_fast.weights.families import SOFTMAX_FILE
from elmo_fast.weights.sources import find_model

logger = logging.getLogger(__name__)

_WITH_RESUME = ("n_epochs", "max_steps")
# Also with --resume if the run was imported and has read no text: weights and accumulators do not depend on these.
_READING = ("format", "field", "tokenizer")  # arguments of `open_texts`
_WITH_FIRST_RESUME = (
    *_READING, "train", "heldout", "precision", "batch_size", "unroll_steps", "accumulate", "dropout", "sample_softmax",
    "n_negative_samples_batch", "all_clip_norm_val", "learning_rate", "warmup_steps", "decay", "reset_states", "seed")


def start_or_resume(run_directory: str | os.PathLike, *, resume: bool = False,
                    resume_from: str | os.PathLike | None = None, device: str | None = None,
                    workers: int | None = None, **keywords: Any) -> None:
    """Train; the arguments are those of `elmo-fast train`, with the same defaults (see `TrainArguments`)."""
    arguments = TrainArguments.of(keywords)
    if device in (None, "cuda") and "LOCAL_RANK" in os.environ and torch.cuda.is_available():
        device = f"cuda:{os.environ['LOCAL_RANK']}"
    available, folder = available_device(device), Path(check_path("run", run_directory))
    refuse_stdout(os.fspath(run_directory), "run")
    if os.path.lexists(folder) and not folder.is_dir():
        raise NotADirectoryError(f"run: expected a directory, got the file {folder}")
    if available.type == "cuda":
        torch.cuda.set_device(available)
        torch.use_deterministic_algorithms(True, warn_only=True)
    workers = (2 if available.type == "cuda" else 0) if workers is None else workers
    replicas = stops.interruptible(Replicas)(available)  # waits for the others
    try:
        if replicas.is_first:
            folder.absolute().parent.mkdir(parents=True, exist_ok=True)
        own = locked(folder) if replicas.is_first else tempfile.TemporaryDirectory(prefix="elmo-fast-")
        with stops.stoppable(terminate=True), own as copies:  # a folder for plain copies of the text
            if replicas.is_first:
                remove_partials(folder)
                run_files.check_own(folder)
            if resume or resume_from:
                run = _resume(folder, replicas, workers, arguments, resume_from, copies)
            else:
                run = _start(folder, replicas, workers, arguments, copies)
            run.train()
    finally:
        replicas.close()


def _start(folder: Path, replicas: Replicas, workers: int, arguments: TrainArguments, copies: str | os.PathLike) -> Run:
    run_config, vocab_file = RunConfig.from_dict(arguments.run), _absolute(arguments.vocab)
    if replicas.is_first:
        run_files.check_is_new(folder, vocab_file)
    data = _data(arguments, {}, replicas)
    for name, files in (("train", data["train"]), ("vocab", vocab_file)):
        if not files:
            raise ConfigurationError(f"--{name}: expected files for a new run, got none"
                                     f"{'; elmo-fast vocab makes one' if name == 'vocab' else ''}")
    shards, heldout = _read_text(data, run_config, copies)
    vocabulary = Vocabulary(vocab_file, validate_file=True)
    options = {**arguments.options, "n_tokens_vocab": vocabulary.size,
               "n_train_tokens": sum(shard.tokens for shard in shards)}
    config, weights = _config_and_weights(arguments, options, vocabulary)
    trainer = _trainer(config, weights, data, shards, vocabulary, replicas, workers)
    if replicas.is_first:
        checkpoint.folder(folder).mkdir(parents=True, exist_ok=True)
        for path in (*checkpoint.in_order(folder), folder / BEST):
            path.unlink(missing_ok=True)
        checkpoint.copy_vocabulary(vocab_file, folder)
        write_json(folder / OPTIONS_FILE, config.to_dict())
    run = Run(folder, trainer, vocabulary, heldout, run_config, [])
    if arguments.is_fine_tuning:
        run.save()  # a run without checkpoints resumes from random weights
    if replicas.is_first:
        write_json(folder / RUN_FILE, {**data, **dataclasses.asdict(run_config)})
    return run


def _data(arguments: TrainArguments, stored: dict[str, Any], replicas: Replicas) -> dict[str, Any]:
    """Return `stored` updated by the arguments' texts and precision; the default precision depends on the device."""
    names = ("train", "heldout", "precision", *_READING)
    values = {name: getattr(arguments, name) or stored.get(name) for name in names}
    if not isinstance(values["tokenizer"], (str, type(None))):
        raise ConfigurationError("tokenizer: expected a name or package.module:function, by which --resume finds it "
                                 f"again, got {shown(values['tokenizer'])}")
    is_bf16 = replicas.device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
    values["precision"] = values["precision"] or ("medium" if is_bf16 else "highest")
    return {**stored, **values, "train": _absolute(values["train"]), "heldout": _absolute(values["heldout"])}


def _absolute(value: list[str] | str | None) -> list[str] | str | None:
    if isinstance(value, list):
        return list(map(_absolute, value))
    value = value and local_path(value)
    if not value or os.path.isabs(value) or os.path.exists(value):
        return value and os.path.abspath(value)
    return os.path.join(glob.escape(os.getcwd()), os.path.normpath(value))  # perhaps a pattern


def _read_text(data: dict[str, Any], config: RunConfig, copies: str | os.PathLike) -> tuple[list[Shard], list[Shard]]:
    """Return the shards of the training text and of the held-out text; `copies` is a folder as in `plain_files`."""
    reading = {name: data[name] for name in _READING if data.get(name) is not None}
    shards, heldout = (read_shards(data[name], name, copies, **reading) if data.get(name) else []
                       for name in ("train", "heldout"))
    sentences = sum(shard.sentences for shard in heldout)
    if heldout and sentences < config.evaluate_batch_size:
        raise ValueError(f"--evaluate-batch-size: expected at most the {sentences} sentences of the held-out text, got "
                         f"{config.evaluate_batch_size}")
    if config.patience and not heldout:
        raise ConfigurationError("--patience: expected --heldout beside it, whose perplexity ends the run; got none")
    return shards, heldout


def _config_and_weights(arguments: TrainArguments, options: dict[str, Any],
                        vocabulary: Vocabulary) -> tuple[TrainConfig, dict[str, np.ndarray]]:
    """Make config and weights of a new run; `options` override those of its options file, size or base model."""
    if arguments.is_fine_tuning:
        if arguments.size:
            raise ConfigurationError("--size: expected none beside a model to fine-tune, which has its sizes; got one")
        return _fine_tuned(arguments, options, vocabulary)
    if arguments.options_file and arguments.size:
        raise ConfigurationError("--size: expected none beside --options-file, got both")
    if arguments.options_file:
        config = TrainConfig.from_file(arguments.options_file, **options)
    else:
        config = TrainConfig.from_dict({**published_size(arguments.size or "original"), **options})
    return config, initial_weights(config, config.training.seed)


def _fine_tuned(arguments: TrainArguments, options: dict[str, Any], vocabulary: Vocabulary):
    in_file = read_json(arguments.options_file) if arguments.options_file else {}
    files = find_model(arguments.from_model, options_file=arguments.from_options, weight_file=arguments.from_weights)
    check_is_hdf5(files)
    content, allow_nonfinite = read_json(files.options_file), bool(arguments.allow_nonfinite)
    sizes = {name: content[name] for name in ("lstm", "char_cnn") if name in content}
    config = TrainConfig.from_dict({**in_file, **sizes, **options}, f"options_file {files.options_file}")
    weights = {**initial_weights(config, config.training.seed),
               **read_weights(files.weight_file, config.model, allow_nonfinite)}
    softmax_file = arguments.from_softmax or files.weight_file.parent / SOFTMAX_FILE
    if config.model.char_cnn is None:
        _check_words(files.vocab_file, vocabulary)
    if arguments.from_softmax or softmax_file.is_file():
        if not arguments.from_softmax:
            _check_words(files.vocab_file, vocabulary)
        softmax = read_softmax(softmax_file, config.model.lstm.projection_dim, allow_nonfinite)
        if len(softmax[SOFTMAX[0]]) != vocabulary.size:
            raise ConfigurationError(f"softmax {softmax_file}: expected the {vocabulary.size} words of the vocabulary, "
                                     f"got {len(softmax[SOFTMAX[0]])}: give the vocabulary it was trained with")
        weights.update(softmax)
    return config, weights


def _check_words(vocab_file: str | os.PathLike | None, vocabulary: Vocabulary) -> None:
    """Raise `ConfigurationError` if the vocabulary beside a model, which names the model's rows, has other words."""
    words = Vocabulary(vocab_file, validate_file=True).words if vocab_file else vocabulary.words
    if len(words) == vocabulary.size and words != vocabulary.words:
        first = next(k for k, word in enumerate(words) if word != vocabulary.words[k])
        raise ConfigurationError(f"--vocab: expected the words of {vocab_file} in their order, which the model was "
                                 f"trained with, got {vocabulary.words[first]!r:.40} in place of {words[first]!r:.40}")


def _trainer(config: TrainConfig, weights, data: dict[str, Any], shards: list[Shard], vocabulary: Vocabulary,
             replicas: Replicas, workers: int) -> Trainer:
    """Make a trainer. `ValueError` if there are fewer words than samples, or less text than a step reads."""
    training, available = config.training, sum(shard.predictions for shard in shards)
    streams = replicas.world * training.accumulate
    rows = training.batch_size * streams
    if training.sample_softmax and training.n_negative_samples_batch > vocabulary.size:
        raise ValueError(f"n_negative_samples_batch: expected at most the {vocabulary.size} words of the vocabulary, "
                         f"got {training.n_negative_samples_batch}; lower --negatives, or train with --full-softmax")
    if training.unroll_steps * rows > available:
        name, most = ("unroll_steps", available // rows) if rows <= available else ("batch_size", available // streams)
        raise ValueError(f"{name}: expected at most {most} for {available:,} tokens with their sentences' ends in "
                         f"{training.batch_size} rows of {streams} streams, got {getattr(training, name)}")
    precision = check_choice("precision", data.get("precision"), TRAINED)
    model = LanguageModel(config, weights, precision=precision).to(replicas.device)
    trainer = Trainer(model, shards, vocabulary, replicas, workers)
    if training.warmup_steps > trainer.total_steps and replicas.is_first:
        logger.warning("the warm-up takes %d steps and the run %d: the learning rate never reaches its %g; "
                       "--warmup-steps sets fewer", training.warmup_steps, trainer.total_steps, training.learning_rate)
    return trainer


def _resume(folder: Path, replicas: Replicas, workers: int, arguments: TrainArguments,
            start: str | os.PathLike | None, copies: str | os.PathLike) -> Run:
    """Resume a run from the checkpoint `start`, by default its last."""
    check_run(folder)
    _check_changes(arguments, is_first=True)  # arguments that no resumed run accepts
    read_log(folder)  # a damaged log fails before any work; the log is read again later
    data, path = read_json(folder / RUN_FILE, "run"), start or next(reversed(checkpoint.in_order(folder)), None)
    state = _read_state(folder, path) if path else None
    is_first = state is not None and state["streams"] is None  # imported: no text was read yet
    run_config = RunConfig.from_dict({**data, **arguments.run})
    _check_changes(arguments, is_first)
    if is_first:
        data = _data(arguments, data, replicas)
        if not data["train"]:
            raise ConfigurationError("--train: expected files beside --resume, since this run was imported without a "
                                     "text; got none")
    shards, heldout = _read_text(data, run_config, copies)
    if state is not None and not is_first:
        _check_shards("train", state["shards"] or [], shards, f"checkpoint {path}")
        _check_shards("heldout", state.get("heldout", []), heldout, f"checkpoint {path}")
    changes = dict(arguments.options)
    if is_first:
        changes["n_train_tokens"] = sum(shard.tokens for shard in shards)
    config = TrainConfig.from_file(folder / OPTIONS_FILE, **changes)
    vocabulary = checkpoint.read_vocabulary(folder / VOCABULARY_FILE, config.model.n_tokens_vocab)
    trainer = _trainer(config, initial_weights(config, config.training.seed), data, shards, vocabulary, replicas,
                       workers)
    if state is not None:
        _restore(trainer, state, path)
    if state is None and replicas.is_first:
        (folder / BEST).unlink(missing_ok=True)  # of a run that was killed before its first checkpoint
    if changes and replicas.is_first:
        write_json(folder / OPTIONS_FILE, config.to_dict())
    if is_first and replicas.is_first:
        write_json(folder / RUN_FILE, {**data, **dataclasses.asdict(run_config)})
    if trainer.step_number >= trainer.total_steps:
        logger.warning("%s: step %d of %d, so there is nothing left to do; --max-steps or --epochs, counted from the "
                       "very first step, train longer", folder, trainer.step_number, trainer.total_steps)
    return Run(folder, trainer, vocabulary, heldout, run_config, state["evaluations"] if state else [])


def _read_state(folder: Path, path: str | os.PathLike) -> dict[str, Any]:
    """Read and check a checkpoint of the run."""
    state = checkpoint.read(path, "optimizer", "streams", "shards", "losses", "evaluations")
    checkpoint.check_files(folder, path, state)
    for name, values in state["weights"].items():
        check_finite(f"checkpoint {path}: weights: {name}", values.numpy())
    return state


def _check_changes(arguments: TrainArguments, is_first: bool) -> None:
    """Raise `ConfigurationError` for an argument that a resumed run does not use."""
    surplus = sorted(arguments.names().difference(_WITH_RESUME, _WITH_FIRST_RESUME if is_first else ()))
    if surplus:
        raise ConfigurationError(f"--{surplus[0].replace('_', '-')}: expected no such argument beside --resume, which "
                                 "continues with the run's own")


def _restore(trainer: Trainer, state: dict[str, Any], path: str | os.PathLike) -> None:
    try:
        trainer.restore(state)
    except ConfigurationError as error:
        raise ConfigurationError(f"{error}, in {path}") from error


def _check_shards(name: str, run_shards: list[list], shards: list[Shard], source: str) -> None:
    """Raise `ConfigurationError` if files have changed."""
    expected = [[os.path.basename(path), *rest] for path, *rest in run_shards]
    present = [[os.path.basename(path), *rest] for path, *rest in shards]
    changed = [old[0] for old, new in zip(expected, present) if old != new]
    if changed or len(present) != len(expected):
        raise ConfigurationError(f"{name}: expected the {len(expected)} files that the run began with, unchanged, "
                                 f"found a difference in {(changed or ['their number'])[0]:.80} ({source})")
