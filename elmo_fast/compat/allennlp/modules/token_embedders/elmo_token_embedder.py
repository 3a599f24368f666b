"""`allennlp.modules.token_embedders.elmo_token_embedder`: an ELMo representation with an optional projection."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from elmo_fast.arguments import shown
from elmo_fast.compat.allennlp import registry
from elmo_fast.compat.allennlp.common.checks import raises_either
from elmo_fast.compat.allennlp.modules.elmo import Elmo
from elmo_fast.compat.elmo_embedder import DEFAULT_OPTIONS_FILE, DEFAULT_WEIGHT_FILE
from elmo_fast.errors import ConfigurationError
from elmo_fast.nn.outside_graphs import outside_graphs

_TokenEmbedder = registry.base_class("allennlp.modules.token_embedders.token_embedder", "TokenEmbedder", nn.Module)


class ElmoTokenEmbedder(_TokenEmbedder):
    """`Elmo` with one representation, followed by a linear layer to `projection_dim` if that is given.

    Names and results are those of AllenNLP 0.9 and later; more `arguments` are those of `Elmo`.
    """

    @raises_either
    def __init__(self, options_file: str | os.PathLike = DEFAULT_OPTIONS_FILE,
                 weight_file: str | os.PathLike = DEFAULT_WEIGHT_FILE, do_layer_norm: bool = False,
                 dropout: float = 0.5, requires_grad: bool = False, projection_dim: int | None = None,
                 vocab_to_cache: Sequence[str] | None = None, scalar_mix_parameters: Sequence[float] | None = None,
                 **arguments):
        super().__init__()
        if projection_dim is not None and projection_dim < 0:
            raise ConfigurationError(f"projection_dim: expected an integer of at least 1, or None, "
                                     f"got {shown(projection_dim)}")
        self._elmo = Elmo(options_file, weight_file, 1, do_layer_norm=do_layer_norm, dropout=dropout,
                          requires_grad=requires_grad, vocab_to_cache=vocab_to_cache,
                          scalar_mix_parameters=scalar_mix_parameters, **arguments)
        self.output_dim = projection_dim or self._elmo.get_output_dim()
        self._projection = nn.Linear(self._elmo.get_output_dim(), projection_dim) if projection_dim else None

    def get_output_dim(self) -> int:
        """Return the size of a token's vector."""
        return self.output_dim

    @outside_graphs
    def forward(self, inputs: torch.Tensor | None = None, word_inputs: torch.Tensor | None = None, *,
                elmo_tokens: torch.Tensor | None = None) -> torch.Tensor:
        """Embed ids as in `Elmo`: int [B, ..., T, C] -> [B, ..., T, output_dim]. AllenNLP 1.0 passes `elmo_tokens`."""
        ids = elmo_tokens if inputs is None else inputs
        representation = self._elmo(ids, word_inputs)["elmo_representations"][0]
        return representation if self._projection is None else self._projection(representation)

    @classmethod
    @raises_either
    def from_params(cls, vocab: Any = None, params: Mapping[str, Any] | None = None,
                    **extras: Any) -> "ElmoTokenEmbedder":
        """Like `Elmo.from_params`; `namespace_to_cache` names the namespace of `vocab` whose words are cached."""
        arguments = registry.pop_arguments(params, cls.__name__, {
            **registry.elmo_arguments(params), "projection_dim": int, "namespace_to_cache": str})
        namespace = arguments.pop("namespace_to_cache", None)
        if namespace is not None:
            arguments["vocab_to_cache"] = list(vocab.get_token_to_index_vocabulary(namespace))
        return cls(**arguments)


registry.register(_TokenEmbedder, "elmo_token_embedder", ElmoTokenEmbedder)
