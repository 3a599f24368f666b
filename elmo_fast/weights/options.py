"""A model's `options.json` with bilm-tf's keys, checked."""

import copy
import dataclasses
import numbers
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from elmo_fast.arguments import ACTIVATIONS, MOST_CELLS
from elmo_fast.errors import ConfigurationError
from elmo_fast.files.json import read_json
from elmo_fast.text.characters import MOST_CHARACTERS_PER_TOKEN
from elmo_fast.weights.families import BILM_TF, Family
from elmo_fast.weights.ids import CharacterIds, WordIds

N_CHARACTERS = (261, 262)
NETWORK_KEYS = "bidirectional", "lstm", "char_cnn", "n_tokens_vocab"
# Larger than in any known model, like MOST_CELLS.
MOST_LAYERS, MOST_WORDS = 1000, (1 << 31) - 1


@dataclass(frozen=True)
class CharCnnOptions:
    """The `char_cnn` section. `filters` holds (width, count) pairs."""

    embedding_dim: int
    filters: tuple[tuple[int, int], ...]
    max_characters_per_token: int
    activation: str
    n_highway: int = 0

    @property
    def n_filters(self) -> int:
        """Values of one token after the maximum over positions."""
        return sum(count for _, count in self.filters)


@dataclass(frozen=True)
class LstmOptions:
    """The `lstm` section. A clip of None means no clipping."""

    dim: int
    projection_dim: int
    n_layers: int
    use_skip_connections: bool
    cell_clip: float | None = None
    proj_clip: float | None = None

    @property
    def is_projected(self) -> bool:
        """Whether h and the cell have different sizes; with equal sizes only weights that have `W_P_0` project h."""
        return self.projection_dim != self.dim


@dataclass(frozen=True)
class Options:
    """A checked `options.json`. `char_cnn` is None for a model of words; `raw` has all keys of the file.

    `vocabulary` lists the words of a model of words by id, from the file beside its weights; None without this file.
    """

    family: ClassVar[Family] = BILM_TF
    lstm: LstmOptions
    char_cnn: CharCnnOptions | None
    n_tokens_vocab: int | None = None
    raw: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)
    vocabulary: Sequence[str] | None = field(default=None, compare=False, repr=False)

    @property
    def n_layers(self) -> int:
        """Layers of representations: the token layer and every LSTM layer."""
        return self.lstm.n_layers + 1

    @property
    def output_dim(self) -> int:
        """Values of one token in one layer, both directions."""
        return 2 * self.lstm.projection_dim

    def token_ids(self) -> CharacterIds | WordIds:
        """The function from tokens to the ids that the model reads; its `boundaries` are around every sentence."""
        if self.char_cnn is None:
            return WordIds(self.vocabulary)
        return CharacterIds(self.char_cnn.max_characters_per_token)

    @classmethod
    def from_dict(cls, options: Mapping[str, Any], source: str = "options") -> "Options":
        """Check the content of an `options.json`; raises `ConfigurationError` naming `source` and the key."""
        top = _Section(options, source)
        top.value("bidirectional", "true (a two-direction model)", lambda value: value is True, default=True)
        section, char_cnn = top.section("lstm"), None
        lstm = LstmOptions(
            section.count("dim"), section.count("projection_dim"),
            section.count("n_layers", default=1, most=MOST_LAYERS),
            section.value("use_skip_connections", "true or false", lambda value: isinstance(value, bool)),
            section.clip("cell_clip"), section.clip("proj_clip"))
        if "char_cnn" in options:
            section = top.section("char_cnn")
            max_characters = section.count("max_characters_per_token", least=3, most=MOST_CHARACTERS_PER_TOKEN)
            section.one_of("n_characters", N_CHARACTERS, default=N_CHARACTERS[1])
            char_cnn = CharCnnOptions(
                section.section("embedding").count("dim"), section.filters("filters", max_characters), max_characters,
                section.one_of("activation", ACTIVATIONS),
                section.count("n_highway", default=0, least=0, most=MOST_LAYERS))
        words = top.count("n_tokens_vocab", default=None, most=MOST_WORDS)
        if char_cnn is None and words is None:
            raise ConfigurationError(f"{source}: expected the section char_cnn, or n_tokens_vocab for a model that "
                                     f"reads word ids; found neither among {_keys(options)}")
        return cls(lstm, char_cnn, words, copy.deepcopy(dict(options)))

    @classmethod
    def from_file(cls, path: str | os.PathLike) -> "Options":
        """Read and check an `options.json`."""
        return cls.from_dict(read_json(path), source=f"options_file {os.fspath(path)}")

    def to_dict(self) -> dict[str, Any]:
        """The content of an `options.json` that gives these options."""
        content = copy.deepcopy(dict(self.raw))
        content["lstm"] = content.get("lstm", {}) | dataclasses.asdict(self.lstm)
        if self.n_tokens_vocab is not None:
            content["n_tokens_vocab"] = self.n_tokens_vocab
        if self.char_cnn is not None:
            section = dataclasses.asdict(self.char_cnn)
            section |= {"embedding": {"dim": section.pop("embedding_dim")}, "n_characters": N_CHARACTERS[1],
                        "filters": [list(pair) for pair in self.char_cnn.filters]}
            content["char_cnn"] = content.get("char_cnn", {}) | section
        return content


_REQUIRED = object()


class _Section:
    """One object of the JSON file; every getter checks and names the key it reads."""

    def __init__(self, content: Any, name: str):
        if not isinstance(content, Mapping):
            raise ConfigurationError(f"{name}: expected a JSON object, got {content!r:.80}")
        self.content, self.name = content, name

    def value(self, key: str, expected: str, fits: Callable[[Any], bool], default: Any = _REQUIRED) -> Any:
        value = self.content.get(key, default)
        if value is _REQUIRED:
            raise ConfigurationError(f"{self.name}: the key {key} is missing; found {_keys(self.content)}")
        if not fits(value):
            raise self.error(key, expected, value)
        return value

    def section(self, key: str) -> "_Section":
        return _Section(self.value(key, "", lambda _: True), f"{self.name}: {key}")

    def count(self, key: str, default: Any = _REQUIRED, least: int = 1, most: int = MOST_CELLS) -> int:
        count = self.value(key, f"an integer of at least {least}", lambda value: _is_integer(value, least)
                           or (value is None and default is not _REQUIRED), default)
        if count is not None and count > most:
            raise self.error(key, f"at most {most:,}", count)
        return default if count is None else int(count)

    def clip(self, key: str) -> float | None:
        clip = self.value(key, "a number above 0, or null for no clipping", lambda value: value is None or (
            isinstance(value, numbers.Real) and not isinstance(value, bool) and 0 < value <= sys.float_info.max), None)
        return None if clip is None else float(clip)

    def one_of(self, key: str, allowed: tuple, default: Any = _REQUIRED) -> Any:
        return self.value(key, f"one of {', '.join(map(str, allowed))}",
                          lambda value: not isinstance(value, bool) and value in allowed, default)

    def filters(self, key: str, max_characters: int) -> tuple[tuple[int, int], ...]:
        pairs = self.value(key, "a list of [width, count] pairs",
                           lambda value: isinstance(value, (list, tuple)) and len(value) > 0)
        for pair in pairs:
            if not isinstance(pair, (list, tuple)) or len(pair) != 2 or not all(_is_integer(n, 1) for n in pair):
                raise self.error(key, "pairs of two integers above 0, [width, count]", pair)
            if pair[1] > MOST_CELLS:
                raise self.error(key, f"counts of at most {MOST_CELLS:,}", pair)
            if pair[0] > max_characters:
                raise self.error(key, f"widths of at most max_characters_per_token ({max_characters})", pair)
        return tuple((int(width), int(count)) for width, count in pairs)

    def error(self, key: str, expected: str, value: Any) -> ConfigurationError:
        return ConfigurationError(f"{self.name}: {key}: expected {expected}, got {value!r:.80}")


def _keys(content: Mapping[str, Any]) -> str:
    """The keys of an object, for a message."""
    return f"{sorted(content)!s:.300}"


def _is_integer(value: Any, least: int) -> bool:
    """An integer of at least `least`, or a float with an integer value, as some JSON writers give."""
    whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
    return whole and not isinstance(value, bool) and value >= least
