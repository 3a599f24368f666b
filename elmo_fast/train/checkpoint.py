"""Reads and writes the directory of a run: options, vocabulary, and checkpoints, which hold the trained model."""

import hashlib
import json
import math
import os
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from elmo_fast.arguments import check_path, local_path
from elmo_fast.errors import ConfigurationError, parsing
from elmo_fast.files.atomic import DeferredErrorFile, atomic_path, write_bytes
from elmo_fast.files.compressed import read_words
from elmo_fast.files.json import parse_json, read_json
from elmo_fast.files.tensors import is_plain, load_tensors
from elmo_fast.nn.softmax_head import SOFTMAX, read_softmax
from elmo_fast.text.vocabulary import Vocabulary
from elmo_fast.train.config import TrainConfig
from elmo_fast.train.model import LanguageModel, parameter_shapes
from elmo_fast.train.run_files import OPTIONS_FILE, VOCABULARY_FILE, choose, folder, in_order
from elmo_fast.weights.datasets import check_finite, check_shapes, read_model
from elmo_fast.weights.families import SOFTMAX_FILE
from elmo_fast.weights.options import NETWORK_KEYS
from elmo_fast.weights.sources import find_model

FORMAT = 3  # format 2, whose `files` has a digest of the options in their place, can be read too
_CHANGEABLE = {"n_epochs", "max_steps"}  # options that a resumed run may replace
_MAX_FLOAT32 = torch.finfo(torch.float32).max
# The smallest valid values of an optimizer's state, by name.
_STATE_MINIMA = {"step": 0.0, "sum": torch.finfo(torch.float32).tiny, "exp_avg_sq": 0.0}


def name_of(step: int) -> str:
    """Return the file name of a step's checkpoint."""
    return f"step-{step:08d}.pt"


def save(run: str | os.PathLike, content: dict[str, Any], keep: int) -> None:
    """Write a checkpoint; then remove checkpoints of later steps, left before a resume, and all but the last `keep`."""
    path = folder(run) / name_of(content["step"])
    write(path, content)
    checkpoints = in_order(run)
    end = checkpoints.index(path) + 1
    for file in [*checkpoints[: max(0, end - keep)], *checkpoints[end:]]:
        file.unlink(missing_ok=True)


def write(path: Path, content: dict[str, Any]) -> None:
    """Write a checkpoint atomically: it gets its name once its bytes are on disk. `OSError` names the file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with atomic_path(path) as partial, DeferredErrorFile(partial, path) as file:
            torch.save({"format": FORMAT, **content}, file)
            file.check()
            os.fsync(file.fileno())
    except OSError as error:
        raise OSError(error.errno, f"{error.strerror} (earlier checkpoints are unchanged)", str(path)) from error


def read(path: str | os.PathLike, *required: str) -> dict[str, Any]:
    """Read the content of a checkpoint: its step, its weights, its run's files and the entries `required`.

    `ConfigurationError` if the file is not a checkpoint, if its content has changed, or if an entry is invalid.
    """
    path = local_path(path)
    content = load_tensors(path, "checkpoint", "a checkpoint of elmo-fast train", _remedy(path))
    version = content.get("format") if isinstance(content, dict) else None
    if type(version) is not int or version not in (2, FORMAT):
        raise ConfigurationError(f"checkpoint {path}: expected format {FORMAT} of elmo-fast train, got another file")
    if _is_damaged(path):
        raise ConfigurationError(f"checkpoint {path}: expected the bytes of its checksums, found others: the file is "
                                 f"damaged{_remedy(path)}")
    optional = {"heldout"} & content.keys()  # an imported checkpoint has none
    for name in ("step", "weights", "files", *required, *optional):
        if not _FITS[name](content.get(name, ...)):
            raise ConfigurationError(f"checkpoint {path}: {name}: expected what elmo-fast train writes, got something "
                                     f"else or nothing{_remedy(path)}")
    return content


def _is_damaged(path: str) -> bool:
    """Whether a part of the archive does not have its CRC; PyTorch writes the CRCs, but does not compare them."""
    try:
        with zipfile.ZipFile(path) as archive:
            return archive.testzip() is not None
    except Exception:  # a damaged archive may raise any error
        return True


def _is_tensor(value: Any, minimum: float = -math.inf) -> bool:
    """Return whether `value` is a float32 tensor with all values at least `minimum`."""
    return is_plain(value, torch.float32) and bool((value >= minimum).all())


def _is_optimizer(value: Any) -> bool:
    """Return whether `value` holds steps and accumulators by parameter and name.

    Adagrad divides by the roots of its sums, which begin at 1 and so must be above 0.
    """
    state = value.get("state") if isinstance(value, dict) else None
    return isinstance(state, dict) and all(isinstance(entries, dict) and all(
        _is_tensor(tensor, _STATE_MINIMA.get(name, -_MAX_FLOAT32)) and bool((tensor <= _MAX_FLOAT32).all())
        for name, tensor in entries.items()) for entries in state.values())


def _is_list(value: Any, fits: Callable[[Any], bool]) -> bool:
    return isinstance(value, list) and all(map(fits, value))


def _is_stream(value: Any) -> bool:
    return (isinstance(value, dict) and value.keys() == {"h", "c", "position"}
            and all(_is_tensor(value[name]) and bool(value[name].isfinite().all()) for name in ("h", "c"))
            and (value["position"] is None or is_plain(value["position"], torch.int64)))


_SHARD = [str, int, int, int, str]  # path, size, lines, tokens, and the hash of the text
# Streams and shards are None in a run that has read no text yet.
_FITS: dict[str, Callable[[Any], bool]] = {
    "step": lambda value: type(value) is int and value >= 0,
    "weights": lambda value: isinstance(value, dict) and all(
        isinstance(name, str) and is_plain(tensor, torch.float32) for name, tensor in value.items()),
    "optimizer": _is_optimizer,
    "streams": lambda value: value is None or _is_list(value, _is_stream),
    "losses": lambda value: (_is_list(value, lambda loss: is_plain(loss, torch.float32) and loss.dim() == 1)
                             and len(set(map(len, value))) == 1),
    "shards": lambda value: value is None or _is_list(
        value, lambda shard: isinstance(shard, list) and [type(field) for field in shard] == _SHARD),
    "heldout": lambda value: _FITS["shards"](value) and value is not None,
    "evaluations": lambda value: _is_list(
        value, lambda entry: isinstance(entry, dict) and isinstance(entry.get("perplexity"), float)),
    "files": lambda value: (isinstance(value, dict) and value.keys() == {OPTIONS_FILE, VOCABULARY_FILE}
                            and all(isinstance(described, str) for described in value.values())),
}


def described_files(run: str | os.PathLike) -> dict[str, str]:
    """Return a run's options in JSON, and its vocabulary's SHA-256, by file name: the entry `files` of checkpoints."""
    return {OPTIONS_FILE: json.dumps(read_json(Path(run) / OPTIONS_FILE)),
            VOCABULARY_FILE: _sha256_of(Path(run) / VOCABULARY_FILE)}


def _sha256_of(path: Path) -> str:
    if not path.is_file():
        return "none"
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check_files(run: str | os.PathLike, path: str | os.PathLike, content: dict[str, Any],
                vocabulary: bool = True) -> None:
    """Raise `ConfigurationError` if a run's options or vocabulary changed after the checkpoint `path` was written.

    Options that a resumed run may replace are not compared; if the run starts its text anew, only the network's are.
    """
    current, stored = described_files(run), content["files"]
    changed = [VOCABULARY_FILE] if vocabulary and current[VOCABULARY_FILE] != stored[VOCABULARY_FILE] else []
    if content["format"] == FORMAT:  # format 2 has a digest of the options
        where = f"checkpoint {path}: files"
        with parsing(where, f"those of a run, with the object of {OPTIONS_FILE}"):
            expected, options = (dict(parse_json(files[OPTIONS_FILE], where)) for files in (stored, current))
        starts_anew = content.get("streams", ()) is None
        keys = NETWORK_KEYS if starts_anew else sorted((expected.keys() | options.keys()) - _CHANGEABLE)
        changed += [f"{OPTIONS_FILE}: {key}" for key in keys if expected.get(key) != options.get(key)]
    if changed:
        raise ConfigurationError(f"run {run}: {changed[0]:.80}: expected what {path} was written with, found something "
                                 "else: it was damaged or changed; put a copy of the original file there")


def _remedy(path: str | os.PathLike) -> str:
    """Return the end of an error message, which proposes another checkpoint; empty if there is none."""
    parent = Path(path).absolute().parent
    checkpoints = [file for file in in_order(parent.parent if parent.name == "checkpoints" else parent)
                   if file.name != Path(path).name]
    return f"; name another one with --resume-from or --checkpoint: {checkpoints[-1]}" if checkpoints else ""


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write a JSON file atomically."""
    write_bytes(path, (json.dumps(content, indent=1) + "\n").encode())


def copy_vocabulary(source: str, run: Path) -> None:
    """Copy a vocabulary, unpacked and without a byte order mark, into a run, which then works without the original."""
    target = run / VOCABULARY_FILE
    if not (target.exists() and target.samefile(source)):
        write_bytes(target, read_words(source, "vocabulary"))


def read_vocabulary(vocab_file: str | os.PathLike, size: int) -> Vocabulary:
    """Read the vocabulary of a model whose softmax has `size` words; `ConfigurationError` if the sizes differ."""
    vocabulary = Vocabulary(vocab_file, validate_file=True)
    if vocabulary.size != size:
        raise ConfigurationError(f"vocabulary {os.fspath(vocab_file)}: expected the {size} words of the softmax, got "
                                 f"{vocabulary.size}: give the vocabulary that the model was trained with")
    return vocabulary


def weights_of_run(run: str | os.PathLike, checkpoint: str | os.PathLike | None = None,
                   vocabulary: bool = True,
                   allow_nonfinite: bool = False) -> tuple[TrainConfig, dict[str, np.ndarray]]:
    """Read configuration and weights by dataset name, softmax included, from the checkpoint that `choose` returns.

    The run's options, and its `vocabulary`, are compared with those that the checkpoint was written with. NaN and
    infinities are refused unless `allow_nonfinite`.
    """
    run = local_path(run)
    path = choose(run, checkpoint)
    content = read(path)
    check_files(run, path, content, vocabulary)
    config = TrainConfig.from_file(Path(run) / OPTIONS_FILE)
    weights = {name: value.numpy() for name, value in content["weights"].items()}
    source = f"checkpoint {path}: weights"
    check_shapes(source, parameter_shapes(config, weights), weights)
    if not allow_nonfinite:
        for name, values in weights.items():
            check_finite(f"{source}: {name}", values)
    return config, weights


def load_language_model(model: str | os.PathLike, checkpoint: str | os.PathLike | None = None,
                        softmax_file: str | os.PathLike | None = None,
                        vocab_file: str | os.PathLike | None = None,
                        allow_nonfinite: bool = False) -> tuple[LanguageModel, Vocabulary]:
    """Load the model of a run's directory, or of exported files with their softmax, and its vocabulary.

    NaN and infinities in the weights are refused unless `allow_nonfinite`.
    """
    model = check_path("model", model)
    if folder(model).is_dir():
        config, weights = weights_of_run(model, checkpoint, vocab_file is None, allow_nonfinite)
        model_vocabulary = Path(model) / VOCABULARY_FILE
    else:
        if checkpoint is not None:
            raise ConfigurationError(f"checkpoint: expected none beside the exported files of {model}, got "
                                     f"{os.fspath(checkpoint)}")
        files = find_model(model)
        options, weights = read_model(replace(files, vocab_file=None), allow_nonfinite)
        softmax_file = local_path(softmax_file or files.weight_file.parent / SOFTMAX_FILE)
        if not os.path.isfile(softmax_file):
            raise FileNotFoundError(f"softmax: expected {SOFTMAX_FILE}, which export writes with --softmax, found "
                                    f"nothing at {softmax_file}")
        weights |= read_softmax(softmax_file, options.lstm.projection_dim, allow_nonfinite)
        config = TrainConfig.from_dict({**options.raw, "n_tokens_vocab": len(weights[SOFTMAX[0]])})
        model_vocabulary = files.vocab_file
    vocab_file = vocab_file or model_vocabulary
    if vocab_file is None:
        raise ConfigurationError(f"vocab: expected the vocabulary of {model}, found no {VOCABULARY_FILE} beside it")
    vocabulary = read_vocabulary(vocab_file, len(weights[SOFTMAX[0]]))
    return LanguageModel(config, weights), vocabulary
