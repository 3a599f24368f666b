"""Vectors of the tokens of a stream: each unique token is encoded once for as long as the table has room."""

from collections.abc import Sequence

import numpy as np
import torch

from elmo_fast.model.bilm import BiLm
from elmo_fast.model.token_table.lookup import TokenEmbeddings
from elmo_fast.ops.device import to_device
from elmo_fast.text.characters import BEGIN_SENTENCE_TOKEN, END_SENTENCE_TOKEN

_ROOM = 1 << 15


class TokenVectors:
    """A bounded table of token vectors. When it is full, what no running sentence needs is forgotten."""

    def __init__(self, bilm: BiLm, room: int = _ROOM):
        self._bilm = bilm
        self._room = room
        self._rows: dict[str, int] = {}
        self._table: torch.Tensor | None = None
        self._sources: np.ndarray | None = None

    def rows(self, tokens: Sequence[str]) -> np.ndarray:
        """Rows of a sentence's tokens, `<S>` and `</S>` around them: int32 [tokens + 2]."""
        framed = (BEGIN_SENTENCE_TOKEN, *tokens, END_SENTENCE_TOKEN)
        return np.array([self._rows.setdefault(token, len(self._rows)) for token in framed], dtype=np.int32)

    def vectors(self, in_flight: Sequence) -> TokenEmbeddings:
        """The table, vectors [R, P], every row encoded. `in_flight` are the sentences whose `rows` must stay valid."""
        known = 0 if self._table is None else len(self._table)
        fresh = list(self._rows)[known:] if known < len(self._rows) else []
        if fresh:
            found = self._bilm.token_encoder.strings(fresh)
            self._table = found.vectors if self._table is None else torch.cat([self._table, found.vectors])
            self._sources = _end_to_end(self._sources, found.rows)
        if len(self._rows) > self._room:
            self._forget(in_flight)
        return TokenEmbeddings(self._table, self._sources)

    def _forget(self, in_flight: Sequence) -> None:
        sentences = list({id(sentence): sentence for sentence in in_flight}.values())
        kept, place = np.unique(np.concatenate([sentence.rows for sentence in sentences]), return_inverse=True)
        tokens = list(self._rows)
        self._rows = {tokens[row]: number for number, row in enumerate(kept)}
        self._table = self._table[to_device(kept, self._table.device).long()]
        self._sources = None if self._sources is None else self._sources[kept]
        ends = np.cumsum([len(sentence.rows) for sentence in sentences])[:-1]
        for sentence, rows in zip(sentences, np.split(place.astype(np.int32), ends)):
            sentence.rows = rows


def _end_to_end(before: np.ndarray | None, rows: np.ndarray | None) -> np.ndarray | None:
    return rows if before is None or rows is None else np.concatenate([before, rows])
