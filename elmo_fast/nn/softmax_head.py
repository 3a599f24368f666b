"""The softmax over words of a language model: log-probabilities of a text's tokens, and likely substitutes for them.

The forward direction predicts a word from the words before it, the backward direction from the words after it
(Peters et al. 2018, section 3.1); neither reads the word itself.
"""

import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import NamedTuple

import numpy as np
import torch

from elmo_fast.arguments import DIRECTIONS, check_choice, check_count, shown
from elmo_fast.errors import ConfigurationError
from elmo_fast.files.hdf5 import dataset_of, open_hdf5
from elmo_fast.nn.bilm import BiLm
from elmo_fast.ops.linear import linear
from elmo_fast.text.batching import check_batch
from elmo_fast.text.vocabulary import SPECIAL_WORDS, Vocabulary
from elmo_fast.weights.datasets import read_values

SOFTMAX = ("softmax/W", "softmax/b")
_AT_ONCE = 1 << 24  # scores in memory at a time


def read_softmax(path: str | os.PathLike, projection_dim: int, allow_nonfinite: bool = False) -> dict[str, np.ndarray]:
    """`softmax/W` [V, P] and `softmax/b` [V] of an HDF5 file, float32.

    `ConfigurationError` for other shapes, and for NaN and infinities unless `allow_nonfinite`.
    """
    where = f"softmax {os.fspath(path)}"
    with open_hdf5(path, "softmax") as file:
        w, b = (dataset_of(file, name, where) for name in SOFTMAX)
        if w.ndim != 2 or w.shape[1] != projection_dim or b.shape != w.shape[:1]:
            raise ConfigurationError(f"{where}: expected W [words, {projection_dim}] and b [words], got {w.shape} and "
                                     f"{b.shape}")
        return {name: read_values(dataset, f"{where}: {name}", allow_nonfinite)
                for name, dataset in zip(SOFTMAX, (w, b))}


@dataclass(frozen=True)
class SentenceScore:
    """Natural logs of the probabilities of a sentence's n tokens in both directions, float32 [n].

    `end` is the log-probability of `</S>` after the last token, `begin` that of `<S>` before the first token in the
    backward direction. A word outside the vocabulary counts as `<UNK>`.
    """

    forward: np.ndarray
    backward: np.ndarray
    end: float
    begin: float

    @property
    def forward_total(self) -> float:
        """Log-probability of the sentence read forward, its end included."""
        return float(self.forward.sum(dtype=np.float64)) + self.end

    @property
    def backward_total(self) -> float:
        """Log-probability of the sentence read backward, its beginning included."""
        return float(self.backward.sum(dtype=np.float64)) + self.begin


class Substitute(NamedTuple):
    """A word and the natural log of its probability among all words but `<S>`, `</S>` and `<UNK>`."""

    word: str
    log_probability: float
    id: int


class SoftmaxHead:
    """Scores of a biLM's words; `w` [V, P] and `b` [V] in the order of `vocabulary`.

    States follow the model's `state`; with `zero` and `warm` a sentence's scores depend only on the sentence.
    """

    def __init__(self, bilm: BiLm, w: np.ndarray, b: np.ndarray, vocabulary: Vocabulary):
        if vocabulary.size != len(w):
            raise ConfigurationError(f"vocabulary {vocabulary.filename}: expected the {len(w)} words of the softmax, "
                                     f"got {vocabulary.size}")
        vocabulary.require(*SPECIAL_WORDS)
        self.bilm, self.vocabulary = bilm, vocabulary
        device = next(bilm.parameters()).device
        self._w = torch.from_numpy(np.ascontiguousarray(w.T)).to(device)  # [P, V]
        self._b = torch.from_numpy(b).to(device)
        self._marks = torch.tensor([vocabulary.word_to_id(word) for word in SPECIAL_WORDS], device=device)

    @classmethod
    def from_files(cls, bilm: BiLm, softmax_file: str | os.PathLike, vocab_file: str | os.PathLike,
                   allow_nonfinite: bool = False) -> "SoftmaxHead":
        """The softmax of a file that `elmo-fast export --softmax` wrote, and its vocabulary."""
        softmax = read_softmax(softmax_file, bilm.options.lstm.projection_dim, allow_nonfinite)
        return cls(bilm, *softmax.values(), Vocabulary(vocab_file))

    def score(self, sentences: Sequence[Sequence[str]]) -> list[SentenceScore]:
        """Scores of each tokenized sentence of one batch."""
        sentences = check_batch(sentences, "sentences")
        if not sentences:
            return []
        states, lengths = self._states(sentences)
        bounded = [self.vocabulary.encode(list(sentence), split=False) for sentence in sentences]  # with <S> and </S>
        wanted = (np.concatenate([np.append(ids[1:], 0) for ids in bounded]),
                  np.concatenate([np.append(0, ids[:-1]) for ids in bounded]))
        ends = np.cumsum(lengths)[:-1]
        scores = (np.split(self._log_probabilities(*pair), ends) for pair in zip(states, wanted))
        return [SentenceScore(forward[:-2].copy(), backward[2:].copy(), float(forward[-2]), float(backward[1]))
                for forward, backward in zip(*scores)]

    def substitutes(self, sentence: Sequence[str], position: int, k: int = 10,
                    direction: str = "both") -> list[Substitute]:
        """The `k` likeliest words in place of token `position`, likeliest first, without `<S>`, `</S>` and `<UNK>`.

        `both` multiplies the probabilities of the two directions, which do not see the token itself.
        """
        return self.substitutes_at(sentence, [position], k, direction)[0]

    def substitutes_at(self, sentence: Sequence[str], positions: Sequence[int], k: int = 10,
                       direction: str = "both") -> list[list[Substitute]]:
        """As `substitutes`, for several tokens of a sentence; the model runs once."""
        check_batch([sentence], "sentence")
        if not isinstance(positions, Collection) or not getattr(positions, "ndim", 1):
            raise ValueError(f"positions: expected a list of integers, got {type(positions).__name__}")
        for position in positions:
            if isinstance(position, bool) or not isinstance(position, Integral) or not 0 <= position < len(sentence):
                raise ValueError(f"positions: expected 0 to {len(sentence) - 1}, got {shown(position)}")
        check_choice("direction", direction, DIRECTIONS)
        k = min(check_count("k", k), self.vocabulary.size - len(SPECIAL_WORDS))
        if not len(positions):
            return []
        (forward, backward), _ = self._states([sentence])
        before = torch.tensor(list(positions), device=self._w.device)  # the token itself is at position + 1, after <S>
        predictions = {"forward": forward[before], "backward": backward[before + 2]}  # [positions, P]
        chosen = list(predictions.values()) if direction == "both" else [predictions[direction]]
        substitutes = []
        for block in zip(*(states.split(self._rows_at_once) for states in chosen)):
            scores = sum(self._scores(states).log_softmax(1) for states in block)  # [rows, V]
            scores[:, self._marks] = -torch.inf
            best = scores.log_softmax(1).topk(k, dim=1)
            substitutes += [
                [Substitute(self.vocabulary.id_to_word(word), value, word) for value, word in zip(values, ids)]
                for values, ids in zip(best.values.tolist(), best.indices.tolist())]
        return substitutes

    def logits(self, sentence: Sequence[str]) -> tuple[torch.Tensor, torch.Tensor]:
        """Unnormalized scores of every word in place of each token: forward and backward, both [n, V]."""
        check_batch([sentence], "sentence")
        (forward, backward), _ = self._states([sentence])
        return self._scores(forward[:-2]), self._scores(backward[2:])

    @property
    def _rows_at_once(self) -> int:
        return max(1, _AT_ONCE // self.vocabulary.size)

    @torch.no_grad()
    def _states(self, sentences: Sequence[Sequence[str]]) -> tuple[tuple[torch.Tensor, ...], np.ndarray]:
        """Top-layer outputs of both directions [N, P] of sentences with boundaries, end to end, and their lengths."""
        layers, lengths = self.bilm.embed_tokens(sentences)
        return layers[-1].float().chunk(2, dim=1), lengths

    @torch.no_grad()
    def _scores(self, states: torch.Tensor) -> torch.Tensor:
        """[N, P] -> [N, V]."""
        return linear(states.contiguous(), self._w, self._b, backend=self.bilm.backend)

    def _log_probabilities(self, states: torch.Tensor, wanted: np.ndarray) -> np.ndarray:
        """Log-probability of word `wanted[n]` in state n: float32 [N]."""
        ids = torch.from_numpy(wanted.astype(np.int64)).to(states.device)
        logs = []
        for block, targets in zip(*(values.split(self._rows_at_once) for values in (states, ids))):
            scores = self._scores(block)
            logs.append(scores.gather(1, targets[:, None]).squeeze(1) - scores.logsumexp(1))
        return torch.cat(logs).cpu().numpy()
