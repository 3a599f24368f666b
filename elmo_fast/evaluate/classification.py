"""A class for every text: sentences, and proteins by their place in the cell."""

from collections.abc import Iterator, Sequence

import numpy as np

from elmo_fast.embed.api import LoadedElmo
from elmo_fast.evaluate.data import Split, Texts
from elmo_fast.evaluate.probe import choose, figure, predict
from elmo_fast.evaluate.report import Report, Row
from elmo_fast.evaluate.vectors import layer_names, text_vectors, tfidf

_FOLDS, _SEED = 5, 0
Fold = tuple[np.ndarray, np.ndarray, np.ndarray | None]  # rows to learn from, to test on, to choose the probe on


def classify(title: str, elmo: LoadedElmo, split: Split, published: str, proteins: bool) -> Report:
    """A linear probe on the mean over the tokens of each layer, TF-IDF, and both together."""
    parts = [part for part in split if part]
    texts = [text for part in parts for text in part.texts]
    labels = [label for part in parts for label in part.labels]
    classes = sorted(set(labels))
    targets = np.array([classes.index(label) for label in labels])
    folds = list(folds_of(split))
    names = layer_names(elmo)
    vectors = text_vectors(elmo, texts, names)
    layers = [vectors[name] for name in names[:-1]]
    sparse = [tfidf(texts, train, 3 if proteins else 2) for train, _, _ in folds]

    def row(name: str, features: Sequence) -> Row:  # the blocks of features of every fold
        right, strength = np.zeros(len(targets), bool), None
        for blocks, (train, test, dev) in zip(features, folds):
            learned = [block[train] for block in blocks]
            if strength is None:  # chosen once: the first fold's training part
                chosen = None if dev is None else ([block[dev] for block in blocks], targets[dev])
                strength = choose(learned, targets[train], len(classes), dev=chosen)
            right[test] = targets[test] == predict(learned, targets[train], [block[test] for block in blocks],
                                                   len(classes), strength)
        return Row(name, (figure(right[tested]),))

    tested = np.concatenate([test for _, test, _ in folds])
    majority = np.zeros(len(targets), bool)
    for train, test, _ in folds:
        majority[test] = targets[test] == np.bincount(targets[train]).argmax()
    grams = "TF-IDF of 1 to 3 residues" if proteins else "TF-IDF of words and pairs"
    average = vectors[names[-1]]
    rows = [row(names[-1], [[average]] * len(folds)), row("all layers", [layers] * len(folds)),
            row(f"{names[-1]} + {grams}", [[average, block] for block in sparse])]
    baselines = [Row("most frequent class", (figure(majority[tested]),)), row(grams, [[block] for block in sparse]),
                 row(names[0], [[vectors[names[0]]]] * len(folds))]
    return Report(f"{title}, linear probe: {_amounts(split)}", "accuracy in %", published, baselines, rows)


def folds_of(split: Split) -> Iterator[Fold]:
    """The test part as it comes, or five folds of a fixed shuffle; rows are those of train, test and dev, in order."""
    train, test, dev = (0 if part is None else len(part.texts) for part in split)
    if test:
        yield (np.arange(train), np.arange(train, train + test),
               np.arange(train + test, train + test + dev) if dev else None)
        return
    shuffled = np.random.default_rng(_SEED).permutation(train)
    for fold in range(_FOLDS):
        held = np.arange(train) % _FOLDS == fold
        yield shuffled[~held], shuffled[held], None


def _amounts(split: Split) -> str:
    train: Texts = split.train
    if split.test is None:
        return f"{len(train.texts):,} texts of {train.source}, {_FOLDS}-fold cross-validation"
    return f"{len(train.texts):,} texts of {train.source} -> {len(split.test.texts):,} of {split.test.source}"
