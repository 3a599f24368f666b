"""A biLM run by calls of its parts, with AllenNLP's arguments and results: where parts have hooks or were replaced."""

import torch
from torch import nn

from elmo_fast.nn.layers.batch_layout import BiLmOutput, add_boundaries
from elmo_fast.nn.layers.encoder import CharacterEncoder
from elmo_fast.nn.layers.lstm import ElmoLstm
from elmo_fast.nn.lookup import TokenEncoder, check_numbers
from elmo_fast.ops.projected_lstm.reference import State


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
    arguments = {}
    if isinstance(lstm, ElmoLstm) and initial_state is not None:
        arguments["initial_state"] = initial_state
    if isinstance(lstm, ElmoLstm) and carried != (lstm.stateful and initial_state is None):
        arguments["carried"] = carried
    layers = lstm(vectors, mask, **arguments)  # [layers, B, T + 2, 2 P]
    token_layer = torch.cat([vectors, vectors], dim=-1) * mask[..., None]
    return BiLmOutput([token_layer, *layers.unbind(0)], mask > 0)


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
