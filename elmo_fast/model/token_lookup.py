"""Token vectors of a model with a token table: the table's where it has the token, the char encoder's elsewhere."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch

from elmo_fast.model.character_index import words_of_ids
from elmo_fast.model.options import ConfigurationError
from elmo_fast.model.token_source import CharacterEncoder
from elmo_fast.model.token_table import TokenTable
from elmo_fast.ops.weight_cache import version_key
from elmo_fast.ops.linear import computes_in
from elmo_fast.ops.precision import active_precision, full_precision, lowest
from elmo_fast.text import characters
from elmo_fast.text.vocabulary import UNKNOWN_TOKEN

SAMPLE = 64


class TokenEmbeddings(NamedTuple):
    """`vectors` [N, P] of tokens, and `rows` int64 [N] of the token table they came from.

    A token that was encoded has row -1; where there is no table, `rows` is None.
    """

    vectors: torch.Tensor
    rows: np.ndarray | torch.Tensor | None


class TokenLookup:
    """A table beside the char encoder whose vectors it holds.

    Also what gives word ids their vectors, as a `TokenSource`: ids are rows + 1, 0 is no token.
    """

    row_shape: tuple[int, ...] = ()

    def __init__(self, table: TokenTable, encoder: CharacterEncoder):
        self.table, self._encoder = table, encoder
        self._key, self._digest = self._encoder_key(), encoder.digest()

    def strings(self, tokens: Sequence[str], backend: str) -> TokenEmbeddings:
        """Vectors of tokens."""
        self._check()
        rows = self.table.rows(tokens)
        missing = np.flatnonzero(rows < 0)
        if not missing.size:
            return self._known(rows)
        words = [tokens[k] for k in missing]
        if self.table.unknown == "encode":
            fresh = list(dict.fromkeys(words))
            numbers = {word: number for number, word in enumerate(fresh)}
            vectors = self._encode(self._encoder.token_ids(fresh), backend)
            self._join(fresh, vectors, backend)
            return self._mixed(rows, missing, vectors, [numbers[word] for word in words])
        return self._known(self._stand_in(rows, missing, words))

    def characters(self, ids: torch.Tensor, backend: str) -> TokenEmbeddings:
        """Vectors of tokens given as unique rows of character ids, int [N, C]."""
        self._check()
        on_host = ids.cpu()
        rows = self.table.rows_of_characters(on_host)
        missing = np.flatnonzero(rows < 0)
        if not missing.size:
            return self._known(rows)
        if self.table.unknown == "encode":
            rare = on_host[torch.from_numpy(missing)]
            vectors = self._encode(rare, backend)
            if self.table.grows:
                words = words_of_ids(rare)
                spelled = [k for k, word in enumerate(words) if word is not None]
                self._join([words[k] for k in spelled], vectors[spelled], backend)
            return self._mixed(rows, missing, vectors, range(missing.size))
        words = words_of_ids(on_host[torch.from_numpy(missing)])
        return self._known(self._stand_in(rows, missing, [word or "(no text)" for word in words]))

    def numbers(self, ids: torch.Tensor) -> TokenEmbeddings:
        """Vectors of tokens given as word ids, int [N], 1 to V."""
        self._check()
        return self._known((ids - 1).to(self.table.device))

    @property
    def largest(self) -> int:
        """The largest word id."""
        return len(self.table)

    def boundary_ids(self) -> tuple[torch.Tensor, torch.Tensor]:
        marks = [characters.BEGIN_SENTENCE_TOKEN, characters.END_SENTENCE_TOKEN]
        rows = self.table.rows(marks)
        if (rows < 0).any():
            raise ConfigurationError("boundaries: expected 'present' for word ids of a token table without <S> and "
                                     "</S>, got 'add'")
        first, last = torch.from_numpy(rows + 1)
        return first, last

    def token_ids(self, tokens: Sequence[str]) -> torch.Tensor:
        return torch.from_numpy(self.table.ids(tokens))

    def check_ids(self, ids: torch.Tensor) -> None:
        if ids.device.type == "cpu" and ids.numel() and (ids.min() < 0 or ids.max() > len(self.table)):
            raise ValueError(f"ids: expected word ids from 0 to {len(self.table)}, "
                             f"got {int(ids.min())} to {int(ids.max())}")

    def __call__(self, ids: torch.Tensor, backend: str) -> torch.Tensor:
        """Vectors of word ids, int [N], 0 for no token -> [N, P]."""
        return self.numbers(ids.clamp(min=1)).vectors * (ids > 0)[:, None]

    def _known(self, rows: np.ndarray | torch.Tensor) -> TokenEmbeddings:
        like = full_precision(self._encoder.char_embed)
        return TokenEmbeddings(self.table.vectors(rows).to(like), rows)

    def _mixed(self, rows: np.ndarray, missing: np.ndarray, vectors: torch.Tensor, numbers: Sequence[int]) -> TokenEmbeddings:
        """Known rows from the table, the missing ones from `vectors`, whose rows `numbers` names."""
        known = np.flatnonzero(rows >= 0)
        found = vectors.new_empty(len(rows), vectors.shape[1])
        found[torch.from_numpy(missing)] = vectors[torch.tensor(numbers)]
        found[torch.from_numpy(known)] = self._known(rows[known]).vectors
        return TokenEmbeddings(found, rows)

    def _stand_in(self, rows: np.ndarray, missing: np.ndarray, words: Sequence[str]) -> np.ndarray:
        """`<UNK>`'s row for the missing ones where that was asked for."""
        if self.table.unknown == "error":
            self.table.refuse(words)
        rows[missing] = self.table.rows([UNKNOWN_TOKEN])
        return rows

    def _encode(self, ids: torch.Tensor, backend: str) -> torch.Tensor:
        return self._encoder(ids.to(self._encoder.char_embed.device), backend)

    def _join(self, words: Sequence[str], vectors: torch.Tensor, backend: str) -> None:
        if self.table.grows:
            self.table.add(words, vectors, computes_in(self._encoder.char_embed, backend, active_precision()))

    def __getstate__(self) -> dict:
        """Addresses of weights mean nothing in a copy."""
        return {**self.__dict__, "_key": None}

    def _encoder_key(self) -> tuple:
        return tuple(map(version_key, self._encoder.parameters()))

    def _check(self) -> None:
        """Refuse the table when the model computes better, or its char encoder was changed or is being trained."""
        check_precision_of(self.table, active_precision())
        if torch.is_grad_enabled() and any(value.requires_grad for value in self._encoder.parameters()):
            raise ConfigurationError("token_table: expected a char encoder that is not trained, got one whose weights "
                                     "require gradients (requires_grad=False, or torch.no_grad() around the call)")
        key = self._encoder_key()
        if key != self._key:
            if (digest := self._encoder.digest()) != self._digest:
                raise ConfigurationError(f"token_table: expected one of this char encoder, whose weights were changed "
                                         f"after it was taken (fingerprint of the weights now {digest}, then "
                                         f"{self._digest}); build the table again")
            self._key = key


def check_table(table: TokenTable, encoder: CharacterEncoder, fingerprint: Callable[[], str], backend: str) -> None:
    """Raise `ConfigurationError` unless the table is one of the model with this encoder and `fingerprint`.

    A table without a fingerprint, as bilm-tf writes it, is compared word by word for a sample of its words; without
    a vocabulary only its shape can be checked.
    """
    if table.dim != encoder.dim:
        raise ConfigurationError(f"token_table: expected vectors of {encoder.dim} values, got {table.dim}")
    if table.fingerprint is not None:
        if table.fingerprint != (own := fingerprint()):
            raise ConfigurationError(f"token_table: expected the table of this model (fingerprint {own}), got one of "
                                     f"another model (fingerprint {table.fingerprint})")
    elif table.words is not None:
        _compare_sample(table, encoder, backend)


def check_precision_of(table: TokenTable, precision: str) -> None:
    """Raise `ConfigurationError` for a table that was computed in less than `precision`."""
    if lowest(table.precision, precision) != precision:
        raise ConfigurationError(f"token_table: expected one computed in {precision!r}, as the model computes, got one "
                                 f"computed in {table.precision!r}; build it again with this model")


def _compare_sample(table: TokenTable, encoder: CharacterEncoder, backend: str) -> None:
    rows = np.unique(np.linspace(0, len(table) - 1, SAMPLE).round().astype(np.int64))
    words = [table.words[row] for row in rows]
    with torch.no_grad():
        expected = encoder(encoder.token_ids(words).to(encoder.char_embed.device), backend).cpu()
    found = table.vectors(rows).cpu()
    limit = (2e-3 if table.storage == "float16" else 1e-4) * max(1.0, float(expected.abs().max()))
    error = (found - expected).abs().amax(1)
    worst = int(error.nan_to_num(nan=torch.inf).argmax())
    if not error[worst] <= limit:
        raise ConfigurationError(f"token_table: expected the vectors of this model, got others: row {int(rows[worst])} "
                                 f"({words[worst]!r:.60}) differs by {float(error[worst]):.1e} (limit {limit:.1e})")
