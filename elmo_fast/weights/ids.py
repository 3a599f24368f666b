"""Tokens to the ids that a model's encoder reads."""

from collections.abc import Sequence

import numpy as np

from elmo_fast.arguments import shown
from elmo_fast.errors import ConfigurationError
from elmo_fast.text import characters
from elmo_fast.text.batching import BOUNDARIES
from elmo_fast.text.vocabulary import UNKNOWN_TOKEN


class CharacterIds:
    """Character ids, int32 [N, C]."""

    boundaries = BOUNDARIES

    def __init__(self, max_characters_per_token: int):
        self._most = max_characters_per_token

    def __call__(self, tokens: Sequence[str]) -> np.ndarray:
        return characters.to_model_ids(characters.encode_tokens(tokens, self._most))


class WordIds:
    """Ids of words, their rows + 1, int32 [N]; words outside the vocabulary are `<UNK>`."""

    boundaries = BOUNDARIES

    def __init__(self, vocabulary: Sequence[str] | None):
        self._numbers = vocabulary and {word: number for number, word in enumerate(vocabulary, 1)}

    def __call__(self, tokens: Sequence[str]) -> np.ndarray:
        if self._numbers is None:
            raise ConfigurationError("tokens: expected word ids (this model reads no characters), got strings; a "
                                     "vocabulary beside its weights (vocab.txt), a word a line, numbers them")
        unknown = self._numbers.get(UNKNOWN_TOKEN)
        for token in tokens:
            if not isinstance(token, str):
                raise ValueError(f"token: expected a string, got {type(token).__name__} ({shown(token)})")
            if unknown is None and token not in self._numbers:
                raise ValueError(f"token: expected a word of the model's vocabulary, which has no {UNKNOWN_TOKEN} to "
                                 f"stand for another, got {shown(token)}")
        return np.array([self._numbers.get(token, unknown) for token in tokens], np.int32)
