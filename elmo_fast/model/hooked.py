"""A biLM run by calls of its inner modules, with AllenNLP's arguments and results, for the hooks on them."""

from collections.abc import Iterator

import torch
from torch import nn
from torch.nn.modules import module as torch_module

from elmo_fast.model.layers.batch_layout import BiLmOutput, add_boundaries
from elmo_fast.model.layers.encoder import CharacterEncoder
from elmo_fast.model.layers.lstm import LstmStack
from elmo_fast.model.lookup import TokenEncoder, check_numbers
from elmo_fast.ops.projected_lstm.reference import State

_KINDS = "_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks"


def is_hooked(*modules: nn.Module | None) -> bool:
    """Whether a hook is registered on one of the modules, on a submodule, or for every module of the process.

    A `forward` that was set on a module counts too.
    """
    hooked = ("forward" in vars(part) or any(getattr(part, kind) for kind in _KINDS) for part in _parts(modules))
    return any(hooked) or any(getattr(torch_module, f"_global{kind}") for kind in _KINDS)


def _parts(modules: tuple[nn.Module | None, ...]) -> Iterator[nn.Module]:
    for module in modules:
        for part in () if module is None else module.modules():
            yield part
            yield from getattr(part, "unregistered_parts", ())


def forward(tokens: TokenEncoder, lstm: LstmStack, ids: torch.Tensor | None, words: torch.Tensor | None,
            carried: bool, initial_state: State | None) -> BiLmOutput:
    """The result of `BiLm.forward` for `boundaries="add"`; arguments as in `BiLm.forward` and `LstmStack.begin`.

    The token embedder is called with ids [B, T, C], the embedding of cached words with numbers [B, T], and the LSTM
    with vectors [B, T + 2, P] and a mask int64 [B, T + 2]; a hook may replace a result.
    """
    for module in (tokens.source, lstm):
        if module is not None:
            module.precision, module.backend = tokens.precision, tokens.backend
    vectors, mask = _token_layer(tokens, ids, words)
    arguments = {} if initial_state is None else {"initial_state": initial_state}
    if carried != (lstm.stateful and initial_state is None):
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
    reads, cache = isinstance(tokens.source, CharacterEncoder), None if words is None else tokens.cache
    beyond = None if cache is None else words.to(cache.weight.device) > cache.largest
    if cache is not None and (not beyond.any() or (reads and ids is not None)):
        words = words.to(beyond.device)
        embedded = cache(words.clamp(max=cache.largest))
        if beyond.any():
            embedded = torch.where(beyond[..., None], tokens.source(ids)["token_embedding"][:, 1:-1], embedded)
        vectors, mask = add_boundaries(embedded, words > 0, *cache.boundaries)
        return vectors, mask.long()
    if words is None and tokens.table is None and reads:
        result = tokens.source(ids)
        return result["token_embedding"], result["mask"]
    unique, index, mask = tokens.batch(ids, "add") if words is None else tokens.numbered_batch(words, ids)
    padded = unique.new_zeros(*mask.shape, unique.shape[1])
    padded[mask.to(padded.device)] = unique[index.to(padded.device)]
    return padded, mask.long().to(padded.device)
