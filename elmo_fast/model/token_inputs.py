"""The ways into a model: strings, character ids, token ids and word numbers, all to unique token vectors."""

import os
from collections.abc import Callable, Sequence

import torch

from elmo_fast.model.first_layer import FirstLayerTable
from elmo_fast.model.layout import add_boundaries, unique_rows, on_host
from elmo_fast.model.lstm import LstmStack, InputProjections
from elmo_fast.model.options import ConfigurationError
from elmo_fast.model.token_lookup import TokenEmbeddings, TokenLookup, check_precision_of, check_table
from elmo_fast.model.token_source import CharacterEncoder, TokenSource
from elmo_fast.model.token_table import TokenTable
from elmo_fast.model.word_cache import WordCache, look_up_words
from elmo_fast.ops.device import to_device

BOUNDARIES = ("add", "present")
# Vectors of a batch's tokens [R, P], the row of each token int64 [N] in running order, and the mask bool [B, T].
BatchTokens = tuple[TokenEmbeddings, torch.Tensor, torch.Tensor]


class TokenInputs:
    """Reads tokens for a model, from its token table where it has one and from its `encoder` elsewhere.

    The encoder comes with each call: a replica of the model on another device brings its own.
    """

    def __init__(self):
        self._lookup: TokenLookup | None = None
        self._first_layer: FirstLayerTable | None = None

    @property
    def table(self) -> TokenTable | None:
        """The token table, or None."""
        return None if self._lookup is None else self._lookup.table

    def take_table(self, table: TokenTable | str | os.PathLike | None, encoder: TokenSource, stack: LstmStack,
                   fingerprint: Callable[[], str], backend: str, precision: str) -> None:
        """Use a table, or the file of one, or none; `ConfigurationError` for one that does not serve this model."""
        if table is None:
            self._lookup = self._first_layer = None
            return
        if not isinstance(encoder, CharacterEncoder):
            raise ConfigurationError("token_table: expected None for a model that reads word ids and has a table of its "
                                     "own, got a token table")
        table = table if isinstance(table, TokenTable) else TokenTable.open(table)
        check_table(table, encoder, fingerprint, backend)
        check_precision_of(table, precision)
        self._lookup = TokenLookup(table, encoder)
        fits = FirstLayerTable.fits(table, stack.options.dim)
        self._first_layer = FirstLayerTable(table, stack) if fits else None

    def strings(self, tokens: Sequence[str], encoder: TokenSource, device: torch.device, backend: str) -> TokenEmbeddings:
        """Vectors of tokens, by an encoder on `device`."""
        if self._lookup is not None:
            return self._lookup.strings(tokens, backend)
        return TokenEmbeddings(encoder(to_device(encoder.token_ids(tokens), device), backend), None)

    def batch(self, ids: torch.Tensor, boundaries: str, encoder: TokenSource, device: torch.device,
              backend: str) -> BatchTokens:
        """Tokens of a batch given as ids, as `BiLm.forward` takes them. They are copied back once and laid out here."""
        source = self._source(ids, encoder)
        check_shape(ids, boundaries, source)
        ids, = on_host(ids)
        mask = _checked_mask(ids, source)
        if boundaries == "add":
            ids, mask = add_boundaries(ids, mask, *source.boundary_ids())
        places = mask.flatten().nonzero().squeeze(1)
        rows = ids.flatten(0, 1)
        if backend == "reference" and self._lookup is None:  # it encodes every row there is
            return self._found(rows, encoder, device, backend), places, mask
        unique, index = unique_rows(rows[places])
        return self._found(unique, encoder, device, backend), index, mask

    def word_numbers(self, words: torch.Tensor, ids: torch.Tensor | None, cache: WordCache | None,
                     encoder: TokenSource, device: torch.device, backend: str) -> BatchTokens:
        """Tokens of a batch given as numbers of cached words, or else as token ids; `<S>` and `</S>` around each."""
        known = cache if cache is not None else self._lookup
        if known is None:
            raise ValueError("word_inputs: expected None, since no words are cached and there is no token table; "
                             "got a tensor")
        if ids is not None:
            check_shape(ids, "add", encoder)
        words, ids = on_host(words, ids)
        if ids is not None:
            _checked_mask(ids, encoder)
        return look_up_words(words, ids, known, lambda rare: self._found(rare, encoder, device, backend))

    def first_layer(self, found: TokenEmbeddings, backend: str, precision: str) -> InputProjections | None:
        """What the first LSTM layer's weights make of token vectors, where a small token table has it all."""
        if self._first_layer is None or found.rows is None:
            return None
        return self._first_layer.products(found.rows, backend, precision)

    def _source(self, ids: torch.Tensor, encoder: TokenSource) -> TokenSource:
        """What reads the ids: the token table where they are its own, else the model's encoder."""
        from_table = self._lookup is not None and isinstance(ids, torch.Tensor) and ids.dim() == 2
        return self._lookup if from_table else encoder

    def _found(self, ids: torch.Tensor, encoder: TokenSource, device: torch.device, backend: str) -> TokenEmbeddings:
        """Vectors of tokens given as rows of ids, [N, ...], by an encoder on `device`."""
        ids = ids.long()
        if self._lookup is None:
            return TokenEmbeddings(encoder(to_device(ids, device), backend), None)
        return self._lookup.numbers(ids) if ids.dim() == 1 else self._lookup.characters(ids, backend)


def check_shape(ids: torch.Tensor, boundaries: str, source: TokenSource) -> None:
    """Raise `ValueError` unless ids are integers of the shape that `source` reads."""
    if boundaries not in BOUNDARIES:
        raise ValueError(f"boundaries: expected one of {', '.join(BOUNDARIES)}, got {boundaries!r}")
    row_shape = source.row_shape
    expected = f"integers of shape [batch, tokens{''.join(f', {size}' for size in row_shape)}]"
    if not isinstance(ids, torch.Tensor) or ids.is_floating_point() or ids.is_complex() or ids.dtype == torch.bool:
        raise ValueError(f"ids: expected a tensor of {expected}, got {getattr(ids, 'dtype', type(ids).__name__)}")
    if ids.dim() != 2 + len(row_shape) or tuple(ids.shape[2:]) != row_shape:
        raise ValueError(f"ids: expected {expected}, got shape {tuple(ids.shape)}")


def _checked_mask(ids: torch.Tensor, source: TokenSource) -> torch.Tensor:
    """Where ids [B, T, ...] on the host hold tokens, bool [B, T]; `ValueError` for what no model reads."""
    source.check_ids(ids)
    mask = (ids > 0).flatten(2).any(2) if source.row_shape else ids > 0
    if (mask[:, 1:] & ~mask[:, :-1]).any():
        raise ValueError("ids: expected every sentence's tokens before its padding, "
                         "got a position without a token in front of one with a token")
    return mask
