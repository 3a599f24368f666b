"""Sets a run up from its arguments, fresh, from a model, or from where it stopped."""

import dataclasses
import json
import logging
import os
from pathlib import Path
from typing import Any

import torch

from elmo_fast.model.options import ConfigurationError
from elmo_fast.model.softmax_head import SOFTMAX, read_softmax
from elmo_fast.model.sources import SOFTMAX_FILE, find_model
from elmo_fast.model.weights import read_weights
from elmo_fast.model.atomic_file import atomic_path
from elmo_fast.text.vocabulary import Vocabulary
from elmo_fast.train import checkpoints
from elmo_fast.train.language_model import LanguageModel, fresh_weights
from elmo_fast.train.load import OPTIONS_FILE, VOCABULARY_FILE
from elmo_fast.train.options import Plan, read_json, sized
from elmo_fast.train.replicas import Replicas
from elmo_fast.train.run import Run, Running, copy_vocabulary, running_of
from elmo_fast.train.shards import Shard, read_shards
from elmo_fast.train.trainer import Trainer

logger = logging.getLogger(__name__)

RUN_FILE = "run.json"
_MAY_CHANGE = ("n_epochs", "max_steps")  # of a run that is resumed
# Of one that has read no text yet, since another program began it: what no weight and no accumulator depends on.
_OPEN = ("train", "heldout", "precision", "batch_size", "unroll_steps", "accumulate", "dropout", "sample_softmax",
         "n_negative_samples_batch", "all_clip_norm_val", "learning_rate", "warmup_steps", "decay", "reset_states", "seed")


def start_or_resume(run_directory: str | os.PathLike, *, resume: bool = False, device: str | None = None,
                    workers: int | None = None, **given: Any) -> None:
    """Train; the arguments are those of `elmo-fast train`, and what is not given has its default."""
    replicas = Replicas(_device(device))
    try:
        if replicas.device.type == "cuda":
            torch.use_deterministic_algorithms(True, warn_only=True)
        workers = (2 if replicas.device.type == "cuda" else 0) if workers is None else workers
        set_up = _resumed if resume else _started
        set_up(Path(run_directory), replicas, workers, given).train()
    finally:
        replicas.close()


def _device(name: str | None) -> torch.device:
    if name is None:
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and "LOCAL_RANK" in os.environ:
        name = f"cuda:{os.environ['LOCAL_RANK']}"
    try:
        device = torch.device(name)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise ValueError(f"device: expected one that is there, got {name!r} ({error})") from error
    if device.type == "cuda":
        torch.cuda.set_device(device)
    return device


def _precision(device: torch.device) -> str:
    return "medium" if device.type == "cuda" and torch.cuda.is_bf16_supported() else "highest"


# ---- a new run -----------------------------------------------------------------------------


def _started(folder: Path, replicas: Replicas, workers: int, given: dict[str, Any]) -> Run:
    if checkpoints.in_order(folder):
        raise ConfigurationError(f"run {folder}: expected a new directory, found checkpoints; go on with --resume, or "
                                 "name another")
    running = running_of(given)
    precision = given.pop("precision", None) or _precision(replicas.device)
    data = _data(given)
    shards, heldout = _read(data, running)
    vocabulary = Vocabulary(data["vocab"], validate_file=True)
    plan, weights = _plan_and_weights(given, vocabulary, shards)
    model = LanguageModel(plan, weights, precision=precision).to(replicas.device)
    trainer = Trainer(model, shards, vocabulary, replicas, workers)
    _check_sizes(trainer, vocabulary.size)
    if replicas.is_first:
        folder.mkdir(parents=True, exist_ok=True)
        copy_vocabulary(data.pop("vocab"), folder)
        _write_json(folder / OPTIONS_FILE, plan.to_dict())
        _write_json(folder / RUN_FILE, {**data, "precision": precision, **dataclasses.asdict(running)})
    return Run(folder, trainer, vocabulary, heldout, running, [])


def _data(given: dict[str, Any]) -> dict[str, Any]:
    data = {name: given.pop(name, None) for name in ("train", "heldout", "vocab")}
    for name in ("train", "vocab"):
        if not data[name]:
            raise ConfigurationError(f"--{name}: expected files for a new run, got none")
    return {name: _absolute(value) for name, value in data.items()}


def _absolute(value: list[str] | str | None) -> list[str] | str | None:
    return [os.path.abspath(each) for each in value] if isinstance(value, list) else value and os.path.abspath(value)


def _read(data: dict[str, Any], running: Running) -> tuple[list[Shard], list[Shard]]:
    shards = read_shards(data["train"], "train")
    heldout = read_shards(data["heldout"], "heldout") if data["heldout"] else []
    sentences = sum(shard.sentences for shard in heldout)
    if heldout and sentences < running.evaluate_batch_size:
        raise ValueError(f"--evaluate-batch-size: expected at most the {sentences} sentences of the held-out text, got "
                         f"{running.evaluate_batch_size}")
    if running.patience and not heldout:
        raise ConfigurationError("--patience: expected --heldout beside it, whose perplexity decides; got none")
    return shards, heldout


def _plan_and_weights(given: dict[str, Any], vocabulary: Vocabulary, shards: list[Shard]):
    model = {name: given.pop(f"from_{name}", None) for name in ("model", "options", "weights", "softmax")}
    options_file, size = given.pop("options_file", None), given.pop("size", None)
    given["n_tokens_vocab"] = vocabulary.size
    given["n_train_tokens"] = sum(shard.tokens for shard in shards)
    if any(model.values()):
        return _fine_tuned(model, options_file, size, given, vocabulary)
    if options_file and size:
        raise ConfigurationError("--size: expected none beside --options-file, got both")
    content = read_json(options_file) if options_file else sized(size or "original")
    plan = Plan.from_dict({**content, **given}, f"options_file {options_file}" if options_file else "options")
    return plan, fresh_weights(plan, plan.learning.seed)


def _fine_tuned(model: dict[str, Any], options_file, size, given: dict[str, Any], vocabulary: Vocabulary):
    if size:
        raise ConfigurationError("--size: expected none beside a model to fine-tune, whose sizes hold; got one")
    files = find_model(model["model"], options_file=model["options"], weight_file=model["weights"])
    content = {name: value for name, value in read_json(files.options_file).items()
               if name in ("lstm", "char_cnn")}
    learning = read_json(options_file) if options_file else {}
    plan = Plan.from_dict({**learning, **content, **given}, f"options_file {files.options_file}")
    weights = {**fresh_weights(plan, plan.learning.seed), **read_weights(files.weight_file, plan.model)}
    softmax = model["softmax"] or files.weight_file.parent / SOFTMAX_FILE
    if model["softmax"] or softmax.is_file():
        loaded = read_softmax(softmax, plan.model.lstm.projection_dim)
        if len(loaded[SOFTMAX[0]]) != vocabulary.size:
            raise ConfigurationError(f"softmax {softmax}: expected the {vocabulary.size} words of the vocabulary, got "
                                     f"{len(loaded[SOFTMAX[0]])}: give the vocabulary it was trained with")
        weights.update(loaded)
    return plan, weights


def _check_sizes(trainer: Trainer, words: int) -> None:
    learning = trainer.learning
    if learning.sample_softmax and learning.n_negative_samples_batch > words:
        raise ValueError(f"n_negative_samples_batch: expected at most the {words} words of the vocabulary, got "
                         f"{learning.n_negative_samples_batch}; lower --negatives, or train with --full-softmax")
    if trainer.steps_an_epoch < 1:
        available = sum(shard.tokens + shard.sentences for shard in trainer.shards)
        raise ValueError(f"unroll_steps: expected at most {available // (learning.batch_size * trainer.streams)} for "
                         f"{available:,} tokens with their sentences' ends in {learning.batch_size} rows of "
                         f"{trainer.streams} streams, got {learning.unroll_steps}")


def _write_json(path: Path, content: dict[str, Any]) -> None:
    with atomic_path(path) as part:
        part.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


# ---- a run that goes on --------------------------------------------------------------------


def _resumed(folder: Path, replicas: Replicas, workers: int, given: dict[str, Any]) -> Run:
    if not (folder / OPTIONS_FILE).is_file() or not (folder / RUN_FILE).is_file():
        raise FileNotFoundError(f"run {folder}: expected a run to resume, found no {OPTIONS_FILE} and {RUN_FILE}")
    data = read_json(folder / RUN_FILE)
    found = checkpoints.in_order(folder)
    state = checkpoints.read(found[-1]) if found else None
    is_open = state is not None and state["streams"] is None
    running = running_of({**data, **given})
    given = {name: value for name, value in given.items() if not hasattr(running, name)}
    surplus = sorted(given.keys() - {*_MAY_CHANGE, *(_OPEN if is_open else ())})
    if surplus:
        raise ConfigurationError(f"--{surplus[0].replace('_', '-')}: expected no such argument beside --resume, which goes "
                                 "on with the run's own")
    if is_open:
        data = _first_data(data, given, replicas)
    shards, heldout = _read(data, running)
    if is_open:
        given["n_train_tokens"] = sum(shard.tokens for shard in shards)
    plan = Plan.from_dict({**read_json(folder / OPTIONS_FILE), **given}, f"options_file {folder / OPTIONS_FILE}")
    vocabulary = Vocabulary(folder / VOCABULARY_FILE, validate_file=True)
    if vocabulary.size != plan.model.n_tokens_vocab:
        raise ConfigurationError(f"vocabulary {folder / VOCABULARY_FILE}: expected {plan.model.n_tokens_vocab} words, got "
                                 f"{vocabulary.size}")
    fresh = fresh_weights(plan, plan.learning.seed)
    model = LanguageModel(plan, fresh, precision=data["precision"]).to(replicas.device)
    trainer = Trainer(model, shards, vocabulary, replicas, workers)
    _check_sizes(trainer, vocabulary.size)
    evaluations: list[dict[str, Any]] = []
    if state is not None:
        if not is_open:
            _check_shards(state["shards"], shards)
        trainer.restore(state)
        evaluations = state["evaluations"]
    if given and replicas.is_first:
        _write_json(folder / OPTIONS_FILE, plan.to_dict())
    if is_open and replicas.is_first:
        _write_json(folder / RUN_FILE, {**data, **dataclasses.asdict(running)})
    if trainer.step_number >= trainer.total_steps:
        logger.warning("%s: step %d of %d, so there is nothing left to do; --max-steps or --epochs, counted from the very "
                       "first step, train longer", folder, trainer.step_number, trainer.total_steps)
    return Run(folder, trainer, vocabulary, heldout, running, evaluations)


def _first_data(data: dict[str, Any], given: dict[str, Any], replicas: Replicas) -> dict[str, Any]:
    """Text and precision of a run that has read no text yet; takes them out of `given`."""
    own = {name: given.pop(name, None) or data.get(name) for name in ("train", "heldout", "precision")}
    if not own["train"]:
        raise ConfigurationError("--train: expected files beside --resume, since this run was imported without a text; "
                                 "got none")
    return {**data, **{name: _absolute(value) for name, value in own.items() if name != "precision"},
            "precision": own["precision"] or _precision(replicas.device)}


def _check_shards(before: list[list], now: list[Shard]) -> None:
    found = [[os.path.basename(shard.path), shard.size, shard.sentences, shard.tokens] for shard in now]
    expected = [[os.path.basename(path), *rest] for path, *rest in before]
    if found != expected:
        changed = next((one for one, other in zip(expected, found) if one != other), ["their number"])
        raise ConfigurationError(f"train: expected the {len(expected)} files that the run began with, unchanged, found "
                                 f"a difference in {changed[0]}")
