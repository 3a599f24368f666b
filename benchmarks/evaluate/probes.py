"""Linear probes: a tag for every token, a class for every text; by vectors, by sparse features, and by both."""

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.evaluate.data import Split, Tokens
from benchmarks.evaluate.features import WINDOW, layer_names, residue_features, tfidf, vectors, word_features
from benchmarks.evaluate.regression import choose, predict
from benchmarks.evaluate.report import Report, Row, figure
from elmo_fast.embed.api import LoadedElmo
from elmo_fast.environment import extra

with extra("scikit-learn"):
    from sklearn.feature_extraction.text import CountVectorizer

_FOLDS, _SEED = 5, 0


@dataclass(frozen=True)
class Fold:
    """Numbers of the rows to learn from, to test on, and to choose the probe on, None for a part of the first."""

    train: np.ndarray
    test: np.ndarray
    dev: np.ndarray | None = None


@dataclass(frozen=True)
class Examples:
    """Rows to classify, tokens or texts, of all parts: labels [rows], the text of each row, int [rows], and folds.

    `describe` fits a vectorizer to the rows of a fold's training part and returns sparse features [rows, D] of all.
    """

    labels: np.ndarray
    groups: np.ndarray
    folds: list[Fold]
    describe: Callable[[np.ndarray], Any]

    def probe(self, dense: Sequence[np.ndarray] = (), with_sparse: bool = False) -> np.ndarray:
        """Whether the probe is right, bool [rows], where a row is tested; `dense` are blocks of vectors [rows, D]."""
        classes = sorted(set(self.labels))
        targets = np.array([classes.index(label) for label in self.labels])
        right, strength = np.zeros(len(self.labels), bool), None
        for fold in self.folds:
            blocks = [*dense, self.describe(fold.train)] if with_sparse else dense
            learned, tested = ([block[rows] for block in blocks] for rows in (fold.train, fold.test))
            if strength is None:  # chosen once: on the first fold
                dev = None if fold.dev is None else ([block[fold.dev] for block in blocks], targets[fold.dev])
                strength = choose(learned, targets[fold.train], len(classes), _numbered(self.groups[fold.train]), dev)
            found = predict(learned, targets[fold.train], tested, len(classes), strength)
            right[fold.test] = found == targets[fold.test]
        return right

    def most_frequent(self, keys: Sequence[Hashable]) -> np.ndarray:
        """As `probe`, for the label that a row's key has most often, and for a new key the most frequent of all."""
        right = np.zeros(len(self.labels), bool)
        for fold in self.folds:
            seen: dict[Hashable, Counter] = defaultdict(Counter)
            for row in fold.train:
                seen[keys[row]][self.labels[row]] += 1
            default = _most(sum(seen.values(), Counter()))
            best = {key: _most(counts) for key, counts in seen.items()}
            right[fold.test] = [best.get(keys[row], default) == self.labels[row] for row in fold.test]
        return right

    @property
    def tested(self) -> np.ndarray:
        """The rows of all test parts, int [n]."""
        return np.concatenate([fold.test for fold in self.folds])


def _numbered(groups: np.ndarray) -> np.ndarray:
    """Groups numbered from 0 in their order, int [rows]."""
    numbers: dict[int, int] = {}
    return np.array([numbers.setdefault(group, len(numbers)) for group in groups.tolist()])


def _most(counts: Counter) -> Hashable:
    """The most frequent label; of several the first in order."""
    return min(counts, key=lambda label: (-counts[label], label))


# ---- tags of tokens ----


def part_of_speech(elmo: LoadedElmo, split: Split) -> Report:
    """Every layer, features of words, and both together."""
    return _tag("part of speech", elmo, split, layer_names(elmo), word_features, "word, affixes, neighbours",
                "most frequent tag", columns=("all", "new words"))


def secondary_structure(elmo: LoadedElmo, split: Split) -> Report:
    """Three states of a residue: the token layer, the layers' average, and residues of a window."""
    names = layer_names(elmo)
    return _tag("secondary structure, three states", elmo, split, [names[0], names[-1]], residue_features,
                f"residues at most {WINDOW} away", "most frequent state of the residue")


def _tag(title: str, elmo: LoadedElmo, split: Split, names: Sequence[str],
         describe: Callable[[Tokens, int], Iterator[str]], described: str, frequent: str,
         columns: tuple[str, ...] = ()) -> Report:
    texts = [text for part in split if part for text in part.texts]
    tokens = [token for text in texts for token in text]
    labels = np.array([tag for part in split if part for tags in part.labels for tag in tags])
    features = [list(describe(text, place)) for text in texts for place in range(len(text))]

    def sparse(train: np.ndarray) -> Any:
        vectorizer = CountVectorizer(analyzer=set, min_df=2, dtype=np.float32).fit([features[row] for row in train])
        return vectorizer.transform(features)

    sizes = [sum(map(len, part.texts)) if part else 0 for part in split]
    examples = Examples(labels, np.repeat(np.arange(len(texts)), list(map(len, texts))), _parts(sizes), sparse)
    tested, known = examples.tested, {tokens[row] for row in examples.folds[0].train}
    new = np.array([row for row in tested if tokens[row] not in known], int)

    def row(name: str, right: np.ndarray) -> Row:
        chosen = [tested, new] if columns else [tested]
        return Row(name, tuple(figure(right[rows], examples.groups[rows]) for rows in chosen))

    layers = vectors(elmo, texts, names)
    rows = [row(name, examples.probe([layers[name]])) for name in names]
    both = row(f"{names[-1]} + {described}", examples.probe([layers[names[-1]]], with_sparse=True))
    baselines = [row(frequent, examples.most_frequent(tokens)), row(described, examples.probe(with_sparse=True)),
                 rows[0]]
    amounts = f"{sizes[0]:,} tokens of {split.train.source} -> {len(tested):,} of {split.test.source}"
    return Report(f"{title}, linear probe: {amounts}", "accuracy in %", baselines, [*rows[1:], both], columns)


# ---- classes of texts ----


def classify(elmo: LoadedElmo, split: Split, title: str, grams: str, longest: int) -> Report:
    """A linear probe on the mean over the tokens of each layer, TF-IDF, and both together."""
    texts = [text for part in split if part for text in part.texts]
    labels = np.array([label for part in split if part for label in part.labels])
    sizes = [len(part.texts) if part else 0 for part in split]
    folds = _parts(sizes)
    amounts = f"{sizes[0]:,} texts of {split.train.source}"
    if split.test is None:
        shuffled, fold_of = np.random.default_rng(_SEED).permutation(len(texts)), np.arange(len(texts)) % _FOLDS
        folds = [Fold(shuffled[fold_of != number], shuffled[fold_of == number]) for number in range(_FOLDS)]
        amounts += f", {_FOLDS}-fold cross-validation"
    else:
        amounts += f" -> {sizes[1]:,} of {split.test.source}"
    examples = Examples(labels, np.arange(len(texts)), folds,
                        lambda train: tfidf(longest).fit([texts[row] for row in train]).transform(texts))

    def row(name: str, right: np.ndarray) -> Row:
        return Row(name, (figure(right[examples.tested]),))

    names = layer_names(elmo)
    layers = vectors(elmo, texts, names, means=True)
    average = layers[names[-1]]
    rows = [row(names[-1], examples.probe([average])),
            row("all layers", examples.probe([layers[name] for name in names[:-1]])),
            row(f"{names[-1]} + {grams}", examples.probe([average], with_sparse=True))]
    baselines = [row("most frequent class", examples.most_frequent([None] * len(texts))),
                 row(grams, examples.probe(with_sparse=True)), row(names[0], examples.probe([layers[names[0]]]))]
    return Report(f"{title}, linear probe: {amounts}", "accuracy in %", baselines, rows)


def _parts(sizes: Sequence[int]) -> list[Fold]:
    """One fold of parts whose rows follow one another: train, test and dev, of so many rows each."""
    train, test, dev = np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1])
    return [Fold(train, test, dev if len(dev) else None)]
