"""`load`: a model, and vectors from it in one call."""

import copy
import functools
import logging
import os
import pkgutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, SupportsIndex

import numpy as np

from elmo_fast.arguments import STATES, Layers, Pool, Precision, StateName, check_choice, check_path, gathered
from elmo_fast.embed.embedder import Embedder
from elmo_fast.embed.opening import embedder_of, read_files
from elmo_fast.embed.progress import Progress
from elmo_fast.embed.run import write_corpus
from elmo_fast.engine.model import State
from elmo_fast.errors import ConfigurationError
from elmo_fast.text.batching import check_batch, check_iterable, check_sentence
from elmo_fast.text.fasta import FastaRecord
from elmo_fast.text.readers import Text
from elmo_fast.text.tokenizers import Tokenizer, find_tokenizer
from elmo_fast.vectors import layouts
from elmo_fast.vectors.layouts.table import SUFFIXES, layout_of, options_of
from elmo_fast.vectors.spec import OutputSpec, Target
from elmo_fast.weights.datasets import Weights, fingerprint
from elmo_fast.weights.families import BILM_TF, Family
from elmo_fast.weights.opening import WARM_TEXT, ModelOptions
from elmo_fast.weights.options import Options
from elmo_fast.weights.sources import DEFAULT_MODEL, find_model

if TYPE_CHECKING:
    import torch

    from elmo_fast.nn.bilm import BiLm

_warn_once = functools.cache(logging.getLogger(__name__).warning)

Given = str | Sequence[str] | FastaRecord | Text


def load(model: str | os.PathLike = DEFAULT_MODEL, *, device: "str | torch.device | None" = None,
         precision: Precision = "highest", backend: str = "auto", warm_text: Sequence[Sequence[str]] = WARM_TEXT,
         allow_nonfinite: bool = False) -> "LoadedElmo":
    """Load a model to get vectors from.

    `model` is a name, a directory, a ZIP or tar, or a URL of these (`find_model`), by default the bundled model.
    `precision`, `backend` and `warm_text` are those of `ModelOptions`. The CPU computes unless `device` says otherwise
    (`cuda`); there, and with the backend `torch`, PyTorch computes. NaN and infinities in the weights are refused
    unless `allow_nonfinite`.
    """
    opening = ModelOptions("warm", precision, backend, warm_text=check_batch(warm_text, "warm_text"),
                           allow_nonfinite=allow_nonfinite)
    files = find_model(check_path("model", model))
    read = functools.partial(read_files, files, opening)
    embedder = embedder_of(*read(), opening, "cpu" if device is None else str(device))
    return _loaded(embedder, os.fspath(model), opening, files.family, read)


@dataclass(frozen=True)
class SaveOptions:
    """How `LoadedElmo.save_vectors` writes a file.

    The suffix chooses the `layout` unless it is given. `dtype` is `float32` or `float16`; with `targets` only the
    vectors of these words are stored. `resume` continues the partial result of an interrupted run. `progress` is that
    of `ElmoEmbedder.embed_file`.
    """

    dtype: str = "float32"
    layout: str | None = None
    targets: Iterable[str] | None = None
    resume: bool = False
    progress: bool | str = False


class LoadedElmo:
    """Vectors of texts: strings, lists of tokens, FASTA records, or texts of `open_texts`.

    Strings are split into tokens by `tokenizer`. `auto`, its default, splits a string in which no word has punctuation
    attached at whitespace, and any other one (`They don't.`) as in the Penn Treebank (`They do n't .`). `whitespace`,
    `penn` and `simple` (words and punctuation apart) are the same for every string; a function from a string to a list
    of tokens, or its place as `package.module:function`, is a tokenizer too. `model` is what computes: a model that
    does not change, or, for a `BiLm` or an embedder of one, that biLM with its current weights.
    """

    def __init__(self, source: "Embedder | BiLm"):
        if not isinstance(source, Embedder):
            from elmo_fast.embed.bilm_embedder import BiLmEmbedder

            source = BiLmEmbedder(source)
        self.embedder, self.model = source, source.model
        self._name: str | None = None  # of the model, for `repr`
        self._opening = ModelOptions()
        self._read: Callable[[], tuple[Options, Weights]] | None = None
        self._family = BILM_TF

    @functools.cached_property
    def bilm(self) -> "BiLm":
        """The model as a module of PyTorch. Of a model that `load` read, the files are read again."""
        if hasattr(self.model, "bilm"):
            return self.model.bilm
        family, options, weights = self.read_weights()
        return pkgutil.resolve_name(family.bilm)(options, weights, self._opening).eval().to(self.model.device)

    def read_weights(self) -> tuple[Family, Options, Weights]:
        """The family, options and weights: the current ones of a biLM, or those of the files, which are read again."""
        if hasattr(self.model, "bilm"):
            bilm = self.model.bilm
            return bilm.options.family, bilm.options, bilm.weights()
        if self._read is None:
            raise RuntimeError("weights: expected a model of files or of a BiLm, got one of arrays")
        options, weights = self._read()
        if fingerprint(weights, options) != self.model.fingerprint:
            raise RuntimeError(f"weights: expected those that the model was made of in {self._name}, got others; read "
                               "the model again")
        return self._family, options, weights

    def __deepcopy__(self, memo: dict) -> "LoadedElmo":
        """A copy with carried states of its own; the model, which does not change, is shared."""
        twin = copy.copy(self)
        twin.embedder = self.embedder.copy(memo)
        twin.model = twin.embedder.model
        return twin

    def __reduce_ex__(self, protocol: SupportsIndex):
        """The pickle of a model at rest has its weights, which are read again."""
        if hasattr(self.model, "bilm") or type(self) is not LoadedElmo:
            return super().__reduce_ex__(protocol)
        return _rebuilt, (*self.read_weights(), self._opening, self._name, self.embedder.carried,
                          str(self.model.device))

    @property
    def state(self) -> str:
        """The state of `vectors` where a call names none."""
        return self.embedder.state

    @property
    def num_layers(self) -> int:
        """The number of layers, with the token layer: the first axis of an array of `embed`."""
        return self.model.num_layers

    @property
    def dim(self) -> int:
        """The number of values of a vector, 2 P: the last axis of an array of `embed`."""
        return self.model.output_dim

    def __repr__(self) -> str:
        named = {"num_layers": self.num_layers, "dim": self.dim, "device": str(self.model.device),
                 "precision": self.model.precision}
        named = {"model": self._name, **named} if self._name else named
        return f"LoadedElmo({', '.join(f'{name}={value!r}' for name, value in named.items())})"

    def embed(self, sentences: Iterable[Given], layers: Layers = "all", state: StateName = "warm",
              pool: Pool | None = None, batch_size: int | None = None,
              tokenizer: str | Tokenizer = "auto") -> list[np.ndarray]:
        """Vectors of texts, in order: float32 [layers, tokens, 2 P] a text.

        `layers`: `all`, `top`, `average`, the number of a layer from 0 (the token layer), or a factor for each layer;
        all but `all` drop the first axis. `pool` drops the axis of tokens: `mean`, `max`, or `first_last`, the forward
        half of the last token beside the backward half of the first token. `state` as in `BiLm`: with `warm` and `zero`
        a text's vectors depend only on it. `batch_size` texts run at a time, by default as many as
        `ElmoEmbedder.embed_sentences` chooses. A text without tokens cannot be pooled.
        """
        form = OutputSpec(layers, pool).check(self.num_layers)
        check_choice("state", state, STATES)
        texts = list(self._texts(sentences, pool, tokenizer, state))
        order = list(range(len(texts)))
        if state != "carry":  # Texts that do not depend on others run longest first: then few slots end up idle.
            order.sort(key=lambda number: len(texts[number].tokens), reverse=True)
        vectors = list(self._run((texts[number] for number in order), form, state, batch_size))
        return [vectors[rank] for rank in np.argsort(order)]

    def stream(self, sentences: Iterable[Given], layers: Layers = "all", state: StateName = "warm",
               pool: Pool | None = None, batch_size: int | None = None,
               tokenizer: str | Tokenizer = "auto") -> Iterator[np.ndarray]:
        """As `embed`, lazily: texts are read as needed, also from an endless iterable, and memory is bounded."""
        form = OutputSpec(layers, pool).check(self.num_layers)
        run = self._run(self._texts(sentences, pool, tokenizer, state), form, state, batch_size)
        return (vectors for vectors in run)

    def vectors(self, sentences: Iterable[Sequence[str]], batch_size: int | None = None,
                state: StateName | None = None) -> Iterator[np.ndarray]:
        """Vectors of tokenized sentences, lazily and unchecked: float32 [layers, tokens, 2 P] a sentence.

        `embed`, `stream` and `similarity` take their vectors from here. `state` is by default the model's.
        """
        return self.embedder.stream(sentences, batch_size, state)

    def encode(self, sentences: Given | Iterable[Given], state: StateName = "warm", batch_size: int | None = None,
               tokenizer: str | Tokenizer = "auto") -> np.ndarray:
        """One vector a sentence, the mean over its tokens of the layers' average: float32 [sentences, 2 P].

        A single string gives [2 P]. The arguments are those of `embed`; `encode_words` gives vectors without context.
        """
        if isinstance(sentences, str):
            return self.encode([sentences], state, batch_size, tokenizer)[0]
        vectors = self.embed(sentences, "average", state, "mean", batch_size, tokenizer)
        return np.stack(vectors) if vectors else np.zeros((0, self.dim), np.float32)

    def encode_words(self, words: Sequence[str]) -> np.ndarray:
        """Vectors of words without context, as the char encoder gives them: float32 [words, P]."""
        return self.model.encode(check_batch([words], "words")[0])

    def similarity(self, a: Given, b: Given, tokenizer: str | Tokenizer = "auto") -> float:
        """Cosine of the vectors that `encode` gives to two texts; NaN where one is zero."""
        first, second = self.encode([a, b], tokenizer=tokenizer)
        with np.errstate(invalid="ignore"):
            return float(first @ second / (np.linalg.norm(first) * np.linalg.norm(second)))

    def save_vectors(self, path: str | os.PathLike, sentences: Iterable[Given], layers: Layers = "all",
                     state: StateName = "warm", pool: Pool | None = None, batch_size: int | None = None, *,
                     tokenizer: str | Tokenizer = "auto", **options) -> None:
        """Write the arrays of `embed` to a file as they are computed; `open_embeddings` reads the file.

        Suffixes are .h5 (one dataset per text), .npz, .parquet, .arrow, or .npy for pooled vectors. For a path without
        a suffix, `parquet` and `arrow` write a directory of files. Texts are named by their number, from 0, or by the
        first word of a FASTA record's header; for `.npy` the names are in a `.json` file beside it. The output is
        written atomically. `options` are fields of `SaveOptions`.
        """
        saving = gathered(SaveOptions, options)
        form = OutputSpec(layers, pool, saving.dtype, saving.targets).check(self.num_layers)
        path = check_path("output", path)
        if saving.layout is None and Path(path).suffix not in SUFFIXES:
            raise ConfigurationError(f"output: expected a file that ends in {', '.join(SUFFIXES)}, or a "
                                     f"layout, got {path}")
        layout = layout_of(path, saving.layout)
        layouts.check_output(layout, path, form)
        target = Target(path, layout, form, options_of(layout, forget_sentences=True))
        texts = self._texts(sentences, pool, tokenizer, state)
        write_corpus(texts, self.embedder.runner(batch_size, state), target, resume=saving.resume,
                     progress=Progress(saving.progress))

    def _texts(self, sentences: Iterable[Given], pool: str | None, tokenizer: str | Tokenizer,
               state: str) -> Iterator[Text]:
        """The texts, lazily. Anything but a collection or generator of texts is refused at once."""
        if isinstance(sentences, (str, bytes, FastaRecord, Text)):
            raise ValueError(f"sentences: expected a list of texts, got one {type(sentences).__name__}; put it into a "
                             "list")
        check_iterable(sentences, "sentences")
        split = find_tokenizer(tokenizer)
        starts_english = state == "warm" and self.model.warm_text == WARM_TEXT
        return (_text(given, number, pool, split, starts_english) for number, given in enumerate(sentences))

    def _run(self, texts: Iterable[Text], form: OutputSpec, state: StateName,
             batch_size: int | None) -> Iterator[np.ndarray]:
        """The vectors that `form` selects from the stream; a `map`, because a generator would add a Python frame."""
        def finish(vectors: np.ndarray) -> np.ndarray:
            return form.apply(vectors, ()).vectors

        return map(finish, self.vectors((text.tokens for text in texts), batch_size, state))


def _loaded(embedder: Embedder, name: str | None, opening: ModelOptions, family: Family,
            read: Callable[[], tuple[Options, Weights]]) -> LoadedElmo:
    elmo = LoadedElmo(embedder)
    elmo._name, elmo._opening, elmo._family, elmo._read = name, opening, family, read
    return elmo


def _rebuilt(family: Family, options: Options, weights: Weights, opening: ModelOptions, name: str | None,
             carried: State | None, device: str) -> LoadedElmo:
    embedder = embedder_of(options, weights, opening, device)
    embedder.carried = carried
    return _loaded(embedder, name, opening, family, lambda: (options, weights))


def _text(given: Given, number: int, pool: str | None, split: Tokenizer, starts_english: bool) -> Text:
    tokens = tokens_of(given, f"sentences[{number}]", split)
    if pool and not len(tokens):
        raise ValueError(f"sentences[{number}]: expected at least one token to pool, got none")
    if isinstance(given, Text):
        return given._replace(tokens=tokens)
    if isinstance(given, FastaRecord):
        if starts_english:
            _warn_once("state: a record of FASTA starts after four English sentences in 'warm'; 'zero' fits proteins")
        return Text(next(iter(given.header.split()), str(number)), given.sequence, tokens)
    return Text(str(number), given if isinstance(given, str) else " ".join(map(str, tokens)), tokens)


def tokens_of(given: Given, name: str, split: Tokenizer) -> tuple[str, ...]:
    """A copy of the tokens of a text; `ValueError`, which contains `name`, for anything but a text."""
    if isinstance(given, str):
        return tuple(split(given))
    if isinstance(given, FastaRecord):
        return tuple(given.sequence)
    return check_sentence(given.tokens if isinstance(given, Text) else given, name, "a string or a list of tokens")
