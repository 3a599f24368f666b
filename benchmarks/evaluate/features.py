"""Features of words and residues: layers of a model's vectors, and names for scikit-learn's vectorizers."""

from collections.abc import Iterator, Sequence

import numpy as np

from benchmarks.evaluate.data import Tokens
from elmo_fast.embed.api import LoadedElmo
from elmo_fast.environment import extra

with extra("scikit-learn"):
    from sklearn.feature_extraction.text import TfidfVectorizer

Layers = dict[str, np.ndarray]  # name -> [rows, 2 P]
WINDOW = 7  # residues on each side


def layer_names(elmo: LoadedElmo) -> list[str]:
    """Names of the layers, the first of which has no context, and of their average."""
    return ["layer 0, no context", *(f"layer {k}" for k in range(1, elmo.bilm.num_layers)), "average of the layers"]


def named(elmo: LoadedElmo, layers: np.ndarray) -> Layers:
    """The layers [layers, rows, 2 P] and their average, by name."""
    return dict(zip(layer_names(elmo), [*layers, layers.mean(0)]))


def streamed(elmo: LoadedElmo, texts: Sequence[Tokens]) -> Iterator[np.ndarray]:
    """Layers [layers, tokens, 2 P] of each text, in order."""
    return elmo.stream(map(list, texts), state="warm")


def vectors(elmo: LoadedElmo, texts: Sequence[Tokens], names: Sequence[str],
            means: bool = False) -> Layers:
    """Vectors of all tokens, or with `means` the mean over the tokens of each text: float32 [rows, 2 P], by layer."""
    parts: dict[str, list[np.ndarray]] = {name: [] for name in names}
    for layers in streamed(elmo, texts):
        of_text = named(elmo, layers.mean(1, keepdims=True) if means else layers)
        for name, kept in parts.items():
            kept.append(of_text[name].copy())
    return {name: np.concatenate(kept) for name, kept in parts.items()}


def tfidf(longest: int) -> TfidfVectorizer:
    """TF-IDF of the n-grams of at most `longest` tokens, for texts that are lists of tokens."""
    return TfidfVectorizer(tokenizer=_lowered, preprocessor=None, lowercase=False, token_pattern=None,
                           ngram_range=(1, longest), sublinear_tf=True, dtype=np.float32)


def _lowered(tokens: Tokens) -> list[str]:
    return [token.lower() for token in tokens]


def word_features(tokens: Tokens, place: int) -> Iterator[str]:
    """Names of the features of a word in its sentence."""
    word = tokens[place]
    yield "bias"
    yield f"word {word.lower()}"
    for length in range(1, 5):
        yield f"suffix {word[-length:].lower()}"
        yield f"prefix {word[:length].lower()}"
    yield f"shape {word[0].isupper()} {word.isupper()} {any(map(str.isdigit, word))} {'-' in word} {word.isalnum()}"
    for name, other in (("before", place - 1), ("after", place + 1), ("two before", place - 2)):
        neighbour = tokens[other].lower() if 0 <= other < len(tokens) else ""
        yield f"{name} {neighbour}"
        yield f"{name} -{neighbour[-3:]}"


def residue_features(tokens: Tokens, place: int) -> Iterator[str]:
    """Names of the features of a residue in its protein."""
    for offset in range(-WINDOW, WINDOW + 1):
        if 0 <= place + offset < len(tokens):
            yield f"{offset} {tokens[place + offset]}"
