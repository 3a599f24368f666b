"""Token tables made from a model: in memory, or into a file, a long run of which can be taken up where it ended."""

import collections
import itertools
import logging
import os
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import torch

from elmo_fast.model.bilm import BiLm
from elmo_fast.model.options import ConfigurationError
from elmo_fast.model.table_file import check_storage
from elmo_fast.model.table_part import TablePart
from elmo_fast.model.token_source import CharacterEncoder
from elmo_fast.model.token_table import TokenTable, words_of
from elmo_fast.model.atomic_file import check_target
from elmo_fast.ops.precision import numerics
from elmo_fast.text import characters

_WORDS_A_BLOCK = 1 << 13  # between two writes
_WORDS_AT_ONCE = 1 << 10  # in one call of the encoder, whose values then stay near the processor

logger = logging.getLogger(__name__)


def build_token_table(bilm: BiLm, vocabulary: str | os.PathLike | Iterable[str], *, storage: str = "float32",
                      device: torch.device | str | None = None, unknown: str = "encode", grow: bool | int = False,
                      progress: bool = False) -> TokenTable:
    """The table of a vocabulary file, or of words in order, in memory.

    The model encodes on the device it is on, in its own precision; the table comes to lie on `device`, the CPU without
    one. Words that lack `<S>` or `</S>` get them at their end; a file that lacks them is refused. `storage` is `float32`
    or `float16`; `unknown` and `grow` are those of `TokenTable`.
    """
    words = words_of(vocabulary)
    whole = np.empty((len(words), _encoder(bilm).dim), dtype=check_storage(storage))
    done = 0
    for vectors in _progress(_encoded(bilm, words, 0), words, 0, progress):
        whole[done : done + len(vectors)] = vectors
        done += len(vectors)
    vectors = torch.from_numpy(whole).to(device or "cpu")
    return TokenTable(vectors, words, bilm.fingerprint(), unknown=unknown, grow=grow, precision=bilm.computes_in)


def write_token_table(bilm: BiLm, vocabulary: str | os.PathLike | Iterable[str], path: str | os.PathLike, *,
                      storage: str = "float32", progress: bool = False) -> None:
    """Write the table of a vocabulary to a file that `TokenTable.open` and bilm-tf read, without holding it in memory.

    A run that was killed is taken up where it ended by the same call: what is done lies in `PATH.part` until then.
    """
    check_target(path, "token table")
    words = words_of(vocabulary)
    shape = words, _encoder(bilm).dim, check_storage(storage)
    with TablePart(path, *shape, bilm.fingerprint(), bilm.computes_in) as part:
        if part.done:
            logger.info("%s: goes on after word %d of %d", os.fspath(path), part.done, len(words))
        for vectors in _progress(_encoded(bilm, words, part.done), words, part.done, progress):
            part.append(vectors)
        part.finish()


def corpus_words(sentences: Iterable[Sequence[str]]) -> list[str]:
    """`<S>`, `</S>` and every word of tokenized sentences, the most frequent first: a vocabulary for a table."""
    marks = [characters.BEGIN_SENTENCE_TOKEN, characters.END_SENTENCE_TOKEN]
    counts = collections.Counter(itertools.chain.from_iterable(sentences))
    return marks + [word for word, _ in counts.most_common() if word not in marks]


def _encoder(bilm: BiLm) -> CharacterEncoder:
    if not isinstance(bilm.token_source, CharacterEncoder):
        raise ConfigurationError("token table: expected a model that reads characters, got one that reads word ids "
                                 "and has a table of its own")
    return bilm.token_source


def _encoded(bilm: BiLm, words: Sequence[str], first: int) -> Iterator[np.ndarray]:
    """Vectors of the words from `first` on, in blocks [N, P]."""
    encoder, precision = _encoder(bilm), bilm.computes_in
    device = encoder.char_embed.device
    for begin in range(first, len(words), _WORDS_A_BLOCK):
        ids = encoder.token_ids(words[begin : begin + _WORDS_A_BLOCK]).to(device)
        with torch.no_grad(), numerics(precision, device):
            pieces = [encoder(piece, bilm.backend) for piece in ids.split(_WORDS_AT_ONCE)]
        yield torch.cat(pieces).float().cpu().numpy()


def _progress(blocks: Iterator[np.ndarray], words: Sequence[str], done: int, wanted: bool) -> Iterator[np.ndarray]:
    if not wanted:
        yield from blocks
        return
    try:
        from tqdm import tqdm
    except ImportError:
        logger.info("tqdm is not installed: no progress bar")
        yield from blocks
        return
    with tqdm(total=len(words), initial=done, unit=" words", disable=None) as bar:
        for vectors in blocks:
            yield vectors
            bar.update(len(vectors))
