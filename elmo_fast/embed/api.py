"""`load`: a model, and vectors from it in one call."""

import contextlib
import os
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import torch

from elmo_fast.choices import DEFAULT_BATCH_SIZE
from elmo_fast.embed.embedder import ElmoEmbedder
from elmo_fast.embed.form import Form
from elmo_fast.embed.layouts.arrays import check_array_file, write_arrays
from elmo_fast.model.bilm import BiLm
from elmo_fast.model.manylangs import ManyLangsBiLm
from elmo_fast.model.sources import DEFAULT_MODEL, MANYLANGS_WEIGHTS, find_model
from elmo_fast.text.batching import check_batch, check_iterable
from elmo_fast.text.fasta import FastaRecord

Text = str | Sequence[str] | FastaRecord
Layers = str | Sequence[float]


def load(model: str | os.PathLike = DEFAULT_MODEL, *, device: str | torch.device | None = None,
         precision: str = "highest", backend: str = "auto", allow_nonfinite: bool = False) -> "LoadedElmo":
    """Load a model to get vectors from.

    `model` is a name, a directory, a ZIP, or the URL of a ZIP or of a directory (`find_model`), by default the bundled
    one. `device` is by default the first GPU where there is one, else the CPU; `precision` and `backend` as in `BiLm`.
    NaN and infinities in the weights are refused unless `allow_nonfinite`.
    """
    files = find_model(model)
    kind = ManyLangsBiLm if files.weight_file.name == MANYLANGS_WEIGHTS else BiLm
    bilm = kind.from_model(files, state="warm", precision=precision, backend=backend, allow_nonfinite=allow_nonfinite)
    return LoadedElmo(bilm.to(device or ("cuda" if torch.cuda.is_available() else "cpu")))


class LoadedElmo:
    """Vectors of texts. A text is a string, split at whitespace, a list of tokens, or a FASTA record of letters.

    `bilm` is the model itself.
    """

    def __init__(self, bilm: BiLm):
        self._embedder = ElmoEmbedder.from_bilm(bilm)
        self.bilm = bilm

    def embed(self, sentences: Iterable[Text], layers: Layers = "all", state: str = "warm", pool: str | None = None,
              batch_size: int = DEFAULT_BATCH_SIZE) -> list[np.ndarray]:
        """Vectors of texts, in order: float32 [layers, tokens, 2 P] a text.

        `layers`: `all`, `top`, `average`, or a factor for each layer; all but `all` drop the first axis. `pool`
        drops the axis of tokens: `mean`, `max`, or `first_last`, the forward half of the last token beside the backward
        half of the first token. `state` as in `BiLm`: with `warm` and `zero` vectors depend on the text alone.
        `batch_size` texts run at a time. A text without tokens cannot be pooled.
        """
        with self._in_state(state):
            return list(self._run(_listed(sentences), layers, pool, batch_size))

    def encode(self, tokens: Sequence[str]) -> np.ndarray:
        """Vectors of tokens without context, as the char encoder gives them: float32 [tokens, P]."""
        check_batch([tokens], "tokens")
        with torch.no_grad():
            return self.bilm.encode(tokens).float().cpu().numpy()

    def similarity(self, a: Text, b: Text) -> float:
        """Cosine of two texts, each the mean over its tokens of the layers' average; NaN where a mean is zero."""
        first, second = self.embed([a, b], layers="average", pool="mean")
        with np.errstate(invalid="ignore"):
            return float(first @ second / (np.linalg.norm(first) * np.linalg.norm(second)))

    def save_vectors(self, path: str | os.PathLike, sentences: Iterable[Text], layers: Layers = "all",
                     state: str = "warm", pool: str | None = None, batch_size: int = DEFAULT_BATCH_SIZE) -> None:
        """Write the arrays of `embed` as they come to `.h5` or `.npz`, or pooled ones to `.npy` as a single array.

        Names are the texts' numbers in order, from 0, or the first word of a FASTA record's header; those of `.npy` are
        in a `.json` beside it. The file is written atomically.
        """
        check_array_file(path, pool is not None and layers != "all")
        texts = _listed(sentences)
        heads = [text.header.split()[:1] if isinstance(text, FastaRecord) else [] for text in texts]
        names = (head[0] if head else str(number) for number, head in enumerate(heads))
        with self._in_state(state):
            write_arrays(path, zip(names, self._run(texts, layers, pool, batch_size)))

    @contextlib.contextmanager
    def _in_state(self, state: str) -> Iterator[None]:
        before, self.bilm.state = self.bilm.state, state
        try:
            yield
        finally:
            self.bilm.state = before

    def _run(self, texts: list[Text], layers: Layers, pool: str | None, batch_size: int) -> Iterator[np.ndarray]:
        """What the form keeps of the stream: a `map`, which adds no frame above the stream's."""
        sentences = check_batch(map(_tokens, texts), "sentences")
        form = Form(layers, pool).check(self.bilm.num_layers)
        empty = next((number for number, tokens in enumerate(sentences) if not len(tokens)), None)
        if pool and empty is not None:
            raise ValueError(f"sentences[{empty}]: expected at least one token to pool, got none")

        def finish(vectors: np.ndarray) -> np.ndarray:
            return form.apply(vectors, ()).vectors

        return map(finish, self._embedder.stream(sentences, batch_size))


def _listed(sentences: Iterable[Text]) -> list[Text]:
    if isinstance(sentences, (str, bytes, FastaRecord)):
        raise ValueError(f"sentences: expected a list of texts, got one {type(sentences).__name__}; put it into a list")
    check_iterable(sentences, "sentences")
    return list(sentences)


def _tokens(text: Text) -> Sequence[str]:
    if isinstance(text, FastaRecord):
        return list(text.sequence)
    return text.split() if isinstance(text, str) else text
