"""Models of ELMoForManyLangs (Che et al. 2018): characters and whole words to token vectors, then the same LSTM.

A directory has `config.json`, which names a second JSON file with the sizes, the lexicons `char.dic` and `word.dic`,
and PyTorch's `token_embedder.pkl` and `encoder.pkl`. The original is github.com/HIT-SCIR/ELMoForManyLangs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, NoReturn

import numpy as np

from elmo_fast.arguments import MOST_CELLS, shown
from elmo_fast.errors import ConfigurationError, parsing
from elmo_fast.files.json import read_json
from elmo_fast.weights.families import MANYLANGS, Family
from elmo_fast.weights.families.allennlp import Tensors, cnn_weights, lstm_weights
from elmo_fast.weights.options import CharCnnOptions, LstmOptions, Options
from elmo_fast.weights.sources import ModelFiles

BOUNDARIES = ("<bos>", "<eos>")
PADDING_ID = 261
CHARACTERS, WORDS = (f"{group}{name}" for group, name in zip(MANYLANGS.lexicons, ("char_embed", "word_embed")))
_OOV, _PAD = "<oov>", "<pad>"
_BEGIN_WORD, _END_WORD = "<eow>", "<bow>"  # in this order around a word, as the original's code takes them
# The original's package has these configurations, for models whose directory lacks the file that config.json names.
_DEFAULT_CONFIGS = ("cnn_50_100_512_4096_sample.json", "cnn_0_100_512_4096_sample.json")
_MOST_NAME = 255  # characters, of a file
_DEFAULT: dict[str, Any] = {
    "encoder": {"name": "elmo", "projection_dim": 512, "cell_clip": 3, "proj_clip": 3, "dim": 4096, "n_layers": 2},
    "token_embedder": {
        "name": "cnn", "activation": "relu", "n_highway": 2, "word_dim": 100, "char_dim": 50,
        "filters": [[1, 32], [2, 32], [3, 64], [4, 128], [5, 256], [6, 512], [7, 1024]],
        "max_characters_per_token": 50,
    },
}


@dataclass(frozen=True)
class ManyLangsOptions(Options):
    """Sizes, and the lexicons: the numbers of characters and of words in `char.dic` and `word.dic`."""

    family: ClassVar[Family] = MANYLANGS
    characters: Mapping[str, int] = field(default_factory=dict, compare=False, repr=False)
    words: Mapping[str, int] | None = field(default=None, compare=False, repr=False)

    def token_ids(self) -> "ManyLangsIds":
        return ManyLangsIds(self)

    def to_dict(self) -> NoReturn:
        raise ConfigurationError(f"model: {MANYLANGS.no_hdf5()}")


class ManyLangsIds:
    """Ids of tokens, int32 [N, C], or with a word lexicon [N, C + 1], whose last column is the word's row + 1.

    A character or word outside its lexicon has the id of `<oov>`.
    """

    boundaries = BOUNDARIES

    def __init__(self, options: ManyLangsOptions):
        self._options, padding = options, options.characters[_PAD]
        self._known = {token: _model_id(number, padding) for token, number in options.characters.items()}

    def __call__(self, tokens: Sequence[str]) -> np.ndarray:
        length, known = self._options.char_cnn.max_characters_per_token, self._known
        words = self._options.words
        ids = np.full((len(tokens), length + (words is not None)), PADDING_ID, np.int32)
        for row, token in zip(ids, tokens):
            if not isinstance(token, str):
                raise ValueError(f"token: expected a string, got {type(token).__name__} ({shown(token)})")
            token = token[: length - 2]
            inner = [known[token]] if token in BOUNDARIES else [known.get(letter, known[_OOV]) for letter in token]
            row[: len(inner) + 2] = known[_BEGIN_WORD], *inner, known[_END_WORD]
            if words is not None:
                row[-1] = words.get(token, words[_OOV]) + 1
        return ids


def describe(options: ManyLangsOptions) -> str:
    """What the model reads of a token."""
    cnn = options.char_cnn
    words = "" if options.words is None else f"; {len(options.words):,} words (word.dic)"
    return (f"{len(options.characters):,} characters (char.dic), at most {cnn.max_characters_per_token} a token, "
            f"{cnn.embedding_dim} values each{words}")


def read(files: ModelFiles, allow_nonfinite: bool = False) -> tuple[ManyLangsOptions, dict[str, np.ndarray]]:
    """Options and float32 weights in bilm-tf's layout; `ConfigurationError` for missing or inconsistent files, and for
    NaN and infinities unless `allow_nonfinite`.
    """
    directory = files.weight_file.parent
    config, source = read_config(directory)
    embedder, encoder = (config.get(name) for name in ("token_embedder", "encoder"))
    for name, section, expected in (("token_embedder", embedder, "cnn"), ("encoder", encoder, "elmo")):
        if not isinstance(section, Mapping) or str(section.get("name")).lower() != expected:
            raise ConfigurationError(f"{source}: {name}: expected a section with the name {expected}, got "
                                     f"{section!r:.80}")
    options = Options.from_dict({
        "lstm": {**encoder, "use_skip_connections": True, "cell_clip": encoder.get("cell_clip") or None,
                 "proj_clip": encoder.get("proj_clip") or None},
        "char_cnn": {**embedder, "embedding": {"dim": embedder.get("char_dim")}}}, source)
    word_dim = embedder.get("word_dim") or 0
    if type(word_dim) is not int or not 0 <= word_dim <= MOST_CELLS:
        raise ConfigurationError(f"{source}: token_embedder: word_dim: expected an integer from 0 to {MOST_CELLS:,}, "
                                 f"got {word_dim!r:.80}")
    if not options.lstm.is_projected:
        raise ConfigurationError(f"{source}: encoder: expected a projection_dim below dim, got {options.lstm.dim}")
    characters = _lexicon(directory / "char.dic", (_BEGIN_WORD, _END_WORD, *BOUNDARIES, _OOV, _PAD))
    words = _lexicon(directory / "word.dic", (_OOV, _PAD)) if word_dim else None
    embedder, encoder = (Tensors(path, allow_nonfinite=allow_nonfinite)
                         for path in (directory / "token_embedder.pkl", files.weight_file))
    weights = _token_weights(embedder, options.char_cnn, options.lstm, characters, words, word_dim)
    weights |= lstm_weights(encoder, options.lstm)
    for tensors in (embedder, encoder):
        tensors.check_rest("")
    weights = {name: np.ascontiguousarray(values) for name, values in weights.items()}
    return ManyLangsOptions(options.lstm, options.char_cnn, characters=characters, words=words), weights


def read_config(directory: Path) -> tuple[dict[str, Any], str]:
    """The JSON object with the sizes, searched in the same places as in the original, and its path or name."""
    config = read_json(directory / "config.json", "model")
    named = config.get("config_path")
    if not isinstance(named, str) or len(named) > _MOST_NAME or "\0" in named:
        raise ConfigurationError(f"model {directory}: config.json: expected the key config_path, the name of a file of "
                                 f"at most {_MOST_NAME} characters, got {shown(named)} among {sorted(config)!s:.160}")
    base = named.replace("\\", "/").rpartition("/")[2]
    for path in (directory / named, directory / base):
        if path.is_file():
            return read_json(path, "model"), str(path)
    if base in _DEFAULT_CONFIGS:
        return _DEFAULT, base
    raise FileNotFoundError(f"model {directory}: expected the file {base} that config.json names, found none")


def _lexicon(path: Path, needed: Sequence[str]) -> dict[str, int]:
    """The number of each token, one per line; a line with only a number belongs to the ideographic space."""
    if not path.is_file():
        raise ConfigurationError(f"{path}: expected a token, a tab and a number in each line, found no file")
    numbers: dict[str, int] = {}
    for row, line in enumerate(_lines(path), start=1):
        token, tab, number = line.strip().rpartition("\t")
        if not (number.isascii() and number.isdecimal() and len(number) < 19):
            raise ConfigurationError(f"{path}: expected a token, a tab and a number in each line, found {line!r:.80} "
                                     f"in line {row}")
        numbers[token.partition("\t")[0] if tab else "\u3000"] = int(number)
    if missing := [token for token in needed if token not in numbers]:
        raise ConfigurationError(f"{path}: expected {', '.join(needed)}, found no {', '.join(missing)}")
    return numbers


def _lines(path: Path) -> list[str]:
    with parsing(f"{path}", "a token, a tab and a number in each line, in UTF-8, found other bytes"):
        return [line for line in path.read_text(encoding="utf-8-sig").split("\n") if line.strip()]


def _model_id(number: int, padding: int) -> int:
    """A character's id, its row + 1, after the row `padding` was moved to row 260, where the char-CNN expects it."""
    if number == padding:
        return PADDING_ID
    rank = number - (number > padding) + 1
    return rank + (rank >= PADDING_ID)


def _token_weights(tensors: Tensors, cnn: CharCnnOptions, lstm: LstmOptions, characters: Mapping[str, int],
                   words: Mapping[str, int] | None, word_dim: int) -> dict[str, np.ndarray]:
    chars = tensors.take("char_emb_layer.embedding.weight", None, cnn.embedding_dim)
    _check_rows(f"{tensors.where}: char.dic", characters, len(chars))
    table = np.zeros((max(len(chars), PADDING_ID), cnn.embedding_dim), np.float32)
    table[[_model_id(row, characters[_PAD]) - 1 for row in range(len(chars))]] = chars
    weights = {CHARACTERS: table, **cnn_weights(tensors, cnn, "convolutions.{}", "highways._layers.{}")}
    if words is not None:
        weights[WORDS] = tensors.take("word_emb_layer.embedding.weight", None, word_dim)
        _check_rows(f"{tensors.where}: word.dic", words, len(weights[WORDS]))
    total = cnn.n_filters + (word_dim if words is not None else 0)
    weights["CNN_proj/W_proj"] = tensors.take("projection.weight", lstm.projection_dim, total).T
    weights["CNN_proj/b_proj"] = tensors.take("projection.bias", lstm.projection_dim)
    return weights


def _check_rows(name: str, lexicon: Mapping[str, int], rows: int) -> None:
    if max(lexicon.values()) >= rows:
        raise ConfigurationError(f"{name}: expected numbers from 0 to {rows - 1}, the rows of its embedding in "
                                 f"token_embedder.pkl, got up to {max(lexicon.values())}")
