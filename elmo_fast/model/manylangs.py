"""The modules of models of ELMoForManyLangs (see `weights.families.manylangs`)."""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import torch

from elmo_fast.model.bilm import BiLm
from elmo_fast.model.layers.encoder import CharacterEncoder, padded_ids
from elmo_fast.model.layers.state_dict import Conversion
from elmo_fast.ops.char_cnn import char_cnn
from elmo_fast.ops.linear import highway, linear
from elmo_fast.ops.numerics import full_precision
from elmo_fast.ops.weight_snapshot import Tensors
from elmo_fast.weights.families import MANYLANGS, manylangs
from elmo_fast.weights.opening import ModelOptions
from elmo_fast.weights.sources import ModelFiles


class ManyLangsEncoder(CharacterEncoder):
    """Ids [N, C], or with a word lexicon [N, C + 1], to token vectors [N, P].

    The projection reads the word's vector beside the output of the char-CNN.
    """

    boundaries = manylangs.BOUNDARIES

    def __init__(self, options: manylangs.ManyLangsOptions, weights: Mapping[str, np.ndarray],
                 requires_grad: bool = False):
        super().__init__(options, weights, requires_grad)
        self.words, self.characters = options.words, options.characters
        self.largest = len(weights[manylangs.CHARACTERS])
        if self.words is not None:
            self.row_shape = (self.row_shape[0] + 1,)
            self.largest = max(self.largest, len(weights[manylangs.WORDS]))

    def batch_ids(self, batch: Sequence[Sequence[str]]) -> torch.Tensor:
        return padded_ids(self, batch)

    def encode_rows(self, ids: torch.Tensor, backend: str = "auto") -> torch.Tensor:
        weights, options = dict(self.named_parameters()), self.options
        filters = [(weights[f"W_cnn_{i}"], weights[f"b_cnn_{i}"]) for i in range(len(options.filters))]
        characters = ids[:, : options.max_characters_per_token]
        x = char_cnn(characters, weights["char_embed"], filters, options.activation, backend=backend)  # [N, filters]
        for k in range(options.n_highway):
            x = highway(x, *(weights[f"{name}_{k}"] for name in ("W_carry", "b_carry", "W_transform", "b_transform")),
                        backend=backend)
        if self.words is not None:
            x = torch.cat([full_precision(weights["word_embed"])[ids[:, -1] - 1], full_precision(x)], dim=1)
        return linear(x, weights["W_proj"], weights["b_proj"], backend=backend)

    def layers(self) -> list[Tensors]:
        return [*super().layers(), *([] if self.words is None else [[self.word_embed]])]

    def conversions(self) -> Iterator[Conversion]:
        yield from super().conversions()
        if self.words is not None:
            yield Conversion(["word_embed"], ["word_embed"])


class ManyLangsBiLm(BiLm):
    """A `BiLm` of a model of ELMoForManyLangs, for texts as lists of tokens: its `forward` takes ids on the CPU."""

    family = MANYLANGS

    @classmethod
    def _read(cls, files: ModelFiles, opening: ModelOptions) -> "ManyLangsBiLm":
        return cls(*manylangs.read(files), opening)

    def _check(self, weights: Mapping[str, np.ndarray]) -> None:
        """Does nothing: `read` has checked the weights, whose shapes also depend on the lexicons."""

    def _make_token_source(self, weights: Mapping[str, np.ndarray], requires_grad: bool) -> ManyLangsEncoder:
        return ManyLangsEncoder(self.options, weights, requires_grad)
