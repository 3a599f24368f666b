"""Integrations with other libraries, one module per library: docs/integrations.md. This module imports none of them."""

from collections.abc import Iterable, Sequence

import numpy as np

from elmo_fast.arguments import FREE_STATES, Layers, check_choice
from elmo_fast.embed.api import LoadedElmo, Text, tokens_of
from elmo_fast.text.tokenizers import Tokenizer, find_tokenizer


def check_arguments(elmo: LoadedElmo, layers: Layers, state: str, batch_size: int, pool: str | None = None) -> None:
    """Raise `ValueError`, naming the argument, unless all arguments are valid for `LoadedElmo.embed` of the model."""
    elmo.embed([], layers, check_choice("state", state, FREE_STATES), pool, batch_size)


def token_vectors(elmo: LoadedElmo, texts: Sequence[Text], layers: Layers, state: str,
                  batch_size: int) -> list[np.ndarray]:
    """`LoadedElmo.embed` with the layers of `all` concatenated: float32 [tokens, width] per text."""
    arrays = elmo.embed(texts, layers, state, batch_size=batch_size)
    size = width(elmo, layers)
    return [vectors.swapaxes(0, -2).reshape(vectors.shape[-2], size) for vectors in arrays]


def pooled_vectors(elmo: LoadedElmo, texts: Sequence[Sequence[str]], layers: Layers, state: str, batch_size: int,
                   pool: str) -> np.ndarray:
    """Pooled vectors of tokenized texts: float32 [texts, width], zeros for a text without tokens."""
    result = np.zeros((len(texts), width(elmo, layers)), np.float32)
    nonempty = [number for number, tokens in enumerate(texts) if len(tokens)]
    vectors = elmo.embed([texts[number] for number in nonempty], layers, state, pool, batch_size)
    for number, vector in zip(nonempty, vectors):
        result[number] = vector.ravel()
    return result


def tokenized(texts: Iterable[Text], name: str, tokenizer: str | Tokenizer) -> list:
    """Split texts into tokens. `ValueError`, with `name` and the index, for a text that is neither string nor list."""
    split = find_tokenizer(tokenizer)
    return [tokens_of(text, f"{name}[{number}]", split) for number, text in enumerate(texts)]


def width(elmo: LoadedElmo, layers: Layers) -> int:
    """The number of values per token: 2 P, times the number of layers with `all`."""
    return elmo.dim * (elmo.num_layers if isinstance(layers, str) and layers == "all" else 1)
