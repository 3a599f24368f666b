"""A word in its contexts, by cosine: WiC, and lexical substitution."""

from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np

from benchmarks.evaluate.data import Pair, Split, Target, candidates_of
from benchmarks.evaluate.features import layer_names, named, streamed, tfidf
from benchmarks.evaluate.report import Report, Row, figure
from elmo_fast.embed.api import LoadedElmo
from elmo_fast.environment import extra

with extra("scikit-learn"):
    from sklearn.metrics.pairwise import cosine_similarity, paired_cosine_distances

_SHUFFLES, _SEED = 20, 0


def wic(elmo: LoadedElmo, split: Split) -> Report:
    """Whether a word means the same in two texts: the cosine of its vectors, above a threshold of the train part."""
    train, test = (np.array(part.labels) for part in (split.train, split.test))
    pairs = [*split.train.texts, *split.test.texts]

    def row(name: str, cosines: np.ndarray) -> Row:
        threshold = best_threshold(cosines[: len(train)], train)
        return Row(name, (figure((cosines[len(train) :] > threshold) == test),))

    first, *others = [row(name, cosines) for name, cosines in pair_cosines(elmo, pairs).items()]
    majority = test == (train.mean() >= 0.5)
    baselines = [Row("most frequent answer", (figure(majority),)),
                 row("cosine of the texts, TF-IDF", _overlap(pairs, len(train))), first]
    return Report(f"word in context, cosine and threshold: {len(train):,} -> {len(test):,} pairs of WiC, "
                  f"{split.train.source} -> {split.test.source}", "accuracy in %", baselines, others)


def best_threshold(cosines: np.ndarray, same: np.ndarray) -> float:
    """The threshold with the most right answers where a pair is the same above it; of several the lowest."""
    values = np.unique(cosines)
    between = np.array([values[0] - 1, *((values[1:] + values[:-1]) / 2), values[-1] + 1])
    above = np.searchsorted(np.sort(cosines[same]), between, "right")
    below = np.searchsorted(np.sort(cosines[~same]), between, "right")
    return float(between[np.argmax(below - above)])


def pair_cosines(elmo: LoadedElmo, pairs: Sequence[Pair]) -> dict[str, np.ndarray]:
    """Cosines [pairs] of the words' vectors, of each layer and of the average."""
    places = [place for pair in pairs for place in pair.places]
    texts = streamed(elmo, [text for pair in pairs for text in pair.texts])
    words = np.stack([layers[:, place] for layers, place in zip(texts, places)], axis=1)
    return {name: 1 - paired_cosine_distances(found[::2], found[1::2]) for name, found in named(elmo, words).items()}


def _overlap(pairs: Sequence[Pair], train: int) -> np.ndarray:
    """Cosines [pairs] of whole texts by TF-IDF, fitted to the first `train` pairs."""
    texts = [text for pair in pairs for text in pair.texts]
    weights = tfidf(1).fit(texts[: 2 * train]).transform(texts)
    return 1 - paired_cosine_distances(weights[::2], weights[1::2])


def lexical_substitution(elmo: LoadedElmo, split: Split) -> Report:
    """Rank the substitutes of a word in all its texts for one text, by the cosine of the word and of them in its place.

    The measure is generalized average precision (GAP). Texts without a substitute of a single word are left out.
    """
    candidates = candidates_of(split.train)
    ranked = [(target, gold) for target, gold in zip(split.train.texts, split.train.labels)
              if any(name in gold for name in candidates[target.word])]
    golds = [np.array([gold.get(name, 0.0) for name in candidates[target.word]]) for target, gold in ranked]
    totals = Counter()
    for target, gold in ranked:
        totals.update({(target.word, name): weight for name, weight in gold.items()})

    def row(name: str, scores: Callable[[int], np.ndarray], shuffles: int = 1) -> Row:
        values = [np.mean([gap(scores(number), gold) for _ in range(shuffles)]) for number, gold in enumerate(golds)]
        return Row(name, (figure(np.array(values)),))

    def elsewhere(number: int) -> np.ndarray:
        target, gold = ranked[number]
        return np.array([totals[target.word, name] - gold.get(name, 0) for name in candidates[target.word]])

    random = np.random.default_rng(_SEED)
    cosines = [_candidate_cosines(elmo, target, candidates[target.word]) for target, _ in ranked]
    first, *others = [row(name, lambda number, name=name: cosines[number][name]) for name in layer_names(elmo)]
    baselines = [row("random order", lambda number: random.random(len(golds[number])), _SHUFFLES),
                 row("frequency in the word's other texts", elsewhere), first]
    return Report(f"lexical substitution, candidates ranked by cosine: {len(ranked):,} texts of {len(candidates):,} "
                  f"words of {split.train.source}", "generalized average precision in %", baselines, others)


def _candidate_cosines(elmo: LoadedElmo, target: Target, candidates: Sequence[str]) -> dict[str, np.ndarray]:
    """Cosines [candidates] of the word and of each candidate in its place, by layer."""
    texts = [[*target.tokens[: target.place], word, *target.tokens[target.place + 1 :]]
             for word in (target.tokens[target.place], *candidates)]
    words = np.stack([layers[:, target.place] for layers in streamed(elmo, texts)], axis=1)
    return {name: cosine_similarity(found[:1], found[1:])[0] for name, found in named(elmo, words).items()}


def gap(scores: np.ndarray, gold: np.ndarray) -> float:
    """Generalized average precision (Kishida 2005) of a ranking by `scores`, for the weights `gold` of the same items.

    Of equal scores the item that comes first is ranked first.
    """
    return _area(gold[np.argsort(-np.asarray(scores), kind="stable")]) / _area(np.sort(gold)[::-1])


def _area(weights: np.ndarray) -> float:
    """The sum over items with a weight of the mean weight of the items up to them."""
    means = np.cumsum(weights) / np.arange(1, len(weights) + 1)
    return float(means[weights > 0].sum())
