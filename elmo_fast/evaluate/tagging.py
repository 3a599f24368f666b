"""A tag for every token: part of speech of words, secondary structure of residues."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from elmo_fast.embed.api import LoadedElmo
from elmo_fast.environment import extra
from elmo_fast.evaluate.data import Split, Texts, Tokens
from elmo_fast.evaluate.probe import choose, figure, predict
from elmo_fast.evaluate.report import Report, Row
from elmo_fast.evaluate.vectors import layer_names, token_vectors

with extra("scikit-learn"):
    from sklearn.feature_extraction import DictVectorizer

Describe = Callable[[Tokens, int], Iterator[str]]
_LEAST = 2  # occurrences of a feature in the training part
_WINDOW = 7  # residues on each side


def pos(elmo: LoadedElmo, split: Split, published: str) -> Report:
    """Part of speech: every layer, features of words, and both together."""
    return _tag("part of speech", elmo, split, published, layer_names(elmo), word_features,
                "word, affixes, neighbours", with_unknown=True)


def secondary_structure(elmo: LoadedElmo, split: Split, published: str) -> Report:
    """Three states of a residue: the token layer, the layers' average, and residues of a window."""
    names = layer_names(elmo)
    return _tag("secondary structure, three states", elmo, split, published, [names[0], names[-1]], residue_features,
                f"residues at most {_WINDOW} away", with_unknown=False)


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
    for offset in range(-_WINDOW, _WINDOW + 1):
        if 0 <= place + offset < len(tokens):
            yield f"{offset} {tokens[place + offset]}"


def _tag(title: str, elmo: LoadedElmo, split: Split, published: str, names: Sequence[str], describe: Describe,
         described: str, with_unknown: bool) -> Report:
    train, test, dev = split.train, split.test, split.dev
    classes = sorted({tag for part in (train, test, dev) if part for tags in part.labels for tag in tags})
    targets = {id(part): np.array([classes.index(tag) for tags in part.labels for tag in tags])
               for part in (train, test, dev) if part}
    groups = np.repeat(np.arange(len(train.texts)), list(map(len, train.texts)))
    known = {token for text in train.texts for token in text}
    unknown = np.array([token not in known for text in test.texts for token in text])
    counts = list(map(len, test.texts))

    def row(name: str, predicted: np.ndarray) -> Row:
        right = predicted == targets[id(test)]
        figures = [_per_text(right, np.ones(len(right)), counts)]
        return Row(name, (*figures, _per_text(right * unknown, unknown, counts)) if with_unknown else tuple(figures))

    def probed(blocks: dict[int, list]) -> np.ndarray:
        chosen = (blocks[id(dev)], targets[id(dev)]) if dev else None
        strength = choose(blocks[id(train)], targets[id(train)], len(classes), groups, chosen)
        return predict(blocks[id(train)], targets[id(train)], blocks[id(test)], len(classes), strength)

    parts = [part for part in (train, test, dev) if part]
    vectors = {id(part): token_vectors(elmo, part.texts, names) for part in parts}
    features = dict(zip(map(id, parts), sparse_features(parts, describe)))
    last = names[-1]
    both = probed({key: [block, vectors[key][last]] for key, block in features.items()})
    layers = [row(name, probed({key: [found[name]] for key, found in vectors.items()})) for name in names]
    frequent = "most frequent tag" if with_unknown else "most frequent state of the residue"
    baselines = [row(frequent, most_frequent(train, test, classes)),
                 row(described, probed({key: [block] for key, block in features.items()})), layers[0]]
    token = f"{len(targets[id(train)]):,} tokens of {train.source} -> {len(unknown):,} of {test.source}"
    return Report(f"{title}, linear probe: {token}", "accuracy in %", published, baselines,
                  [*layers[1:], row(f"{last} + {described}", both)], ("all", "new words") if with_unknown else ("",))


def _per_text(right: np.ndarray, of: np.ndarray, lengths: Sequence[int]) -> tuple[float, float]:
    starts = np.cumsum([0, *lengths[:-1]])
    return figure(np.add.reduceat(right.astype(float), starts), np.add.reduceat(of.astype(float), starts))


def most_frequent(train: Texts, test: Texts, classes: list[str]) -> np.ndarray:
    """The tag that a token of `test` has most often in `train`, or for new tokens the most frequent tag of all."""
    seen: dict[str, Counter] = defaultdict(Counter)
    for text, tags in zip(train.texts, train.labels):
        for token, tag in zip(text, tags):
            seen[token][tag] += 1
    overall = sum(seen.values(), Counter())
    best = {token: _most(counts, classes) for token, counts in seen.items()}
    return np.array([best.get(token, _most(overall, classes)) for text in test.texts for token in text])


def _most(counts: Counter, classes: list[str]) -> int:
    """The number of the most frequent class; of several the first in the alphabet."""
    return min(range(len(classes)), key=lambda number: -counts[classes[number]])


def sparse_features(parts: Sequence[Texts], describe: Describe) -> list:
    """Sparse float32 matrices [tokens, features] of the parts; a feature occurs at least twice in the first part."""
    named = [[set(describe(text, place)) for text in part.texts for place in range(len(text))] for part in parts]
    counts = Counter(name for names in named[0] for name in names)
    kept = {name for name, count in counts.items() if count >= _LEAST}
    rows = [[dict.fromkeys(names & kept, 1) for names in part] for part in named]
    vectorizer = DictVectorizer(dtype=np.float32).fit(rows[0])
    return [vectorizer.transform(part) for part in rows]
