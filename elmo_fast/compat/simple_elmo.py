"""`ElmoModel` with the calls of simple_elmo, written from its documentation (github.com/ltgoslo/simple_elmo)."""

import collections
import os
import threading
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from elmo_fast.arguments import LAYERS, check_choice, check_count, check_path, shown
from elmo_fast.embed.embedder import ElmoEmbedder
from elmo_fast.embed.stream import SlotStream
from elmo_fast.errors import ConfigurationError
from elmo_fast.model.families import SOFTMAX_FILE
from elmo_fast.model.softmax_head import SoftmaxHead
from elmo_fast.model.sources import ModelFiles, find_model
from elmo_fast.ops.projected_lstm.reference import State
from elmo_fast.text.batching import BOUNDARIES, check_batch
from elmo_fast.text.vocabulary import Vocabulary
from elmo_fast.vectors.spec import mix_layers


class ElmoModel:
    """Contextual vectors of tokenized sentences, as padded arrays. The arguments are those of `ElmoEmbedder`.

    As in simple_elmo, a call begins from zero states, `warmup` runs its first batch once more before all others, and
    its batches carry their states on. A call with a `session`, any object, begins where the last call with that
    session ended. With `state` `zero` or `warm` results depend on the sentence alone, and `warmup` and `session` do
    nothing. Threads may share a model; their calls run one after the other.
    """

    def __init__(self, *, state: str = "carry", precision: str = "highest", backend: str = "auto",
                 cuda_device: int = -1):
        self._arguments = {"state": state, "precision": precision, "backend": backend, "cuda_device": cuda_device}
        self._embedder: ElmoEmbedder | None = None
        self._head: SoftmaxHead | None = None
        self._sessions: dict[int, tuple[Any, State | None]] = {}  # by identity: the session, states after its last call
        self.batch_size: int = 0
        self.vocab: Vocabulary | None = None
        self._lock = threading.RLock()  # of the states that the model carries in a call

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_sessions": {}, "_lock": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _lock=threading.RLock())

    def load(self, directory: str | os.PathLike, max_batch_size: int = 32, limit: int = 100,
             full: bool = False, *, allow_nonfinite: bool = False) -> None:
        """Read a model from a directory or ZIP with `options.json` and `model.hdf5`, or else its first `*.hdf5`.

        `max_batch_size` sentences run at a time. `limit`, of words to prepare, is ignored: every unique word of a batch
        is encoded once anyway. `full=True` is for `get_elmo_substitutes`. NaN and infinities in the weights are refused
        unless `allow_nonfinite`.
        """
        check_count("max_batch_size", max_batch_size)
        folder = Path(check_path("directory", directory))
        weights = sorted(path for path in folder.glob("*.hdf5") if path.name != SOFTMAX_FILE) if folder.is_dir() else []
        if len(weights) < 2:
            files = find_model(directory)
        elif not (folder / "options.json").is_file():
            raise ConfigurationError(f"model {folder}: expected a file options.json, found none")
        else:
            named = folder / "model.hdf5"
            vocabulary = next(filter(Path.is_file, (folder / "vocab.txt", folder / "vocab.txt.gz")), None)
            files = ModelFiles(folder / "options.json", named if named in weights else weights[0], vocabulary)
        softmax = files.weight_file.parent / SOFTMAX_FILE
        if full and not (softmax.is_file() and files.vocab_file):
            raise FileNotFoundError(f"full: expected {SOFTMAX_FILE} and vocab.txt beside {files.weight_file.name}, as "
                                    f"`elmo-fast import-tf` and `export --softmax` write them; found none in "
                                    f"{directory}")
        self._embedder = ElmoEmbedder(files.options_file, files.weight_file, allow_nonfinite=allow_nonfinite,
                                      **self._arguments)
        bilm = self._embedder.elmo_bilm
        self._head = SoftmaxHead.from_files(bilm, softmax, files.vocab_file, allow_nonfinite) if full else None
        self.vocab = None if files.vocab_file is None else Vocabulary(files.vocab_file)
        self._sessions.clear()
        self.batch_size = max_batch_size

    @property
    def n_layers(self) -> int:
        """Layers of representations, the token layer included."""
        return self._loaded().elmo_bilm.num_layers

    @property
    def vector_size(self) -> int:
        """Values of one token in one layer."""
        return self._loaded().elmo_bilm.get_output_dim()

    def get_elmo_vectors(self, texts: Sequence[Sequence[str]], warmup: bool = True, layers: str = "average",
                         session=None) -> np.ndarray:
        """Vectors of tokenized sentences: float32 [sentences, T, 2 P], zero past a sentence's end, T the longest.

        `layers` is `average` (the mean of the layers), `top`, or `all`: [sentences, layers, T, 2 P].
        """
        arrays, texts, axes = self._run(texts, warmup, layers, session)
        padded = np.zeros((*axes, max(map(len, texts), default=0), self.vector_size), np.float32)
        for row, vectors in zip(padded, arrays, strict=True):
            row[..., : vectors.shape[-2], :] = vectors
        return padded

    def get_elmo_vector_average(self, texts: Sequence[Sequence[str]], warmup: bool = True, layers: str = "average",
                                session=None) -> np.ndarray:
        """The mean of each sentence's tokens, scaled to length 1, zeros of none: float32 [sentences, (layers,) 2 P]."""
        arrays, _, axes = self._run(texts, warmup, layers, session)
        averages = np.zeros((*axes, self.vector_size), np.float32)
        for row, vectors in zip(averages, arrays, strict=True):
            total = vectors.sum(axis=-2)
            norm = np.linalg.norm(total, axis=-1, keepdims=True)
            row[...] = np.divide(total, norm, out=np.zeros_like(total), where=norm > 0)
        return averages

    def get_elmo_substitutes(self, data: Sequence[str], topn: int = 3,
                             nodelimiters: bool = True) -> list[list[dict[str, Any]]]:
        """The `topn` likeliest words in place of each token of raw sentences, by the language model of each direction.

        A dictionary a token: `word`, and under `forward` and `backward` `candidates`, their ids, `candidate_words` and
        `logp`, their logits, the highest first. `nodelimiters` leaves out `<S>` and `</S>`. Sentences are split at
        whitespace; each begins from zero states, or where `state` says.
        """
        if self._head is None:
            raise RuntimeError("get_elmo_substitutes: expected load(..., full=True) to be called first")
        if (isinstance(data, (str, bytes)) or not isinstance(data, Collection) or not getattr(data, "ndim", 1)
                or not all(isinstance(text, str) for text in data)):
            raise ValueError(f"data: expected a list of sentences as strings, got {shown(data)}")
        check_count("topn", topn)
        substitutes = []
        for tokens in map(str.split, data):
            with self._lock:
                self._loaded().elmo_bilm.reset_states()
                logits = self._head.logits(tokens)
            best = [self._best(scores, topn, nodelimiters) for scores in logits]
            substitutes.append([{"word": word, "forward": forward, "backward": backward}
                                for word, forward, backward in zip(tokens, *best)])
        return substitutes

    def _best(self, scores: torch.Tensor, topn: int, nodelimiters: bool) -> list[dict[str, list]]:
        left_out = BOUNDARIES if nodelimiters else ()
        scores[:, [self.vocab.word_to_id(word) for word in left_out]] = -torch.inf
        values, ids = scores.topk(min(topn, self.vocab.size - len(left_out)), dim=1)
        return [{"candidates": row, "candidate_words": [self.vocab.id_to_word(word) for word in row], "logp": logits}
                for row, logits in zip(ids.tolist(), values.tolist())]

    def _run(self, texts: Sequence[Sequence[str]], warmup: bool, layers: str,
             session: Any) -> tuple[Iterator[np.ndarray], list[Sequence[str]], tuple[int, ...]]:
        """Vectors of each sentence, [T, 2 P] or [layers, T, 2 P], in order; the sentences; the axes before T."""
        bilm = self._loaded().elmo_bilm
        check_choice("layers", layers, LAYERS)
        texts = check_batch(texts, "texts")

        def arrays() -> Iterator[np.ndarray]:
            stream = SlotStream(bilm, self.batch_size, runs_empty=True)
            with self._lock:
                _, bilm.lstm._states = self._sessions.get(id(session), (None, None))
                if warmup and bilm.state == "carry":
                    collections.deque(stream.run(texts[: self.batch_size]), maxlen=0)
                yield from (mix_layers(vectors, layers) for vectors in stream.run(texts))
                if session is not None:
                    self._sessions[id(session)] = session, bilm.lstm._states

        return arrays(), texts, (len(texts), self.n_layers) if layers == "all" else (len(texts),)

    def _loaded(self) -> ElmoEmbedder:
        if self._embedder is None:
            raise RuntimeError("ElmoModel: expected load() to be called first")
        return self._embedder
