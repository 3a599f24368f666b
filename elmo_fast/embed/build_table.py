"""Token tables computed by a model: in memory, or in a file."""

import collections
import itertools
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import torch

from elmo_fast.arguments import STORAGES, check_choice, shown
from elmo_fast.embed.progress import progress_bar
from elmo_fast.errors import ConfigurationError
from elmo_fast.files import stops
from elmo_fast.model.bilm import BiLm
from elmo_fast.model.token_table.file import TableHeader, words_of, write_table
from elmo_fast.model.token_table.table import TokenTable
from elmo_fast.ops.device import available_device
from elmo_fast.ops.numerics import numerics
from elmo_fast.text.batching import BOUNDARIES, check_iterable, check_sentence, not_a_string

_WORDS_A_BLOCK = 1 << 13  # encoded between two writes
_WORDS_AT_ONCE = 1 << 10  # encoded in one call, so that activations stay in the processor's caches


def build_token_table(bilm: BiLm, vocabulary: str | os.PathLike | Iterable[str], *, storage: str = "float32",
                      device: torch.device | str | None = None, unknown: str = "encode",
                      progress: bool = False) -> TokenTable:
    """The table in memory of a vocabulary file, or of words in order.

    The model encodes on its device and in its precision; the table is on `device`, the CPU by default. `<S>` and `</S>`
    are appended to words that lack them; a file that lacks them is refused. `storage` is `float32` or `float16`;
    `unknown` is that of `TokenTable`.
    """
    table_device = available_device("cpu" if device is None else device)
    header = table_header(bilm, words_of(vocabulary), storage)
    values = np.concatenate([block.astype(storage, copy=False) for block in encoded(bilm, header.words, progress)])
    return TokenTable(torch.from_numpy(values).to(table_device), header.words, header.fingerprint, unknown=unknown,
                      precision=header.precision)


def write_token_table(bilm: BiLm, vocabulary: str | os.PathLike | Iterable[str], path: str | os.PathLike, *,
                      storage: str = "float32", progress: bool = False, lock: Path | None = None) -> tuple[int, int]:
    """Write the table of a vocabulary to a file that `TokenTable.open` and bilm-tf read, without holding it in memory.

    The file is written atomically. Returns the table's shape. `lock` is what `locked(path)` gave a caller that has
    locked `path`, else None.
    """
    header = table_header(bilm, words_of(vocabulary), storage)
    write_table(path, header, encoded(bilm, header.words, progress), lock)
    return header.shape


def table_header(bilm: BiLm, words: list[str], storage: str = "float32") -> TableHeader:
    """The header of a model's table of words; `ConfigurationError` for a model of other sentence boundaries."""
    boundaries = bilm.token_source.boundaries
    if boundaries != BOUNDARIES:
        raise ConfigurationError("token table: expected a model whose sentences run from <S> to </S>, got one whose "
                                 f"sentences run from {' to '.join(boundaries)}")
    check_choice("storage", storage, STORAGES)
    return TableHeader((len(words), bilm.token_source.dim), storage, words, bilm.fingerprint(), bilm.computes_in)


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


def encoded(bilm: BiLm, words: Sequence[str], progress: bool) -> Iterator[np.ndarray]:
    """Vectors of the words in blocks [N, P]; `progress` shows a bar on a terminal."""
    encoder, precision = bilm.token_source, bilm.computes_in
    device = next(encoder.parameters()).device
    with progress_bar(len(words), "words", progress) as bar:
        for begin in range(0, len(words), _WORDS_A_BLOCK):
            ids = encoder.token_ids(words[begin : begin + _WORDS_A_BLOCK]).to(device)
            with torch.no_grad(), numerics(precision, device):
                pieces = [encoder.encode_rows(piece, bilm.backend) for piece in ids.split(_WORDS_AT_ONCE)]
            yield torch.cat(pieces).float().cpu().numpy()
            stops.check()
            bar.update(len(ids))
