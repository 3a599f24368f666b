"""A biLM run by calls of its parts, with AllenNLP's arguments and results: where parts have hooks or were replaced."""

import numpy as np
import torch
from torch import nn

from elmo_fast.nn.at_rest import Now
from elmo_fast.nn.layers.batch_layout import BiLmOutput, add_boundaries
from elmo_fast.nn.layers.encoder import CharacterEncoder
from elmo_fast.nn.layers.lstm import ElmoLstm
from elmo_fast.nn.lookup import TokenEncoder, WordCache, check_numbers
from elmo_fast.ops.projected_lstm.reference import State


def is_plain(tokens: TokenEncoder, lstm: Now | None) -> bool:
    """Whether the parts of a `BiLm` need not be called: they are ours, without hooks. `lstm` is None for another's."""
    sources = [tokens.now] if tokens.source is not None else []
    words = [Now(tokens.cache, frozenset({WordCache.forward}))] if tokens.cache is not None else []
    return all(part is not None and part.is_plain for part in (lstm, *sources, *words))


def forward(tokens: TokenEncoder, lstm: nn.Module, ids: torch.Tensor | None, words: torch.Tensor | None,
            carried: bool, initial_state: State | None) -> BiLmOutput:
    """The result of `BiLm.forward` for `boundaries="add"`; arguments as in `BiLm.forward` and `Stateful.begin`.

    The token embedder is called with ids [B, T, C], the embedding of cached words with numbers [B, T], and the LSTM
    with vectors [B, T + 2, P] and a mask int64 [B, T + 2]; a hook may replace a result. An LSTM that is not ours starts
    where it wants.
    """
    for module in (tokens.source, lstm):
        if isinstance(module, (CharacterEncoder, ElmoLstm)):
            module.precision, module.backend = tokens.precision, tokens.backend
    vectors, mask = _token_layer(tokens, ids, words)
    layers = _call(lstm, vectors, mask, carried, initial_state)
    token_layer = torch.cat([vectors, vectors], dim=-1) * mask[..., None]
    return BiLmOutput([token_layer, *layers.unbind(0)], mask > 0)


def run(lstm: nn.Module, vectors: torch.Tensor, lengths: np.ndarray, carried: bool,
        initial_state: State | None) -> list[torch.Tensor]:
    """All layers of sentences laid end to end, [N, 2 P], token layer first, by a call of the LSTM as a module.

    `vectors` [N, P] are those of the tokens, `lengths` int [sentences] count them.
    """
    counts = torch.from_numpy(lengths).to(vectors.device)
    mask = torch.arange(int(lengths.max(initial=0)), device=vectors.device) < counts[:, None]
    padded = vectors.new_zeros(*mask.shape, vectors.shape[1])
    padded[mask] = vectors
    layers = _call(lstm, padded, mask.long(), carried, initial_state)
    return [torch.cat([vectors, vectors], dim=1), *(layer[mask] for layer in layers)]


def state_after(lstm: ElmoLstm, vectors: torch.Tensor, lengths: np.ndarray) -> State:
    """The state (h [L, 1, 2 P], c [L, 1, 2 D]) after sentences that follow each other from zeros; see `run`."""
    with lstm.exclusive(True):
        before, lstm._states = lstm._states, None
        try:
            for sentence in vectors.split(lengths.tolist()):
                lstm(sentence[None], sentence.new_ones(1, len(sentence), dtype=torch.int64), carried=True)
            return lstm._states
        finally:
            lstm._states = before


def _call(lstm: nn.Module, vectors: torch.Tensor, mask: torch.Tensor, carried: bool,
          initial_state: State | None) -> torch.Tensor:
    """The LSTM's result [layers, B, T, 2 P] for vectors [B, T, P] and a mask int64 [B, T]."""
    arguments = {}
    if isinstance(lstm, ElmoLstm) and initial_state is not None:
        arguments["initial_state"] = initial_state
    if isinstance(lstm, ElmoLstm) and carried != (lstm.stateful and initial_state is None):
        arguments["carried"] = carried
    return lstm(vectors, mask, **arguments)


def _token_layer(tokens: TokenEncoder, ids: torch.Tensor | None,
                 words: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
    """Vectors [B, T + 2, P] and mask int64 [B, T + 2]."""
    if words is not None:
        # AllenNLP's documentation passes the numbers twice.
        ids = None if ids is not None and ids.shape == words.shape else ids
        check_numbers(words, ids)
    source, cache = tokens.source, None if words is None else tokens.cache
    reads = source is not None and not hasattr(source, "embedding")
    beyond = None if cache is None else words.to(cache.weight.device) > cache.largest
    if cache is not None and (not beyond.any() or (reads and ids is not None)):
        words = words.to(beyond.device)
        embedded = cache(words.clamp(max=cache.largest))
        if beyond.any():
            embedded = torch.where(beyond[..., None], source(ids)["token_embedding"][:, 1:-1], embedded)
        vectors, mask = add_boundaries(embedded, words > 0, *cache.boundaries)
        return vectors, mask.long()
    if words is None and tokens.table is None and reads:
        result = source(ids)
        return result["token_embedding"], result["mask"]
    unique, index, mask = tokens.batch(ids, "add") if words is None else tokens.numbered_batch(words, ids)
    padded = unique.new_zeros(*mask.shape, unique.shape[1])
    padded[mask.to(padded.device)] = unique[index.to(padded.device)]
    return padded, mask.long().to(padded.device)
