"""Ids of tokens to their vectors by the ops, with gradients, from weights by bilm-tf's names."""

from collections.abc import Mapping

import torch

from elmo_fast.engine.precision import operands_of
from elmo_fast.ops.char_cnn import char_cnn
from elmo_fast.ops.char_cnn.cuda import fits_fp16
from elmo_fast.ops.linear import highway, linear
from elmo_fast.ops.numerics import active_precision, full_precision
from elmo_fast.weights.options import Options

HIGHWAY = "W_carry", "b_carry", "W_transform", "b_transform"  # of a layer, in the order that the op takes them


def token_vectors(ids: torch.Tensor, weights: Mapping[str, torch.Tensor], options: Options,
                  backend: str = "auto") -> torch.Tensor:
    """Ids of tokens int [N, ...] -> vectors [N, P], by the ops, with gradients; `weights` by dataset name."""
    cnn = options.char_cnn
    if cnn is None:
        return word_vectors(ids, weights["embedding"])
    filters = [(weights[f"CNN/W_cnn_{k}"], weights[f"CNN/b_cnn_{k}"]) for k in range(len(cnn.filters))]
    highways = [[weights[f"CNN_high_{k}/{name}"] for name in HIGHWAY] for k in range(cnn.n_highway)]
    projection = None
    if "CNN_proj/W_proj" in weights:
        projection = weights["CNN_proj/W_proj"], weights["CNN_proj/b_proj"]
    table, words = (next((value for name, value in weights.items() if name.endswith(leaf)), None)
                    for leaf in ("char_embed", "word_embed"))
    bounded = (operands_of(active_precision(), True) == "fp16" and ids.device.type == "cuda" and words is None
               and fits_fp16(table, filters, cnn.activation, highways, projection))
    choice = {"backend": backend, "bounded": bounded}
    letters = ids if words is None else ids[:, : cnn.max_characters_per_token]
    x = char_cnn(letters, table, filters, cnn.activation, **choice)
    for layer in highways:
        x = highway(x, *layer, **choice)  # [N, filters]
    x = with_words(ids, x, words)
    return full_precision(x) if projection is None else linear(x, *projection, **choice)


def with_words(ids: torch.Tensor, x: torch.Tensor, words: torch.Tensor | None) -> torch.Tensor:
    """[N, F] with the vectors of whole words in front, whose rows + 1 are the last column of the ids."""
    if words is None:
        return x
    return torch.cat([full_precision(words)[ids[:, -1].to(words.device) - 1], full_precision(x)], dim=1)


def word_vectors(ids: torch.Tensor, embedding: torch.Tensor) -> torch.Tensor:
    """Ids of words, 0 for no token, int [...] -> [..., P]."""
    return full_precision(embedding)[(ids - 1).clamp(min=0)] * (ids > 0)[..., None]
