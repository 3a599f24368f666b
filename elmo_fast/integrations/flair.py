"""`ElmoEmbeddings`: ELMo token embeddings in flair. Import this module before loading a model saved with them."""

import dataclasses
from typing import Any

import numpy as np

from elmo_fast.arguments import DEFAULT_BATCH_SIZE, FreeState, Layers, gathered
from elmo_fast.embed.api import LoadedElmo
from elmo_fast.environment import extra
from elmo_fast.integrations import check_arguments, token_vectors, width
from elmo_fast.nn.bilm import BiLm
from elmo_fast.weights.datasets import expected_shapes
from elmo_fast.weights.opening import ModelOptions
from elmo_fast.weights.options import Options
from elmo_fast.weights.sources import DEFAULT_MODEL

with extra("flair"):
    import flair
    import torch
    from flair.data import Sentence
    from flair.embeddings.base import TokenEmbeddings, register_embeddings


@register_embeddings
class ElmoEmbeddings(TokenEmbeddings):
    """A vector for every token of a sentence: float32 [2 P], or [layers * 2 P] with `layers="all"`.

    `model` may also be a `BiLm`. `layers`, `state` (`zero` or `warm`) and `batch_size` are the arguments of
    `LoadedElmo.embed`, further `options` are fields of `ModelOptions`. The weights are frozen and part of the
    `state_dict`.
    """

    def __init__(self, model: str | BiLm = DEFAULT_MODEL, *, layers: Layers = "average", state: FreeState = "warm",
                 batch_size: int = DEFAULT_BATCH_SIZE, name: str | None = None, **options):
        super().__init__()
        self._settings = {"layers": layers, "state": state, "batch_size": batch_size}
        opening = gathered(ModelOptions, options)
        self.bilm = model if isinstance(model, BiLm) else BiLm.from_model(model, opening)
        check_arguments(LoadedElmo(self.bilm), **self._settings)
        self.name = name or f"elmo-{self.bilm.fingerprint()[:8]}-{layers}-{state}"
        self.static_embeddings = True
        self.to(flair.device)

    @property
    def embedding_length(self) -> int:
        """The number of values per token."""
        return width(LoadedElmo(self.bilm), self._settings["layers"])

    def _add_embeddings_internal(self, sentences: list[Sentence]) -> list[Sentence]:
        texts = [[token.text for token in sentence] for sentence in sentences]
        for sentence, vectors in zip(sentences, token_vectors(LoadedElmo(self.bilm), texts, **self._settings)):
            for token, vector in zip(sentence, torch.from_numpy(vectors).to(flair.device)):
                token.set_embedding(self.name, vector)
        return sentences

    def to_params(self) -> dict[str, Any]:
        """Return the arguments of `from_params`: everything except the weights."""
        options = self.bilm.options
        return {"options": options.to_dict(), "vocabulary": options.vocabulary, "held": list(self.bilm.weights()),
                "how": {"precision": self.bilm.precision, "backend": self.bilm.backend}, "name": self.name,
                **self._settings}

    @classmethod
    def from_params(cls, params: dict[str, Any]) -> "ElmoEmbeddings":
        """Create embeddings with zero weights; `load_state_dict` sets them afterwards."""
        options, how = params.pop("options"), params.pop("how")
        held = params.pop("held")
        options = dataclasses.replace(Options.from_dict(options), vocabulary=params.pop("vocabulary", None))
        shapes = expected_shapes(options, held)
        weights = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
        return cls(BiLm(options, weights, **how), **params)

    def extra_repr(self) -> str:
        return f"name={self.name}"
