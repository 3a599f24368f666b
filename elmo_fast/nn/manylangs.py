"""The modules of models of ELMoForManyLangs (see `weights.families.manylangs`)."""

from collections.abc import Mapping

import numpy as np

from elmo_fast.nn.bilm import BiLm
from elmo_fast.nn.layers.encoder import CharacterEncoder
from elmo_fast.weights.families import manylangs
from elmo_fast.weights.opening import ModelOptions
from elmo_fast.weights.sources import ModelFiles


class ManyLangsEncoder(CharacterEncoder):
    """Ids [N, C], or with a word lexicon [N, C + 1], to token vectors [N, P].

    The projection reads the word's vector beside the output of the char-CNN.
    """

    boundaries = manylangs.BOUNDARIES

    def _build(self, options: manylangs.ManyLangsOptions, weights: Mapping[str, np.ndarray], *arguments,
               **named) -> None:
        super()._build(options, weights, *arguments, **named)
        if options.words is not None:
            self.row_shape = (self.row_shape[0] + 1,)
            self.largest = max(self.largest, len(weights[manylangs.WORDS]))


class ManyLangsBiLm(BiLm):
    """A `BiLm` of a model of ELMoForManyLangs, for texts as lists of tokens: its `forward` takes ids on the CPU."""

    _encoder = ManyLangsEncoder

    @classmethod
    def _read(cls, files: ModelFiles, opening: ModelOptions) -> "ManyLangsBiLm":
        return cls(*manylangs.read(files, opening.allow_nonfinite), opening)

    def _check(self, weights: Mapping[str, np.ndarray]) -> None:
        """Does nothing: `read` has checked the weights, whose shapes also depend on the lexicons."""
