"""A word in its contexts, by cosine: WiC, and lexical substitution."""

from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np

from elmo_fast.embed.api import LoadedElmo
from elmo_fast.evaluate.data import Pair, Target, candidates_of
from elmo_fast.evaluate.probe import figure
from elmo_fast.evaluate.report import Report, Row
from elmo_fast.evaluate.vectors import layer_names, select, streamed, tfidf
from elmo_fast.files import stops

_SHUFFLES, _SEED = 20, 0


def wic(elmo: LoadedElmo, train: Sequence[Pair], test: Sequence[Pair], source: str, published: str) -> Report:
    """Whether a word means the same in two texts: the cosine of its vectors, above a threshold of the train part."""
    answers = [np.array([pair.same for pair in pairs]) for pairs in (train, test)]

    def row(name: str, cosines: Sequence[np.ndarray]) -> Row:
        threshold = best_threshold(cosines[0], answers[0])
        return Row(name, (figure((cosines[1] > threshold) == answers[1]),))

    cosines = [pair_cosines(elmo, pairs) for pairs in (train, test)]
    first, *others = [row(name, [found[name] for found in cosines]) for name in layer_names(elmo)]
    majority = answers[1] == (answers[0].mean() >= 0.5)
    baselines = [Row("most frequent answer", (figure(majority),)),
                 row("cosine of the texts, TF-IDF", _overlap(train, test)), first]
    return Report(f"word in context, cosine and threshold: {len(train):,} -> {len(test):,} pairs of {source}",
                  "accuracy in %", published, baselines, others)


def best_threshold(cosines: np.ndarray, same: np.ndarray) -> float:
    """The threshold with the most right answers where a pair is the same above it; of several the lowest."""
    values = np.sort(np.unique(cosines))
    between = [values[0] - 1, *((values[1:] + values[:-1]) / 2), values[-1] + 1]
    order = np.sort(cosines[same]), np.sort(cosines[~same])
    right = [len(order[0]) - np.searchsorted(order[0], one, "right") + np.searchsorted(order[1], one, "right")
             for one in between]
    return float(between[int(np.argmax(right))])


def pair_cosines(elmo: LoadedElmo, pairs: Sequence[Pair]) -> dict[str, np.ndarray]:
    """Cosines [pairs] of the words' vectors, of each layer and of the average."""
    vectors = stops.checked(streamed(elmo, [text for pair in pairs for text in pair.texts]))
    found: dict[str, list[float]] = {name: [] for name in layer_names(elmo)}
    for pair, layers in zip(pairs, zip(vectors, vectors)):
        for name, cosines in found.items():
            cosines.append(cosine(*(select(elmo, one[:, [place]], name)[0] for one, place in zip(layers, pair.places))))
    return {name: np.array(cosines) for name, cosines in found.items()}


def cosine(first: np.ndarray, second: np.ndarray) -> float:
    """The cosine of two vectors; 0 where a vector is zero."""
    return float(first @ second / ((np.linalg.norm(first) * np.linalg.norm(second)) or 1))


def _overlap(train: Sequence[Pair], test: Sequence[Pair]) -> list[np.ndarray]:
    texts = [text for pair in (*train, *test) for text in pair.texts]
    weights = tfidf(texts, range(2 * len(train)), 1)
    cosines = np.asarray(weights[::2].multiply(weights[1::2]).sum(1)).ravel()
    return [cosines[: len(train)], cosines[len(train) :]]


def lexical_substitution(elmo: LoadedElmo, targets: Sequence[Target], source: str, published: str) -> Report:
    """Rank the substitutes of a word in all its texts for one text, by the cosine of the word and of them in its place.

    The measure is generalized average precision (GAP). Texts without a substitute of a single word are left out.
    """
    candidates = candidates_of(targets)
    ranked = [target for target in targets if any(name in target.gold for name in candidates[target.word])]

    def row(name: str, score: Callable[[Target, int], np.ndarray]) -> Row:
        values = [gap(score(target, number), _gold(target, candidates)) for number, target in enumerate(ranked)]
        return Row(name, (figure(np.array(values)),))

    random = np.random.default_rng(_SEED)
    chance = [np.mean([gap(random.random(len(candidates[target.word])), _gold(target, candidates))
                       for _ in range(_SHUFFLES)]) for target in ranked]
    cosines = [_candidate_cosines(elmo, target, candidates[target.word]) for target in stops.checked(ranked)]
    totals = Counter()
    for target in ranked:
        totals.update({(target.word, name): weight for name, weight in target.gold.items()})
    first, *others = [row(name, lambda target, number, name=name: cosines[number][name]) for name in layer_names(elmo)]

    def elsewhere(target: Target, number: int) -> np.ndarray:
        return np.array([totals[target.word, name] - target.gold.get(name, 0) for name in candidates[target.word]])

    baselines = [Row("random order", (figure(np.array(chance)),)),
                 row("frequency in the word's other texts", elsewhere), first]
    return Report(f"lexical substitution, candidates ranked by cosine: {len(ranked):,} texts of {len(candidates):,} "
                  f"words of {source}", "generalized average precision in %", published, baselines, others)


def _gold(target: Target, candidates: dict[str, list[str]]) -> np.ndarray:
    return np.array([target.gold.get(name, 0.0) for name in candidates[target.word]])


def _candidate_cosines(elmo: LoadedElmo, target: Target, candidates: Sequence[str]) -> dict[str, np.ndarray]:
    texts = [[*target.tokens[: target.place], word, *target.tokens[target.place + 1 :]]
             for word in (target.tokens[target.place], *candidates)]
    layers = np.stack([vectors[:, target.place] for vectors in streamed(elmo, texts)], axis=1)
    selected = {name: select(elmo, layers, name) for name in layer_names(elmo)}
    return {name: np.array([cosine(found[0], vector) for vector in found[1:]]) for name, found in selected.items()}


def gap(scores: np.ndarray, gold: np.ndarray) -> float:
    """Generalized average precision (Kishida 2005) of a ranking by `scores`, for the weights `gold` of the same items.

    Of equal scores the item that comes first is ranked first.
    """
    return _area(gold[np.argsort(-np.asarray(scores), kind="stable")]) / _area(np.sort(gold)[::-1])


def _area(weights: np.ndarray) -> float:
    """The sum over items with a weight of the mean weight of the items up to them."""
    means = np.cumsum(weights) / np.arange(1, len(weights) + 1)
    return float(means[weights > 0].sum())
