"""The work of the subcommands `embed` and `cache`: a file of vectors from a text, a token table from a vocabulary."""

import contextlib
import itertools
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from elmo_fast.arguments import check_file, counted, local_path
from elmo_fast.embed.api import LoadedElmo, load
from elmo_fast.embed.build_table import corpus_words, write_token_table
from elmo_fast.embed.embedder import Embedder
from elmo_fast.embed.opening import open_embedder
from elmo_fast.embed.progress import Progress
from elmo_fast.embed.run import Written, write_corpus
from elmo_fast.engine.model import Model
from elmo_fast.engine.table import TokenTable
from elmo_fast.errors import ConfigurationError
from elmo_fast.files.atomic import check_target
from elmo_fast.files.lock import locked
from elmo_fast.text.readers import Texts, open_texts
from elmo_fast.text.vocabulary import Vocabulary
from elmo_fast.vectors import layouts
from elmo_fast.vectors.layouts.arrays import names_of
from elmo_fast.vectors.layouts.table import is_directory, layout_of, options_of
from elmo_fast.vectors.spec import OutputSpec, Target
from elmo_fast.weights.opening import ModelOptions
from elmo_fast.weights.sources import DEFAULT_MODEL, ModelFiles, find_model


@dataclass(frozen=True)
class VectorOutput:
    """A file of vectors to write. `targets` is a file of words; the two flags are options of AllenNLP's layout."""

    output_file: str
    layout: str | None
    layers: str | tuple[float, ...]
    pool: str | None
    dtype: str
    targets: str | None
    forget_sentences: bool
    use_sentence_keys: bool

    def target(self) -> Target:
        """The checked target."""
        words = self.targets and frozenset(Vocabulary(check_file("--targets", self.targets)).words) - {""}
        if words is not None and not words:
            raise ConfigurationError(f"--targets: expected a word a line, found none in {self.targets}")
        form = OutputSpec(self.layers, self.pool, self.dtype, words)
        layout = layout_of(self.output_file, self.layout)
        layouts.check_output(layout, self.output_file, form, "output file")
        options = options_of(layout, forget_sentences=self.forget_sentences, use_sentence_keys=self.use_sentence_keys)
        if (self.forget_sentences or self.use_sentence_keys) and not options:
            raise ConfigurationError("--forget-sentences, --use-sentence-keys: expected AllenNLP's layout beside them, "
                                     f"got {layout}")
        return Target(self.output_file, layout, form, options)


@dataclass(frozen=True)
class ModelChoice:
    """A model by name or by its two files, by default the bundled model; its precision, backend and device.

    `device` is `cpu` or None, `cuda` or `cuda:NUMBER`.
    """

    model: str | None
    precision: str
    backend: str
    device: str | None
    allow_nonfinite: bool = False
    options_file: str | None = None
    weight_file: str | None = None

    def load(self) -> LoadedElmo:
        """The named model on its device."""
        return load(self.model, device=self.device or "cpu", precision=self.precision, backend=self.backend,
                    allow_nonfinite=self.allow_nonfinite)

    def files(self, output: str, inputs: Iterable[str | None]) -> ModelFiles:
        """The model's files. `ConfigurationError` for an output that is a file of the model or of the inputs."""
        model = DEFAULT_MODEL if self.model is self.options_file is self.weight_file is None else self.model
        files = find_model(model, options_file=self.options_file, weight_file=self.weight_file)
        output = local_path(output)
        written = [output, *([os.fspath(names_of(output))] if Path(output).suffix == ".npy" else [])]
        for path, read in itertools.product(written, (*inputs, files.options_file, files.weight_file)):
            read = read and local_path(read)
            if read and os.path.exists(path) and os.path.exists(read) and os.path.samefile(path, read):
                where = output if path == output else f"{output}, whose names go to {path}"
                raise ConfigurationError(f"output file: expected a file other than the inputs, got {where}")
        return files

    def open(self, files: ModelFiles, **options: Any) -> Embedder:
        """An embedder of the model on its device; `options` are further fields of `ModelOptions`."""
        return open_embedder(files, ModelOptions(precision=self.precision, backend=self.backend,
                                                 allow_nonfinite=self.allow_nonfinite, **options), self.device or "cpu")


def embed_file(texts: Texts, output: VectorOutput, model: ModelChoice, *, state: str, token_table: str | None,
               unknown: str | None, batch_size: int | None, resume: bool, progress: bool | str) -> str:
    """Embed the texts of files into a file of vectors, or a directory of files. `progress` is that of `Progress`.

    Returns a line that says what was written.
    """
    if unknown and not token_table:
        raise ConfigurationError(f"--unknown: expected --token-table beside it, got {unknown} alone")
    target = output.target()
    with locked(target.path) as lock, texts:
        files = model.files(output.output_file, [*texts.paths, token_table])
        table_file = token_table and check_file("token table", token_table)
        bar = Progress(progress, texts.count())
        table = table_file and TokenTable.open(table_file, unknown=unknown or "encode")
        embedder = model.open(files, state=state, token_table=table)
        target.form.check(embedder.model.num_layers)
        written = write_corpus(texts, embedder.runner(batch_size), target, resume=resume, progress=bar, lock=lock)
    return summary(target, written, embedder.model)


def summary(target: Target, written: Written, model: Model) -> str:
    """A line on a file of vectors: what it holds, the shape of a text's array, and the layout."""
    form = target.form
    kind = f"{target.layout}, a directory" if is_directory(target.layout, target.path) else target.layout
    return (f"{target.path}: {counted(written.texts, 'text')}, {counted(written.tokens, 'token')}, "
            f"{form.shape_in_words(model.num_layers, model.output_dim)} in {form.dtype}, layout {kind}")


def write_table(vocabulary: str, output_file: str, model: ModelChoice, *, corpus: bool, format: str | None,
                field: str | None, tokenizer: str, storage: str, progress: bool) -> str:
    """Write the token table of a file of words, or with `corpus` of a text; returns a line on what was written."""
    check_target(output_file, "output file")
    if not (corpus or (format is field is None and tokenizer == "whitespace")):
        raise ConfigurationError("--format, --field, --tokenizer: expected --corpus beside them, since a vocabulary "
                                 "has a word per line, got none")
    with locked(output_file) as lock:
        with (open_texts(vocabulary, format=format, field=field, tokenizer=tokenizer, allow_blank=True) if corpus
              else contextlib.nullcontext()) as texts:
            files = model.files(output_file, texts.paths if corpus else [vocabulary])
            if not corpus:
                check_file("vocabulary", vocabulary)
            words = corpus_words(text.tokens for text in texts) if corpus else vocabulary
        at_rest = model.open(files, state="zero").model
        rows, size = write_token_table(at_rest, words, output_file, storage=storage, progress=progress, lock=lock)
    return f"{output_file}: vectors of {counted(rows, 'word')}, [{rows}, {size}] in {storage}"
