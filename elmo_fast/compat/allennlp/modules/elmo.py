"""`allennlp.modules.elmo`: `Elmo`, its biLM and its char encoder, with AllenNLP's arguments and results."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from elmo_fast.arguments import gathered
from elmo_fast.compat.allennlp import registry
from elmo_fast.compat.allennlp.common.checks import ConfigurationError, raises_either
from elmo_fast.compat.allennlp.data.token_indexers.elmo_indexer import ELMoCharacterMapper, ELMoTokenCharactersIndexer
from elmo_fast.compat.allennlp.modules.elmo_lstm import ElmoLstm
from elmo_fast.compat.allennlp.modules.highway import Highway
from elmo_fast.compat.allennlp.nn.util import add_sentence_boundary_token_ids, remove_sentence_boundaries
from elmo_fast.nn import elmo
from elmo_fast.nn.batching import batch_to_ids
from elmo_fast.nn.bilm import BiLm
from elmo_fast.nn.layers.encoder import CharacterEncoder
from elmo_fast.nn.layers.scalar_mix import ScalarMix
from elmo_fast.nn.lookup import TokenEncoder, WordCache
from elmo_fast.nn.outside_graphs import outside_graphs
from elmo_fast.weights.datasets import read_model
from elmo_fast.weights.opening import ModelOptions
from elmo_fast.weights.options import Options
from elmo_fast.weights.sources import ModelFiles, find_model

__all__ = ["ConfigurationError", "ELMoCharacterMapper", "ELMoTokenCharactersIndexer", "Elmo", "ElmoLstm", "Highway",
           "ScalarMix", "_ElmoBiLm", "_ElmoCharacterEncoder", "add_sentence_boundary_token_ids", "batch_to_ids",
           "remove_sentence_boundaries"]


class _ElmoCharacterEncoder(CharacterEncoder):
    """Computes token vectors without context; files are paths or URLs. From AllenNLP's `_ElmoCharacterEncoder`."""

    # Character ids of `<S>` and `</S>`, int64 [C].
    _beginning_of_sentence_characters = property(lambda self: self.boundary_ids()[0])
    _end_of_sentence_characters = property(lambda self: self.boundary_ids()[1])

    @raises_either
    def __init__(self, options_file: str | os.PathLike, weight_file: str | os.PathLike, requires_grad: bool = False, *,
                 precision: str = "highest", backend: str = "auto", allow_nonfinite: bool = False):
        options, weights = _read_files(options_file, weight_file, allow_nonfinite)
        if options.char_cnn is None:
            raise ConfigurationError("options_file: expected a model with the section char_cnn, "
                                     "got one that reads word ids")
        self._build(options, weights, requires_grad, precision, backend)
        self._weight_file = weight_file

    @property
    def _options(self) -> dict[str, Any]:
        """The content of the options file."""
        return dict(self.model_options.raw)


class _ElmoBiLm(BiLm):
    """The biLM with AllenNLP's arguments and results. From AllenNLP's `_ElmoBiLm`.

    `word_inputs` are indices into `vocab_to_cache`, whose index 0 is padding. Other arguments are those of `BiLm`.
    """

    _encoder = _ElmoCharacterEncoder

    @raises_either
    def __init__(self, options_file: str | os.PathLike, weight_file: str | os.PathLike, requires_grad: bool = False,
                 vocab_to_cache: Sequence[str] | None = None, *, opening: ModelOptions | None = None, **arguments):
        opening = gathered(ModelOptions, {**arguments, "requires_grad": requires_grad}, opening)
        options, weights = _read_files(options_file, weight_file, opening.allow_nonfinite)
        super().__init__(options, weights, opening)
        self._requires_grad, self._token_embedder._weight_file = requires_grad, weight_file
        if vocab_to_cache:
            self.create_cached_cnn_embeddings(vocab_to_cache)

    @classmethod
    def _read(cls, files: ModelFiles, opening: ModelOptions) -> "_ElmoBiLm":
        return cls(files.options_file, files.weight_file, opening.requires_grad, opening=opening)

    @outside_graphs
    def forward(self, inputs: torch.Tensor, word_inputs: torch.Tensor | None = None, *,
                state: str | None = None) -> dict[str, Any]:
        """Compute the layers of sentences from character ids int [B, T, C], zero past the end, without boundaries.

        `word_inputs` int [B, T] are indices of cached words, ignored if no words are cached. Words with larger indices
        are encoded from their characters. Returns `activations`, a list of [B, T + 2, 2 P], token layer first, and
        `mask`, int64 [B, T + 2].
        """
        words = None if self._word_embedding is None else word_inputs
        output = super().forward(inputs, word_inputs=words, state=state)
        return {"activations": output.activations, "mask": output.mask.long()}

    def create_cached_cnn_embeddings(self, tokens: Sequence[str]) -> None:
        """Cache the vectors of `tokens` by AllenNLP's indices: index k is `tokens[k]`, and 0 is padding."""
        self._word_embedding = WordCache.of(TokenEncoder.of(self), tokens)


def _boundary_vector(k: int) -> property:
    """Make the property of the cached vector of `<S>` (k = 0) or `</S>` (k = 1), [P] or None."""
    def get(bilm: _ElmoBiLm) -> torch.Tensor | None:
        return None if bilm._word_embedding is None else bilm._word_embedding.boundaries[k]

    def set_(bilm: _ElmoBiLm, vector: torch.Tensor | None) -> None:
        if vector is not None:
            bilm._word_embedding.boundaries[k] = vector

    return property(get, set_)


_ElmoBiLm._bos_embedding, _ElmoBiLm._eos_embedding = _boundary_vector(0), _boundary_vector(1)


def _read_files(options_file: str | os.PathLike, weight_file: str | os.PathLike,
                allow_nonfinite: bool) -> tuple[Options, dict[str, np.ndarray]]:
    return read_model(find_model(options_file=options_file, weight_file=weight_file), allow_nonfinite)


class Elmo(elmo.Elmo):
    """`elmo_fast.Elmo` with an `_ElmoBiLm`. From AllenNLP's `Elmo`."""

    _bilm = _ElmoBiLm
    __init__ = raises_either(elmo.Elmo.__init__)

    @classmethod
    @raises_either
    def from_params(cls, params: Mapping[str, Any] | None = None, **extras: Any) -> "Elmo":
        """Construct from a section of an AllenNLP configuration (`Params`), or from a dict of arguments."""
        return cls(**registry.pop_arguments(params, cls.__name__, {
            **registry.elmo_arguments(params), "num_output_representations": int,
            "keep_sentence_boundaries": registry.boolean,
        }, required=(*registry.MODEL_FILES, "num_output_representations")))

    def _run(self, inputs: torch.Tensor | None, words: torch.Tensor | None) -> Any:
        if isinstance(self._elmo_lstm, _ElmoBiLm):  # whose hooks get both arguments
            return self._elmo_lstm(inputs, words)
        return super()._run(inputs, words)

    @property
    def _scalar_mixes(self) -> list[ScalarMix]:
        """`scalar_mix_0`, `scalar_mix_1`, ..."""
        return [getattr(self, f"scalar_mix_{k}") for k in range(self._mixes)]
