"""Token tables computed by a model: in memory, or in a file."""

import collections
import itertools
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from elmo_fast.arguments import STORAGES, check_choice, shown
from elmo_fast.embed.progress import progress_bar
from elmo_fast.engine.table import TokenTable
from elmo_fast.engine.table_file import TableHeader, words_of, write_table
from elmo_fast.errors import ConfigurationError
from elmo_fast.files import stops
from elmo_fast.text.batching import BOUNDARIES, check_iterable, check_sentence, not_a_string

if TYPE_CHECKING:
    from elmo_fast.engine.model import Model
    from elmo_fast.nn.bilm import BiLm

_WORDS_A_BLOCK = 1 << 13  # encoded between two writes


def build_token_table(model: "Model | BiLm", vocabulary: str | os.PathLike | Iterable[str], *,
                      storage: str = "float32", unknown: str = "encode", progress: bool = False) -> TokenTable:
    """The table in memory of a vocabulary file, or of words in order.

    The model encodes on its device and in its precision. `<S>` and `</S>` are appended to words that lack them; a file
    that lacks them is refused. `storage` is `float32` or `float16`; `unknown` is that of `TokenTable`.
    """
    model = _at_rest(model)
    header = table_header(model, words_of(vocabulary), storage)
    values = np.concatenate([block.astype(storage, copy=False) for block in encoded(model, header.words, progress)])
    values.setflags(write=False)
    return TokenTable(values, header.words, header.fingerprint, unknown=unknown, precision=header.precision)


def write_token_table(model: "Model | BiLm", vocabulary: str | os.PathLike | Iterable[str], path: str | os.PathLike, *,
                      storage: str = "float32", progress: bool = False, lock: Path | None = None) -> tuple[int, int]:
    """Write the table of a vocabulary to a file that `TokenTable.open` and bilm-tf read, without holding it in memory.

    The file is written atomically. Returns the table's shape. `lock` is what `locked(path)` gave a caller that has
    locked `path`, else None.
    """
    model = _at_rest(model)
    header = table_header(model, words_of(vocabulary), storage)
    write_table(path, header, encoded(model, header.words, progress), lock)
    return header.shape


def _at_rest(model: "Model | BiLm") -> "Model":
    if hasattr(model, "output_dim"):
        return model
    from elmo_fast.nn.gpu.of_bilm import BiLmModel

    return BiLmModel(model)


def table_header(model: "Model", words: list[str], storage: str = "float32") -> TableHeader:
    """The header of a model's table of words; `ConfigurationError` for a model of other sentence boundaries."""
    if tuple(model.boundaries) != BOUNDARIES:
        raise ConfigurationError("token table: expected a model whose sentences run from <S> to </S>, got one whose "
                                 f"sentences run from {' to '.join(model.boundaries)}")
    check_choice("storage", storage, STORAGES)
    return TableHeader((len(words), model.output_dim // 2), storage, words, model.fingerprint, model.computes_in)


def corpus_words(sentences: Iterable[Sequence[str]]) -> list[str]:
    """`<S>`, `</S>` and every word of tokenized sentences, the most frequent first: a vocabulary for a table."""
    check_iterable(sentences, "sentences")
    tokens = itertools.chain.from_iterable(
        check_sentence(sentence, f"sentences[{number}]") for number, sentence in enumerate(sentences))
    try:
        counts = collections.Counter(tokens)
    except TypeError as error:
        raise not_a_string(error) from error
    for word in counts:
        if not isinstance(word, str):
            raise ValueError(f"token: expected a string, got {type(word).__name__} ({shown(word)})")
    return [*BOUNDARIES, *(word for word, _ in counts.most_common() if word not in BOUNDARIES)]


def encoded(model: "Model", words: Sequence[str], progress: bool) -> Iterator[np.ndarray]:
    """Vectors of the words in blocks [N, P]; `progress` shows a bar on a terminal."""
    with progress_bar(len(words), "words", progress) as bar:
        for begin in range(0, len(words), _WORDS_A_BLOCK):
            block = words[begin : begin + _WORDS_A_BLOCK]
            yield model.encode(block)
            stops.check()
            bar.update(len(block))
