"""The nearest contexts of a word, as a report to print or draw."""

import os
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from elmo_fast.arguments import check_count, check_path
from elmo_fast.embed.api import LoadedElmo
from elmo_fast.errors import ConfigurationError
from elmo_fast.explore.contexts import FORMAT, ContextIndex, principal_plane
from elmo_fast.files import hdf5
from elmo_fast.text.tokenizers import Tokenizer, find_tokenizer
from elmo_fast.vectors.layouts.table import by_first_bytes
from elmo_fast.vectors.open import open_embeddings

_SIDE = 56  # characters shown on either side of the word
_MOST_POINTS = 1000


@dataclass(frozen=True)
class Context:
    """A word with the text on either side; `line` and `token` count from 1, and are None outside the corpus."""

    before: str
    word: str
    after: str
    line: int | None = None
    token: int | None = None
    similarity: float | None = None


@dataclass(frozen=True)
class Group:
    """A query and the contexts nearest to it, the nearest first."""

    query: Context
    neighbours: list[Context]


@dataclass(frozen=True)
class Report:
    """Groups of nearest contexts of a word that occurs `count` times in a corpus.

    `points` float32 [n, 2] are occurrences in their plane of greatest variance, first the groups' queries; `contexts`
    are the points' contexts, and `fraction` is the plane's share of the variance.
    """

    count: int
    groups: list[Group]
    contexts: list[Context]
    points: np.ndarray
    fraction: float


def open_index(path: str | os.PathLike, *, words: Collection[str] | None = None) -> ContextIndex | None:
    """The index of a file that `ContextIndex.save` wrote, or of vectors that `open_embeddings` opens; None for text.

    `words` as in `ContextIndex.from_embeddings`.
    """
    path, start = check_path("index", path), b""
    if os.path.isfile(path):
        with open(path, "rb") as file:
            start = file.read(8)
    layout = by_first_bytes(start)
    if not os.path.isdir(path) and not layout:
        return None
    if start.startswith(hdf5.MAGIC):
        with hdf5.open_hdf5(path, "index") as file:
            is_index = hdf5.attribute_of(file, "format", f"index {os.fspath(path)}", str) == FORMAT
        if is_index:
            return ContextIndex.load(path)
    try:
        embeddings = open_embeddings(path)
    except ConfigurationError:
        if layout == "parquet":  # a Parquet file of texts
            return None
        raise
    with embeddings:
        return ContextIndex.from_embeddings(embeddings, words=words)


def find_contexts(elmo: LoadedElmo, index: ContextIndex, word: str, *, sentence: str | Sequence[str] | None = None,
                  top: int = 10, queries: int = 3, any_word: bool = False, center: bool = False,
                  tokenizer: str | Tokenizer = "auto") -> Report:
    """The nearest contexts of a word in a sentence; without a sentence, of `queries` occurrences across the corpus.

    Only occurrences of the word are searched, or with `any_word` all occurrences in the index; `center` as in
    `ContextIndex.nearest`, and `tokenizer`, for a `sentence` that is a string, as in `LoadedElmo.embed`. `ValueError`
    for a word that is not in the corpus, or not in the sentence.
    """
    check_count("queries", queries)
    numbers = index.check(elmo).occurrences(word)
    least = 1 if sentence or any_word else 2
    if len(numbers) < least:
        raise ValueError(f"word: expected a word that the corpus has{' at least twice' if least == 2 else ''}, in "
                         f"upper or lower case, got {word!r}, found {len(numbers)} times")
    among = None if any_word else numbers
    if sentence is None:
        spread = np.linspace(0, len(numbers) - 1, min(queries, len(numbers))).astype(int)
        picks = numbers[spread].tolist()
        query_contexts, vectors = [context_of(index, number) for number in picks], index.vectors[np.array(picks)]
    else:
        sentence = find_tokenizer(tokenizer)(sentence) if isinstance(sentence, str) else sentence
        tokens, position = _position(sentence, word)
        query_contexts = [_around(tokens, position)]
        vectors = elmo.embed([tokens], index.layers, index.state)[0][[position]]
        picks = list(vectors)
    groups = [Group(context, [context_of(index, near.number, near.similarity)
                              for near in index.nearest(query, top, among=among, center=center)])
              for context, query in zip(query_contexts, picks)]
    contexts, rows = _others(index, numbers, query_contexts)
    plane = principal_plane(np.concatenate([np.asarray(vectors, np.float32), rows]))
    return Report(len(numbers), groups, [*query_contexts, *contexts], *plane)


def report_lines(report: Report) -> Iterator[str]:
    """Tab-separated rows of a report: the cosine (or `query`), the line, the token, and the context."""
    for group in report.groups:
        for context in (group.query, *group.neighbours):
            similarity = "query" if context.similarity is None else f"{context.similarity:.4f}"
            place = (str(context.line or "-"), str(context.token or "-"))
            words = " ".join(filter(None, (context.before, f"[{context.word}]", context.after)))
            yield "\t".join((similarity, *place, " ".join(words.split())))


def _position(sentence: Sequence[str], word: str) -> tuple[list[str], int]:
    """The tokens of a sentence, and the first position of the word."""
    tokens = list(sentence)
    for position, token in enumerate(tokens):
        if token.casefold() == word.casefold():
            return tokens, position
    raise ValueError(f"sentence: expected a sentence with the word {word!r} as a token, got {' '.join(tokens)!r:.80}")


def context_of(index: ContextIndex, number: int, similarity: float | None = None) -> Context:
    """An occurrence of an index with the words around it."""
    text, position = index.places[number].tolist()
    return _around(index.texts[text], position, int(index.lines[text]) + 1, position + 1, similarity)


def _around(tokens: Sequence[str], position: int, *place) -> Context:
    before, after = _cut(tokens[:position][::-1]), _cut(tokens[position + 1 :])
    return Context(" ".join(before[::-1]), tokens[position], " ".join(after), *place)


def _cut(tokens: Sequence[str]) -> list[str]:
    """The first tokens that fit beside the word, with an ellipsis in place of further tokens."""
    length = 0
    for count, token in enumerate(tokens):
        length += len(token) + 1
        if length > _SIDE:
            return [*tokens[:count], "\u2026"]
    return list(tokens)


def _others(index: ContextIndex, numbers: np.ndarray, queries: list[Context]) -> tuple[list[Context], np.ndarray]:
    """Occurrences of the word beside the queries, at most 1,000 or so, and their vectors, float32 [n, dim]."""
    places = {(query.line, query.token) for query in queries}
    step = -(-len(numbers) // _MOST_POINTS)
    occurrences = [(number, context) for number in numbers[::step].tolist()
                   if ((context := context_of(index, number)).line, context.token) not in places]
    rows = index.vectors[np.array([number for number, _ in occurrences], np.int64)]
    return [context for _, context in occurrences], np.asarray(rows, np.float32)
