"""Vectors of texts for the tasks: of every token, or their mean."""

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from elmo_fast.embed.api import LoadedElmo
from elmo_fast.environment import extra
from elmo_fast.files import stops

with extra("scikit-learn"):
    from sklearn.feature_extraction.text import TfidfVectorizer

Layers = dict[str, np.ndarray]  # name -> [tokens or texts, 2 P]


def layer_names(elmo: LoadedElmo) -> list[str]:
    """Names of the layers, the first of which has no context, and of their average."""
    return ["layer 0, no context", *(f"layer {k}" for k in range(1, elmo.bilm.num_layers)), "average of the layers"]


def token_vectors(elmo: LoadedElmo, texts: Sequence[Sequence[str]], names: Sequence[str]) -> Layers:
    """Vectors of all tokens of the texts, float32 [tokens, 2 P], of the layers `names`."""
    return _collected(elmo, texts, names, sum(map(len, texts)), lambda vectors: vectors)


def text_vectors(elmo: LoadedElmo, texts: Sequence[Sequence[str]], names: Sequence[str]) -> Layers:
    """The mean over the tokens of each text, float32 [texts, 2 P], of the layers `names`."""
    return _collected(elmo, texts, names, len(texts), lambda vectors: vectors.mean(0, keepdims=True))


def _collected(elmo: LoadedElmo, texts: Sequence[Sequence[str]], names: Sequence[str], rows: int,
               reduce: Callable[[np.ndarray], np.ndarray]) -> Layers:
    found: Layers = {}
    first = 0
    for layers in stops.checked(streamed(elmo, texts)):
        for name in names:
            vectors = reduce(select(elmo, layers, name))
            if name not in found:
                found[name] = np.empty((rows, vectors.shape[1]), np.float32)
            found[name][first : first + len(vectors)] = vectors
        first += len(vectors)
    return found


def streamed(elmo: LoadedElmo, texts: Sequence[Sequence[str]]) -> Iterator[np.ndarray]:
    """Layers [layers, tokens, 2 P] of each text, in order."""
    return elmo.stream(map(list, texts), state="warm")


def select(elmo: LoadedElmo, layers: np.ndarray, name: str) -> np.ndarray:
    """The vectors [tokens, 2 P] of a layer by its name, or the layers' average."""
    number = layer_names(elmo).index(name)
    return layers.mean(0) if number == elmo.bilm.num_layers else layers[number]


def tfidf(texts: Sequence[Sequence[str]], train: Sequence[int], longest: int):
    """TF-IDF, sparse float32 [texts, features], of the n-grams of at most `longest` tokens in the texts `train`."""
    vectorizer = TfidfVectorizer(tokenizer=_lowered, preprocessor=None, lowercase=False, token_pattern=None,
                                 ngram_range=(1, longest), sublinear_tf=True, dtype=np.float32)
    return vectorizer.fit([texts[number] for number in train]).transform(texts)


def _lowered(tokens: Sequence[str]) -> list[str]:
    return [token.lower() for token in tokens]
