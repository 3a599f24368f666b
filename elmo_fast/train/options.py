"""What a training run is made of: bilm-tf's keys of `options.json`, and those this trainer adds."""

import dataclasses
import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from elmo_fast.model.options import ConfigurationError, Options

DECAYS = ("constant", "linear", "cosine")
_DEFAULTS = {  # by optimizer
    "adagrad": {"learning_rate": 0.2, "warmup_steps": 0, "decay": "constant"},
    "adamw": {"learning_rate": 1e-3, "warmup_steps": 500, "decay": "cosine"},
}
OPTIMIZERS = tuple(_DEFAULTS)
# The published models: LSTM cells, projection, highway layers.
SIZES = {"small": (1024, 128, 1), "medium": (2048, 256, 1), "original": (4096, 512, 2)}
_FILTERS = [[1, 32], [2, 32], [3, 64], [4, 128], [5, 256], [6, 512], [7, 1024]]


@dataclass(frozen=True)
class Learning:
    """How a model learns. The first group are bilm-tf's keys with its defaults.

    `n_epochs` may be a fraction; `max_steps`, where given, wins. `all_clip_norm_val` bounds the norm of the gradient
    of loss * `unroll_steps`, all trainables together. `accumulate` batches, each of its own stream, make one step.
    `reset_states` is the share of rows that begin a batch from zeros, drawn anew for every batch; without it a model
    knows zero states from its first step alone, and may never find its way out of them on another text.
    """

    batch_size: int = 128
    unroll_steps: int = 20
    dropout: float = 0.1
    sample_softmax: bool = True
    n_negative_samples_batch: int = 8192
    share_embedding_softmax: bool = False
    all_clip_norm_val: float = 10.0
    n_epochs: float = 10
    learning_rate: float = 0.2

    optimizer: str = "adagrad"
    warmup_steps: int = 0
    decay: str = "constant"
    weight_decay: float = 0.01
    accumulate: int = 1
    reset_states: float = 0.0
    max_steps: int | None = None
    seed: int = 0

    def rate(self, step: int, steps: int) -> float:
        """The learning rate of a step, counted from 0, in a run of `steps`: linear warm-up, then the decay."""
        if step < self.warmup_steps:
            return self.learning_rate * (step + 1) / self.warmup_steps
        done = (step - self.warmup_steps) / max(1, steps - self.warmup_steps)
        left = {"constant": 1.0, "linear": 1 - done, "cosine": (1 + math.cos(math.pi * min(1.0, done))) / 2}[self.decay]
        return self.learning_rate * max(0.0, left)


@dataclass(frozen=True)
class Plan:
    """A checked `options.json` of a run: the model, whether it has two directions, how it learns; `raw` has every key."""

    model: Options
    bidirectional: bool
    learning: Learning
    raw: Mapping[str, Any]

    @classmethod
    def from_dict(cls, content: Mapping[str, Any], source: str = "options") -> "Plan":
        """Check the content of a run's `options.json`; `ConfigurationError` names `source` and the key."""
        bidirectional = content.get("bidirectional", True)
        if not isinstance(bidirectional, bool):
            raise ConfigurationError(f"{source}: bidirectional: expected true or false, got {bidirectional!r}")
        model = Options.from_dict({**content, "bidirectional": True}, source)
        learning = _learning(content, source)
        if learning.share_embedding_softmax and model.char_cnn is not None:
            raise ConfigurationError(f"{source}: share_embedding_softmax: expected false for a model that reads "
                                     "characters, got true")
        return cls(model, bidirectional, learning, dict(content))

    def to_dict(self) -> dict[str, Any]:
        """The content of an `options.json` that gives this plan."""
        learning = dataclasses.asdict(self.learning)
        return {**self.raw, **self.model.to_dict(), **learning, "bidirectional": self.bidirectional}


def _learning(content: Mapping[str, Any], source: str) -> Learning:
    defaults = _DEFAULTS.get(content.get("optimizer", "adagrad"), {})
    values = {}
    for field in dataclasses.fields(Learning):
        value = content.get(field.name)
        value = defaults.get(field.name, field.default) if value is None else value
        expected, fits = _EXPECTED[field.name]
        if value is not field.default and not fits(value):
            raise ConfigurationError(f"{source}: {field.name}: expected {expected}, got {value!r:.80}")
        values[field.name] = float(value) if field.type is float else value
    return Learning(**values)


def _whole(least: int):
    return f"an integer of at least {least}", lambda value: type(value) is int and value >= least


def _between(least: float, most: float, open_end: bool = False):
    words = f"a number from {least:g} to {most:g}" if math.isfinite(most) else f"a number above {least:g}"
    return words, lambda value: (type(value) in (int, float) and math.isfinite(value)
                                 and (least <= value if math.isfinite(most) else least < value)
                                 and (value < most if open_end else value <= most))


_BOOLEAN = "true or false", lambda value: isinstance(value, bool)
_EXPECTED = {
    "batch_size": _whole(1), "unroll_steps": _whole(1), "dropout": _between(0, 1, open_end=True),
    "sample_softmax": _BOOLEAN, "n_negative_samples_batch": _whole(1), "share_embedding_softmax": _BOOLEAN,
    "all_clip_norm_val": _between(0, math.inf), "n_epochs": _between(0, math.inf),
    "learning_rate": _between(0, math.inf), "optimizer": (" or ".join(OPTIMIZERS), lambda value: value in OPTIMIZERS),
    "warmup_steps": _whole(0), "decay": (", ".join(DECAYS), lambda value: value in DECAYS),
    "weight_decay": _between(0, 1), "accumulate": _whole(1), "reset_states": _between(0, 1), "max_steps": _whole(1), "seed": _whole(0),
}


def sized(name: str) -> dict[str, Any]:
    """The `lstm` and `char_cnn` sections of a published model's size."""
    dim, projection, highways = SIZES[name]
    return {
        "lstm": {"dim": dim, "projection_dim": projection, "n_layers": 2, "use_skip_connections": True,
                 "cell_clip": 3, "proj_clip": 3},
        "char_cnn": {"embedding": {"dim": 16}, "filters": _FILTERS, "n_highway": highways, "activation": "relu",
                     "max_characters_per_token": 50, "n_characters": 262},
    }


def read_json(path: str | os.PathLike) -> dict[str, Any]:
    """The object in a JSON file; `ConfigurationError` for anything else."""
    try:
        with open(path, encoding="utf-8-sig") as file:
            content = json.load(file)
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ConfigurationError(f"options_file {path}: expected JSON, got something else ({error})") from error
    if not isinstance(content, dict):
        raise ConfigurationError(f"options_file {path}: expected a JSON object, got {content!r:.80}")
    return content
