"""The spaCy component `elmo`: sets `doc.tensor`, from which the vectors of tokens, spans and documents come."""

import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from elmo_fast.arguments import DEFAULT_BATCH_SIZE, FREE_STATES, check_choice, check_count
from elmo_fast.embed.api import LoadedElmo, load
from elmo_fast.environment import extra
from elmo_fast.files.atomic import atomic_directory
from elmo_fast.integrations import check_arguments, token_vectors, width
from elmo_fast.weights.datasets import OPTIONS_FILE, write_model
from elmo_fast.weights.sources import DEFAULT_MODEL

with extra("spacy"):
    import srsly
    from spacy.language import Language
    from spacy.pipeline import Pipe
    from spacy.tokens import Doc, Span, Token
    from spacy.util import minibatch

Part = Doc | Span | Token


@Language.factory("elmo", assigns=["doc.tensor"], default_config={
    "model": DEFAULT_MODEL, "layers": "average", "state": "warm", "device": None, "precision": "highest",
    "backend": "auto", "batch_size": DEFAULT_BATCH_SIZE, "allow_nonfinite": False})
class ElmoPipe(Pipe):
    """Sets `doc.tensor`, float32 [tokens, width], and the vectors and similarities of documents, spans and tokens.

    The model reads sentences if an earlier component has set sentence boundaries, else whole documents. Whitespace
    tokens count as tokens. The model is loaded at the first document, or from a saved pipeline, which contains the
    weights. The arguments, stored in the pipeline's configuration, are those of `load` and of `LoadedElmo.embed`.
    """

    def __init__(self, nlp: Language, name: str, model: str, layers: str | int | list[float], state: str,
                 device: str | None, precision: str, backend: str, batch_size: int, allow_nonfinite: bool):
        self.name, self._model = name, model
        self._how = {"device": device, "precision": precision, "backend": backend, "allow_nonfinite": allow_nonfinite}
        self._settings = layers, check_choice("state", state, FREE_STATES), check_count("batch_size", batch_size)
        self._elmo: LoadedElmo | None = None

    @property
    def elmo(self) -> LoadedElmo:
        if self._elmo is None:
            self._read(self._model)
        return self._elmo

    def _read(self, model: str | Path) -> "ElmoPipe":
        elmo = load(model, **self._how)
        check_arguments(elmo, *self._settings)
        self._elmo = elmo
        return self

    def __call__(self, doc: Doc) -> Doc:
        self._annotate([doc])
        return doc

    def pipe(self, stream: Iterable[Doc], *, batch_size: int = 128) -> Iterator[Doc]:
        """Process a stream of documents, `batch_size` at a time."""
        for docs in minibatch(stream, size=batch_size):
            try:
                self._annotate(docs)
            except Exception as error:
                self.get_error_handler()(self.name, self, docs, error)
            else:
                yield from docs

    def _annotate(self, docs: list[Doc]) -> None:
        parts = [list(doc.sents) if doc.has_annotation("SENT_START") else [doc] for doc in docs]
        texts = [[token.text for token in part] for sentences in parts for part in sentences]
        vectors = iter(token_vectors(self.elmo, texts, *self._settings))
        empty = np.zeros((0, width(self.elmo, self._settings[0])), np.float32)
        for doc, sentences in zip(docs, parts):
            doc.tensor = np.concatenate([empty, *(next(vectors) for _ in sentences)])
            for hooks in (doc.user_hooks, doc.user_span_hooks, doc.user_token_hooks):
                hooks.update(vector=_vector, has_vector=_has_vector, similarity=_similarity)

    def to_disk(self, path: str | Path, *, exclude: Iterable[str] = ()) -> None:
        """Write the model into the directory `path`."""
        _, options, weights = self.elmo.read_weights()
        with atomic_directory(path, last=OPTIONS_FILE) as folder:
            write_model(folder, options.to_dict(), weights, options.vocabulary)

    def from_disk(self, path: str | Path, *, exclude: Iterable[str] = ()) -> "ElmoPipe":
        """Load the model in the directory `path` instead of the configured model."""
        return self._read(path)

    def to_bytes(self, *, exclude: Iterable[str] = ()) -> bytes:
        """Serialize the files of `to_disk`."""
        with tempfile.TemporaryDirectory() as folder:
            self.to_disk(folder)
            return srsly.msgpack_dumps({path.name: path.read_bytes() for path in Path(folder).iterdir()})

    def from_bytes(self, data: bytes, *, exclude: Iterable[str] = ()) -> "ElmoPipe":
        """Load the model from the result of `to_bytes` instead of the configured model."""
        with tempfile.TemporaryDirectory() as folder:
            for name, content in srsly.msgpack_loads(data).items():
                (Path(folder) / Path(name).name).write_bytes(content)
            return self.from_disk(folder)


make_elmo = ElmoPipe  # the name of the package's entry point


def _vector(part: Part) -> np.ndarray:
    """The vector of a token, or the mean of a span's or document's token vectors, zero if empty: float32 [width]."""
    tensor = part.tensor
    return tensor if tensor.ndim == 1 else tensor.sum(axis=0) / max(1, len(tensor))


def _has_vector(part: Part) -> bool:
    return part.tensor.size > 0


def _similarity(part: Part, other: Part) -> float:
    """Cosine of two vectors, 0 if either is zero. spaCy's default gives 1 for equal words in different contexts."""
    a, b = part.vector, other.vector
    norm = np.linalg.norm(a) * np.linalg.norm(b)
    return float(a @ b / norm) if norm else 0.0
