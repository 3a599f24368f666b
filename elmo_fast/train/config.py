"""Configures a training run: bilm-tf's keys of `options.json`, keys that this trainer adds, settings of the run."""

import dataclasses
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from elmo_fast.arguments import SIZES, shown
from elmo_fast.errors import ConfigurationError
from elmo_fast.files.json import read_json
from elmo_fast.weights.options import NETWORK_KEYS, Options

DECAYS = ("constant", "linear", "cosine")
OPTIMIZERS = ("adagrad", "adamw")
_ADAMW = {"learning_rate": 1e-3, "warmup_steps": 500, "decay": "cosine"}  # AdamW's defaults, unlike the fields'
_MAX_INTEGER = (1 << 63) - 1
FILTERS = [[1, 32], [2, 32], [3, 64], [4, 128], [5, 256], [6, 512], [7, 1024]]


def _checked(default: Any, expected: str, accepts) -> Any:
    return dataclasses.field(default=default, metadata={"expected": expected, "accepts": accepts})


def _integer(default: int | None, least: int) -> Any:
    return _checked(default, f"an integer of at least {least}", lambda value: type(value) is int and value >= least)


def _checked_values(cls: type, content: Mapping[str, Any], defaults: Mapping[str, Any], source: str) -> dict[str, Any]:
    """Return checked values for the fields of `cls` from `content`; absent keys and nulls get the default."""
    values = {}
    for field in dataclasses.fields(cls):
        value = content.get(field.name)
        value = defaults.get(field.name, field.default) if value is None else value
        if value is not field.default and not field.metadata["accepts"](value):
            expected = field.metadata["expected"]
            raise ConfigurationError(f"{source}: {field.name}: expected {expected}, got {shown(value)}")
        if type(value) is int and value > _MAX_INTEGER:
            raise ConfigurationError(f"{source}: {field.name}: expected at most {_MAX_INTEGER:,}, got {value:,}")
        values[field.name] = float(value) if field.type is float else value
    return values


def _boolean(default: bool) -> Any:
    return _checked(default, "true or false", lambda value: isinstance(value, bool))


def _fraction(default: float) -> Any:
    return _checked(default, "a number from 0 to 1", lambda value: type(value) in (int, float) and 0 <= value <= 1)


def _positive(default: float) -> Any:
    return _checked(default, "a number above 0", lambda value: type(value) in (int, float) and 0 < value < math.inf)


@dataclass(frozen=True)
class OptimizerConfig:
    """Batches, loss and updates. The first group of fields are bilm-tf's keys with bilm-tf's defaults.

    `n_epochs` may be a fraction; `max_steps` overrides it. `all_clip_norm_val` bounds the norm of the gradient
    of loss * `unroll_steps`, all trainables together. `accumulate` batches, from separate streams, make a step.
    `reset_states` is the fraction of rows whose state is zeroed before a batch, drawn again for every batch; without it
    the model sees zero states only in its first step, and may never recover from them on another text.
    """

    batch_size: int = _integer(128, 1)
    unroll_steps: int = _integer(20, 1)
    dropout: float = _checked(0.1, "a number of at least 0 and below 1",
                              lambda value: type(value) in (int, float) and 0 <= value < 1)
    sample_softmax: bool = _boolean(True)
    n_negative_samples_batch: int = _integer(8192, 1)
    share_embedding_softmax: bool = _boolean(False)
    all_clip_norm_val: float = _positive(10.0)
    n_epochs: float = _positive(10)
    learning_rate: float = _positive(0.2)

    optimizer: str = _checked(OPTIMIZERS[0], " or ".join(OPTIMIZERS), OPTIMIZERS.__contains__)
    warmup_steps: int = _integer(0, 0)
    decay: str = _checked(DECAYS[0], ", ".join(DECAYS), DECAYS.__contains__)
    weight_decay: float = _fraction(0.01)
    accumulate: int = _integer(1, 1)
    reset_states: float = _fraction(0.0)
    max_steps: int | None = _integer(None, 1)
    seed: int = _integer(0, 0)

    @classmethod
    def from_dict(cls, content: Mapping[str, Any], source: str) -> "OptimizerConfig":
        """Check the keys of `options.json` that are fields; absent keys and nulls get the optimizer's default."""
        return cls(**_checked_values(cls, content, _ADAMW if content.get("optimizer") == "adamw" else {}, source))

    def rate(self, step: int, steps: int) -> float:
        """Return the learning rate of a step, counted from 0, in a run of `steps`: linear warm-up, then the decay."""
        if step < self.warmup_steps:
            return self.learning_rate * (step + 1) / self.warmup_steps
        t = (step - self.warmup_steps) / max(1, steps - self.warmup_steps)
        scale = {"constant": 1.0, "linear": 1 - t, "cosine": (1 + math.cos(math.pi * min(1.0, t))) / 2}[self.decay]
        return self.learning_rate * max(0.0, scale)


@dataclass(frozen=True)
class TrainConfig:
    """A checked `options.json` of a run: model, whether it has two directions, training; `raw` has every key."""

    model: Options
    bidirectional: bool
    training: OptimizerConfig
    raw: Mapping[str, Any]

    @classmethod
    def from_dict(cls, content: Mapping[str, Any], source: str = "options") -> "TrainConfig":
        """Check the content of a run's `options.json`; `ConfigurationError` names `source` and the key."""
        bidirectional = content.get("bidirectional", True)
        if not isinstance(bidirectional, bool):
            raise ConfigurationError(f"{source}: bidirectional: expected true or false, got {shown(bidirectional)}")
        model = Options.from_dict({**content, "bidirectional": True}, source)
        if model.lstm.projection_dim > model.lstm.dim:
            raise ConfigurationError(f"{source}: lstm: projection_dim: expected at most dim ({model.lstm.dim}), since "
                                     f"bilm-tf projects to fewer values only, got {model.lstm.projection_dim}")
        training = OptimizerConfig.from_dict(content, source)
        if training.share_embedding_softmax and model.char_cnn is not None:
            raise ConfigurationError(f"{source}: share_embedding_softmax: expected false for a model that reads "
                                     "characters, got true")
        return cls(model, bidirectional, training, dict(content))

    @classmethod
    def from_file(cls, path: str | os.PathLike, **changes: Any) -> "TrainConfig":
        """As `from_dict`, from a file, with some keys replaced."""
        return cls.from_dict({**read_json(path), **changes}, f"options_file {path}")

    def to_dict(self) -> dict[str, Any]:
        """Return the content of an `options.json` that gives this configuration."""
        return {**self.raw, **self.model.to_dict(), **dataclasses.asdict(self.training),
                "bidirectional": self.bidirectional}


@dataclass(frozen=True)
class RunConfig:
    """Evaluation, checkpoints and log of a run. No field changes a weight, but `patience` may end the run early."""

    evaluate_every: int | None = _integer(None, 1)
    evaluate_batch_size: int = _integer(256, 1)
    checkpoint_every: int = _integer(500, 1)
    keep: int = _integer(2, 1)
    log_every: int = _integer(10, 1)
    patience: int | None = _integer(None, 1)
    tensorboard: bool = _boolean(False)
    quiet: bool = _boolean(False)

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> "RunConfig":
        """Check the values that are fields; absent ones and nulls get the default."""
        return cls(**_checked_values(cls, content, {}, "run"))


@dataclass(frozen=True)
class TrainArguments:
    """Arguments of `elmo-fast train`. For None, or an absent key, the options file, the run or a default decides.

    `run` has values of `RunConfig`, and `options` keys of `options.json`, which override those of `options_file`.
    """

    run: Mapping[str, Any]
    options: Mapping[str, Any]
    train: list[str] | None = None
    heldout: list[str] | None = None
    format: str | None = None
    field: str | None = None
    tokenizer: str | None = None
    vocab: str | None = None
    precision: str | None = None
    options_file: str | os.PathLike | None = None
    size: str | None = None
    from_model: str | None = None
    from_options: str | os.PathLike | None = None
    from_weights: str | os.PathLike | None = None
    from_softmax: str | os.PathLike | None = None
    allow_nonfinite: bool | None = None

    @classmethod
    def of(cls, keywords: Mapping[str, Any]) -> "TrainArguments":
        """Make arguments from keywords; names that neither this class nor `RunConfig` has are options.

        `n_epochs` without `max_steps` replaces a `max_steps` of the options file or the run. `ConfigurationError` for
        any other keyword.
        """
        names, names_of_run, names_of_options = (
            {field.name for field in dataclasses.fields(kind)} - {"run", "options"}
            for kind in (cls, RunConfig, OptimizerConfig))
        options = {name: value for name, value in keywords.items() if name not in names | names_of_run}
        unknown = sorted(options.keys() - names_of_options - {*NETWORK_KEYS, "n_train_tokens"})
        if unknown:
            raise ConfigurationError(f"train: expected arguments of elmo-fast train and keys of options.json, got "
                                     f"{', '.join(unknown):.80}")
        if options.get("n_epochs") is not None and options.get("max_steps") is None:
            options["max_steps"] = None
        return cls(run={name: keywords[name] for name in keywords.keys() & names_of_run}, options=options,
                   **{name: keywords[name] for name in keywords.keys() & names})

    @property
    def is_fine_tuning(self) -> bool:
        """Whether the run starts from the weights of a model."""
        return bool(self.from_model or self.from_options or self.from_weights or self.from_softmax)

    def names(self) -> set[str]:
        """Return the names of the arguments that are set, except those in `run`."""
        fields = {field.name for field in dataclasses.fields(self) if getattr(self, field.name) is not None}
        return (fields - {"run", "options"}) | self.options.keys()


def published_size(name: str) -> dict[str, Any]:
    """Return the sections `lstm` and `char_cnn` of the options of a published model's size."""
    dim, projection, highways = SIZES[name]
    return {
        "lstm": {"dim": dim, "projection_dim": projection, "n_layers": 2, "use_skip_connections": True,
                 "cell_clip": 3, "proj_clip": 3},
        "char_cnn": {"embedding": {"dim": 16}, "filters": FILTERS, "n_highway": highways, "activation": "relu",
                     "max_characters_per_token": 50, "n_characters": 262},
    }
