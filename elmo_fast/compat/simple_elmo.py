"""`ElmoModel` with the calls of simple_elmo, written from its documentation (github.com/ltgoslo/simple_elmo)."""

import collections
import dataclasses
import os
import threading
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from elmo_fast.arguments import LAYERS, check_choice, check_count, check_path, gathered, shown
from elmo_fast.compat.elmo_embedder import ElmoEmbedder
from elmo_fast.engine.stream import SlotStream
from elmo_fast.environment import extra
from elmo_fast.errors import ConfigurationError
from elmo_fast.nn import batching
from elmo_fast.nn.softmax_head import SoftmaxHead
from elmo_fast.ops.projected_lstm.reference import State
from elmo_fast.text.batching import BOUNDARIES, check_batch
from elmo_fast.text.vocabulary import Vocabulary
from elmo_fast.vectors.spec import mix_layers
from elmo_fast.weights.families import SOFTMAX_FILE
from elmo_fast.weights.opening import ModelOptions
from elmo_fast.weights.sources import ModelFiles, find_model, vocabulary_in

with extra("torch"):
    import torch


class _Batcher(batching.Batcher):
    """bilm-tf's `Batcher` without a vocabulary, which changes no id."""

    def __init__(self, max_token_length: int):
        self._max_token_length = max_token_length


class ElmoModel:
    """Computes contextual vectors of tokenized sentences as padded arrays. `options` are fields of `ModelOptions`.

    As in simple_elmo, a call starts from zero states, `warmup` runs its first batch an extra time beforehand, and
    states are carried from batch to batch. A call with a `session` (any object) starts from the final states of the
    last call with that session. With `state` `zero` or `warm` a sentence's vectors depend on that sentence only, and
    `warmup` and `session` have no effect. Threads may share a model; their calls run one after another.
    """

    def __init__(self, *, cuda_device: int = -1, **options):
        self._opening, self._cuda_device = gathered(ModelOptions, options), cuda_device
        self._embedder: ElmoEmbedder | None = None
        self._head: SoftmaxHead | None = None
        self._sessions: dict[int, tuple[Any, State | None]] = {}  # by id: the session, its final states
        self.batch_size: int = 0
        self.vocab: Vocabulary | None = None
        self.batcher: _Batcher | None = None
        self._lock = threading.RLock()  # guards the carried states of the model during a call

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_sessions": {}, "_lock": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _lock=threading.RLock())

    def load(self, directory: str | os.PathLike | None = None, max_batch_size: int = 32, limit: int = 100,
             full: bool = False, *, vocab_file: str | os.PathLike | None = None,
             options_file: str | os.PathLike | None = None, weight_file: str | os.PathLike | None = None,
             **options) -> None:
        """Read a model from a directory or ZIP: `options.json`, and `model.hdf5` or else the first `*.hdf5`.

        `options_file`, `weight_file` and perhaps `vocab_file` may take the place of the directory, as in DeLFT.
        `max_batch_size` sentences run at a time. `limit`, the number of words to precompute, is ignored: every unique
        word of a batch is encoded once anyway. `get_elmo_substitutes` needs `full=True`. `options` replace those of the
        constructor.
        """
        opening = gathered(ModelOptions, options, self._opening)
        check_count("max_batch_size", max_batch_size)
        files = _files(directory, options_file, weight_file)
        if vocab_file is not None:
            files = dataclasses.replace(files, vocab_file=Path(check_path("vocab_file", vocab_file)))
        softmax = files.weight_file.parent / SOFTMAX_FILE
        if full and not (softmax.is_file() and files.vocab_file):
            raise FileNotFoundError(f"full: expected {SOFTMAX_FILE} and vocab.txt beside {files.weight_file.name}, as "
                                    f"`elmo-fast import-tf` and `export --softmax` write them; found none in "
                                    f"{softmax.parent}")
        self._embedder = ElmoEmbedder(files.options_file, files.weight_file, self._cuda_device, opening=opening)
        bilm = self._embedder.elmo_bilm
        cnn = bilm.options.char_cnn
        self.batcher = cnn and _Batcher(cnn.max_characters_per_token)
        self._head = (SoftmaxHead.from_files(bilm, softmax, files.vocab_file, opening.allow_nonfinite) if full
                      else None)
        self.vocab = None if files.vocab_file is None else Vocabulary(files.vocab_file)
        self._sessions.clear()
        self.batch_size = max_batch_size

    @property
    def n_layers(self) -> int:
        """Number of layers, including the token layer."""
        return self._loaded().elmo_bilm.num_layers

    @property
    def vector_size(self) -> int:
        """Size of a token's vector in a layer, 2 P."""
        return self._loaded().elmo_bilm.get_output_dim()

    def get_elmo_vectors(self, texts: Sequence[Sequence[str]], warmup: bool = True, layers: str = "average",
                         session=None) -> np.ndarray:
        """Return vectors of sentences: float32 [sentences, T, 2 P], T the longest, zero past a sentence's end.

        `layers` is `average` (the mean of the layers), `top`, or `all`: [sentences, layers, T, 2 P].
        """
        arrays, texts, axes = self._run(texts, warmup, layers, session)
        padded = np.zeros((*axes, max(map(len, texts), default=0), self.vector_size), np.float32)
        for row, vectors in zip(padded, arrays, strict=True):
            row[..., : vectors.shape[-2], :] = vectors
        return padded

    def get_elmo_vector_average(self, texts: Sequence[Sequence[str]], warmup: bool = True, layers: str = "average",
                                session=None) -> np.ndarray:
        """Return the mean vector of every sentence, scaled to norm 1: float32 [sentences, (layers,) 2 P].

        Zeros for a sentence without tokens.
        """
        arrays, _, axes = self._run(texts, warmup, layers, session)
        averages = np.zeros((*axes, self.vector_size), np.float32)
        for row, vectors in zip(averages, arrays, strict=True):
            total = vectors.sum(axis=-2)
            norm = np.linalg.norm(total, axis=-1, keepdims=True)
            row[...] = np.divide(total, norm, out=np.zeros_like(total), where=norm > 0)
        return averages

    def get_elmo_substitutes(self, data: Sequence[str], topn: int = 3,
                             nodelimiters: bool = True) -> list[list[dict[str, Any]]]:
        """Return the `topn` most likely words in place of every token of raw sentences, in both directions.

        A token has a dictionary: `word`, and `forward` and `backward` with `candidates` (ids), `candidate_words` and
        `logp` (logits), highest first. `nodelimiters` excludes `<S>` and `</S>`. Sentences are split at whitespace and
        start from zero states, or from warm states with `state="warm"`.
        """
        if self._head is None:
            raise RuntimeError("get_elmo_substitutes: expected load(..., full=True) to be called first")
        is_list = isinstance(data, Iterable) and not isinstance(data, (str, bytes)) and getattr(data, "ndim", 1)
        texts = list(data) if is_list else [None]
        if not all(isinstance(text, str) for text in texts):
            raise ValueError(f"data: expected a list of sentences as strings, got {shown(data)}")
        check_count("topn", topn)
        substitutes = []
        for tokens in map(str.split, texts):
            with self._lock:
                self._loaded().elmo_bilm.reset_states()
                logits = self._head.logits(tokens)
            best = [self._top_words(scores, topn, nodelimiters) for scores in logits]
            substitutes.append([{"word": word, "forward": forward, "backward": backward}
                                for word, forward, backward in zip(tokens, *best)])
        return substitutes

    def _top_words(self, scores: torch.Tensor, topn: int, nodelimiters: bool) -> list[dict[str, list]]:
        excluded = BOUNDARIES if nodelimiters else ()
        scores[:, [self.vocab.word_to_id(word) for word in excluded]] = -torch.inf
        values, ids = scores.topk(min(topn, self.vocab.size - len(excluded)), dim=1)
        return [{"candidates": row, "candidate_words": [self.vocab.id_to_word(word) for word in row], "logp": logits}
                for row, logits in zip(ids.tolist(), values.tolist())]

    def _run(self, texts: Sequence[Sequence[str]], warmup: bool, layers: str,
             session: Any) -> tuple[Iterator[np.ndarray], list[Sequence[str]], tuple[int, ...]]:
        """Return the vectors of every sentence, [T, 2 P] or [layers, T, 2 P], the sentences, and the axes before T."""
        bilm = self._loaded().elmo_bilm
        check_choice("layers", layers, LAYERS)
        texts = check_batch(texts, "texts")

        def arrays() -> Iterator[np.ndarray]:
            stream = SlotStream(self._loaded().model, self.batch_size, bilm.state, runs_empty=True)
            with self._lock:
                _, stream.carried = self._sessions.get(id(session), (None, None))
                if warmup and bilm.state == "carry":
                    collections.deque(stream.run(texts[: self.batch_size]), maxlen=0)
                yield from (mix_layers(vectors, layers) for vectors in stream.run(texts))
                if session is not None:
                    self._sessions[id(session)] = session, stream.carried

        return arrays(), texts, (len(texts), self.n_layers) if layers == "all" else (len(texts),)

    def _loaded(self) -> ElmoEmbedder:
        if self._embedder is None:
            raise RuntimeError("ElmoModel: expected load() to be called first")
        return self._embedder


def _files(directory: str | os.PathLike | None, options_file: str | os.PathLike | None,
           weight_file: str | os.PathLike | None) -> ModelFiles:
    """The files of a model; of several weights in a directory, `model.hdf5` or else the first."""
    if directory is None and (options_file or weight_file):
        return find_model(options_file=options_file, weight_file=weight_file)
    folder = Path(check_path("directory", directory))
    weights = sorted(path for path in folder.glob("*.hdf5") if path.name != SOFTMAX_FILE) if folder.is_dir() else []
    if len(weights) < 2 or options_file or weight_file:
        return find_model(directory, options_file=options_file, weight_file=weight_file)
    if not (folder / "options.json").is_file():
        raise ConfigurationError(f"model {folder}: expected a file options.json, found none")
    default = folder / "model.hdf5"
    return ModelFiles(folder / "options.json", default if default in weights else weights[0], vocabulary_in(folder))
