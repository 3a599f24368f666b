"""Sentences to padded ids: AllenNLP's `batch_to_ids`, bilm-tf's `Batcher` and `TokenBatcher`."""

import os
from collections.abc import Sequence

import numpy as np
import torch

from elmo_fast.nn.outside_graphs import outside_graphs
from elmo_fast.text import characters
from elmo_fast.text.batching import BOUNDARIES, at_least_one, padded
from elmo_fast.text.vocabulary import UNKNOWN_TOKEN, UnicodeCharsVocabulary, Vocabulary


@outside_graphs
def batch_to_ids(batch: Sequence[Sequence[str]],
                 max_characters_per_token: int = characters.MAX_CHARACTERS_PER_TOKEN) -> torch.Tensor:
    """Character ids of a batch of tokenized sentences: int64 [sentences, longest, max_characters_per_token].

    Ids are 1 to 261, rows past a sentence's end are 0, and no sentence boundaries are added. From AllenNLP's
    `batch_to_ids`. Raises `ValueError` for an empty batch, for a sentence that is a string, and for a token that is not
    a string.
    """
    return torch.from_numpy(padded(at_least_one(batch, "batch"), max_characters_per_token))


class Batcher:
    """Sentences to character ids with `<S>` and `</S>` around each, as bilm-tf's `Batcher` gives them."""

    def __init__(self, lm_vocab_file: str | os.PathLike, max_token_length: int):
        self._lm_vocab = UnicodeCharsVocabulary(lm_vocab_file, max_token_length)
        self._max_token_length = max_token_length

    @outside_graphs
    def batch_sentences(self, sentences: Sequence[Sequence[str]]) -> np.ndarray:
        """int64 [sentences, longest + 2, max_token_length]; ids 1 to 261, zero past a sentence's end."""
        bounded = [(BOUNDARIES[0], *sentence, BOUNDARIES[1]) for sentence in at_least_one(sentences)]
        return padded(bounded, self._max_token_length)


class TokenBatcher:
    """Sentences to word ids + 1 with `<S>` and `</S>` around each, as bilm-tf's `TokenBatcher` gives them.

    A vocabulary without `<S>` or `</S>` is refused, and so is a word outside a vocabulary that has no `<UNK>`:
    for both, bilm-tf writes id 0, which masks the position and silently shortens the sentence.
    """

    def __init__(self, lm_vocab_file: str | os.PathLike):
        self._lm_vocab = Vocabulary(lm_vocab_file)
        self._lm_vocab.require(*BOUNDARIES)

    @outside_graphs
    def batch_sentences(self, sentences: Sequence[Sequence[str]]) -> np.ndarray:
        """int64 [sentences, longest + 2]; ids 1 to size, zero past a sentence's end."""
        sentences = at_least_one(sentences)
        ids = np.zeros((len(sentences), max(map(len, sentences)) + 2), dtype=np.int64)
        for row, sentence in zip(ids, sentences):
            words = self._lm_vocab.encode(sentence, split=False)
            unknown = [] if self._lm_vocab.unk >= 0 else [word for word in sentence if word not in self._lm_vocab]
            if unknown:
                raise ValueError(f"sentences: expected words of the vocabulary, which has no {UNKNOWN_TOKEN} to "
                                 f"replace other words, got {unknown[0]!r}")
            row[: len(sentence) + 2] = words + 1
        return ids
