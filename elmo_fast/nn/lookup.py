"""Token vectors of a model: from its token table or its cached words if these have the token, otherwise encoded."""

import logging
import os
from collections.abc import Callable, Hashable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import nn

from elmo_fast.arguments import check_choice
from elmo_fast.engine.table import TokenTable
from elmo_fast.engine.tokens import SpareVectors
from elmo_fast.errors import ConfigurationError
from elmo_fast.nn.at_rest import Now, parameter_of
from elmo_fast.nn.layers.batch_layout import add_boundaries, checked_mask, on_host, unique_rows
from elmo_fast.nn.layers.encoder import TokenSource
from elmo_fast.ops.device import refuse_capture, to_device
from elmo_fast.ops.linear import computes_in
from elmo_fast.ops.numerics import full_precision
from elmo_fast.text import characters
from elmo_fast.text.batching import BOUNDARIES, check_sentence

logger = logging.getLogger(__name__)

BOUNDARY_CHOICES = ("add", "present")

# Vectors of a batch's tokens [R, P], the row of each token int64 [N] in running order, and the mask bool [B, T].
BatchTokens = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


class WordCache(nn.Module):
    """Vectors of words in AllenNLP's numbering (`vocab_to_cache`): row k of `weight` [V, P] is word number k.

    Number 0 is padding, and its vector is zeros. `boundaries` [2, P] are the vectors of `<S>` and `</S>`.
    """

    def __init__(self, words: torch.Tensor, boundaries: torch.Tensor, trained: bool):
        super().__init__()
        self.weight = nn.Parameter(words.clone(), requires_grad=trained)
        with torch.no_grad():
            self.weight[:1] = 0
        self.register_buffer("boundaries", boundaries.clone(), persistent=False)
        self.largest = len(words) - 1

    @classmethod
    def of(cls, tokens: "TokenEncoder", words: Sequence[str]) -> "WordCache":
        """The vectors of `words`; trained, where the char encoder is, apart from it."""
        check_sentence(words, "words")
        source = tokens.source
        with torch.no_grad():
            ids = source.token_ids([*source.boundaries, *words])
            vectors = torch.cat([tokens.encode(rows) for rows in ids.split(1024)])
        if source.like.requires_grad:
            logger.warning("vocab_to_cache: with requires_grad the cached vectors are trained separately, "
                           "and the char encoder only on the other words")
        return cls(vectors[2:], vectors[:2], source.like.requires_grad)

    def forward(self, numbers: torch.Tensor) -> torch.Tensor:
        """Vectors of words by number, int [B, T] -> [B, T, P]."""
        return self.weight[numbers]

    def boundary_ids(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The numbers of `<S>` and `</S>`, which no word has: -2 and -1."""
        return torch.tensor(-2), torch.tensor(-1)

    def numbers(self, ids: torch.Tensor) -> torch.Tensor:
        """Vectors of words by number, int [N] -> [N, P]."""
        ids = to_device(ids, self.weight.device)
        words, boundaries = self.weight[ids.clamp(min=0)], self.boundaries[(ids + 2).clamp(max=1)]
        return torch.where((ids < 0)[:, None], boundaries.to(words), words)


class TableLookup:
    """A model's token table in bilm-tf's numbering: word ids are rows + 1, 0 is padding.

    Valid for `encoder` with its weights at construction: after a change of the weights, calls raise an error.
    """

    row_shape: tuple[int, ...] = ()

    def __init__(self, table: TokenTable, encoder: TokenSource):
        self.table, self._encoder = table, encoder
        self._digest = encoder.digest()

    @property
    def largest(self) -> int:
        """The largest word id."""
        return len(self.table)

    def boundary_ids(self) -> tuple[torch.Tensor, torch.Tensor]:
        rows = self.table.rows(BOUNDARIES)
        if (rows < 0).any():
            raise ConfigurationError("boundaries: expected 'present' for word ids of a token table without <S> and "
                                     "</S>, got 'add'")
        return tuple(torch.from_numpy(rows + 1))

    def numbers(self, ids: torch.Tensor) -> torch.Tensor:
        """Vectors of words by id, int [N], 1 to V -> [N, P]."""
        return self.on_device(self.table.vectors(ids.cpu().numpy() - 1))

    def on_device(self, vectors: np.ndarray) -> torch.Tensor:
        """Vectors with the type and device of the encoder's."""
        return torch.from_numpy(vectors).to(full_precision(self._encoder.like))

    def check(self, precision: str) -> None:
        """Raise `ConfigurationError` if a call in `precision` must not use the table."""
        self.table.check_precision(precision)
        if torch.is_grad_enabled() and any(value.requires_grad for value in self._encoder.parameters()):
            raise ConfigurationError("token_table: expected a char encoder that is not trained, got one whose weights "
                                     "require gradients (requires_grad=False, or torch.no_grad() around the call)")
        if (digest := self._encoder.digest()) != self._digest:
            raise ConfigurationError(f"token_table: expected a table of this char encoder, whose weights were changed "
                                     f"after the table was set (fingerprint of the weights now {digest}, then "
                                     f"{self._digest}); build the table again")


class TokenEncoder(NamedTuple):
    """Computes the vectors of a model's tokens in a call; `source` is the char encoder or embedding of the model.

    `now` is what the call finds of the source, None for one that is not ours.
    """

    source: TokenSource | None
    now: Now | None
    table: TableLookup | None
    cache: WordCache | None
    device: torch.device
    backend: str
    precision: str

    @classmethod
    def of(cls, bilm: nn.Module) -> "TokenEncoder":
        """The encoder of a `BiLm` with its current table, device, backend and precision.

        Raises `RuntimeError` while a CUDA graph is captured, as all calls that need token vectors do.
        """
        device = parameter_of(bilm).device
        refuse_capture(device)
        source, cache = map(bilm._modules.get, ("_token_embedder", "_word_embedding"))  # a user may delete the first
        now = source.now() if isinstance(source, TokenSource) else None
        return cls(source, now, bilm._table, cache, device, bilm.backend, bilm._precision)

    def strings(self, tokens: Sequence[str]) -> torch.Tensor:
        """Vectors of tokens: [N, P]."""
        if self.table is None:
            return self.encode(self.source.token_ids(tokens))
        self.table.check(self.precision)
        return self._complete(tokens, lambda missing: self.source.token_ids([tokens[k] for k in missing]))

    def batch(self, ids: torch.Tensor, boundaries: str, spare: SpareVectors | None = None) -> BatchTokens:
        """Tokens of a batch given as ids, as `BiLm.forward` takes them; `spare` may have vectors of character ids."""
        by_number = self.table is not None and isinstance(ids, torch.Tensor) and ids.dim() == 2
        source = self.table if by_number else self.source
        check_shape(ids, boundaries, source)
        ids, = on_host(ids)
        mask = checked_mask(ids, source)
        if boundaries == "add":
            ids, mask = add_boundaries(ids, mask, *source.boundary_ids())
        positions, rows = mask.flatten().nonzero().squeeze(1), ids.flatten(0, 1)
        present = rows.index_select(0, positions)  # faster than by indexing, which waits for torch's threads
        if self.backend == "reference" and self.table is None:  # encodes every row, padding too
            return self._vectors(rows), positions, mask
        if spare is not None and self.table is None and rows.dim() == 2 and len(positions):
            return *vectors_of_ids(spare, self.key(), present, self._vectors), mask
        unique, index = unique_rows(present)
        return self._vectors(unique), index, mask

    def numbered_batch(self, words: torch.Tensor, ids: torch.Tensor | None) -> BatchTokens:
        """Tokens of a batch given as numbers of cached words, or otherwise as ids of the table, with boundaries added.

        `ids` are the characters of words with larger numbers; `ids` that repeat the numbers are ignored.
        """
        known = self.table if self.cache is None else self.cache
        if known is None:
            raise ValueError("word_inputs: expected None, since no words are cached and there is no token table; "
                             "got a tensor")
        if ids is not None and (self.source is None or ids.shape == words.shape):
            ids = None  # numbers of words again, or characters that nothing can read
        if ids is not None:
            check_shape(ids, "add", self.source)
        words, ids = on_host(words, ids)
        if ids is not None:
            checked_mask(ids, self.source)
        check_numbers(words, ids)
        if self.cache is None:
            self.table.check(self.precision)
        bounded, mask = add_boundaries(words.long(), words > 0, *known.boundary_ids())
        numbers = bounded[mask]  # [N]
        beyond = numbers > known.largest
        unique, index = numbers[~beyond].unique(return_inverse=True)
        vectors = known.numbers(unique)
        if not beyond.any():
            return vectors, index, mask
        if ids is None:
            raise ValueError(f"ids: expected character ids, and a char encoder, beside word_inputs that hold numbers "
                             f"above {known.largest}, got no such ids and the number {int(words.max())}")
        rare, rare_index = unique_rows(ids[words > known.largest])
        rows = torch.empty_like(numbers)
        rows[~beyond], rows[beyond] = index, rare_index + len(unique)
        return torch.cat([vectors, self._vectors(rare)]), rows, mask

    def key(self) -> tuple:
        """What the vectors depend on beside the tokens: equal keys mean equal vectors."""
        unknown = None if self.table is None else self.table.table.unknown
        return self.table, unknown, self.device, self.backend, self.precision, self.now.get("key", object)

    @property
    def computes_in(self) -> str:
        """The precision of products without gradients: `highest` if the device does not support `precision`."""
        return computes_in(self.source.like, self.backend, self.precision)

    def look_up_in(self, table: TokenTable | str | os.PathLike, fingerprint: Callable[[], str]) -> TableLookup:
        """A lookup in a table, or in a table's file; `ConfigurationError` if it is not a table of this model."""
        table = table if isinstance(table, TokenTable) else TokenTable.open(table)
        table.check(self.source.dim, self.precision, self.source.boundaries, fingerprint)
        return TableLookup(table, self.source)

    def _vectors(self, ids: torch.Tensor) -> torch.Tensor:
        """Vectors [N, P] of tokens given as rows of ids on the host, int [N, ...]; with a table, unique ones."""
        ids = ids.long()
        if self.table is None:
            return self.encode(ids)
        self.table.check(self.precision)
        if ids.dim() == 1:
            return self.table.numbers(ids)
        words = characters.decode_tokens(ids.numpy() - 1)
        return self._complete(words, lambda missing: ids[torch.from_numpy(missing)])

    def _complete(self, words: Sequence[str | None], ids: Callable[[np.ndarray], torch.Tensor]) -> torch.Tensor:
        """Vectors [N, P] of words, of which `ids` returns the ids at some positions (see `TokenTable.complete`)."""
        def encode(missing: np.ndarray) -> np.ndarray:
            return self.encode(ids(missing)).float().cpu().numpy()

        return self.table.on_device(self.table.table.complete(words, encode))

    def encode(self, ids: torch.Tensor) -> torch.Tensor:
        """Vectors of ids on the host by the source, [N, *row_shape] -> [N, P]."""
        return self.source.encode_rows(to_device(ids, self.device), self.backend, self.precision, self.now)


def check_shape(ids: torch.Tensor, boundaries: str, source: TokenSource | TableLookup) -> None:
    """Raise `ValueError` unless ids are integers of the shape that `source` reads."""
    check_choice("boundaries", boundaries, BOUNDARY_CHOICES)
    row_shape = source.row_shape
    expected = f"integers of shape [batch, tokens{''.join(f', {size}' for size in row_shape)}]"
    if not isinstance(ids, torch.Tensor) or ids.is_floating_point() or ids.is_complex() or ids.dtype == torch.bool:
        raise ValueError(f"ids: expected a tensor of {expected}, got {getattr(ids, 'dtype', type(ids).__name__)}")
    if ids.dim() != 2 + len(row_shape) or tuple(ids.shape[2:]) != row_shape:
        raise ValueError(f"ids: expected {expected}, got shape {tuple(ids.shape)}")


def check_numbers(words: torch.Tensor, ids: torch.Tensor | None) -> None:
    """Raise `ValueError` unless `words` are numbers of words [B, T], one for each token of `ids`, and end in 0s."""
    if words.dim() != 2 or words.is_floating_point() or (words < 0).any():
        raise ValueError(f"word_inputs: expected word numbers of shape [batch, tokens], none negative, "
                         f"got {words.dtype} of shape {tuple(words.shape)}")
    if ids is not None and ids.shape[:2] != words.shape:
        raise ValueError(f"word_inputs: expected a number for each token of ids {tuple(ids.shape[:2])}, "
                         f"got shape {tuple(words.shape)}")
    if ((words[:, 1:] > 0) & (words[:, :-1] == 0)).any():
        raise ValueError("word_inputs: expected every sentence's words before its padding (number 0), "
                         "got a 0 in front of a word")


def vectors_of_ids(spare: SpareVectors, key: Hashable, ids: torch.Tensor,
                   encode: Callable[[torch.Tensor], torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """Vectors [R, P] with those of character ids int [N, C], N at least 1, and the row of each, int64 [N].

    `encode` computes the vectors of ids that the vectors of `key` in `spare` do not have. A token is named by its ids.
    """
    cache = spare.take()
    cache.check(key, ())
    names, size = ids.to(torch.int16).numpy().tobytes().decode("latin-1"), 2 * ids.shape[1]
    rows = cache.number([names[k : k + size] for k in range(0, len(names), size)])
    if new := cache.unencoded(len(rows)):
        new_ids = np.frombuffer("".join(new).encode("latin-1"), np.int16).reshape(len(new), -1)
        cache.append(encode(torch.from_numpy(new_ids.astype(np.int64))).detach().numpy())
    vectors = torch.from_numpy(cache.encoded)  # before another thread may take the cache
    spare.put(cache)
    return vectors, torch.from_numpy(rows).long()
