"""The work of the subcommands `embed` and `cache`: a file of vectors from a text, a token table from a vocabulary."""

import contextlib
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from elmo_fast.arguments import check_file, local_path
from elmo_fast.embed.api import LoadedElmo, load, without_spare_weights
from elmo_fast.embed.build_table import corpus_words, write_words
from elmo_fast.embed.embedder import ElmoEmbedder, torch_device
from elmo_fast.embed.progress import Progress
from elmo_fast.embed.run import Target, write_corpus
from elmo_fast.errors import ConfigurationError
from elmo_fast.files.atomic import check_target
from elmo_fast.files.lock import locked
from elmo_fast.model.bilm import BiLm
from elmo_fast.model.families.models import open_bilm
from elmo_fast.model.sources import DEFAULT_MODEL, ModelFiles, find_model
from elmo_fast.model.token_table.table import TokenTable
from elmo_fast.text.readers import Texts, open_texts
from elmo_fast.vectors import layouts
from elmo_fast.vectors.layouts.table import layout_of, options_of
from elmo_fast.vectors.spec import OutputSpec


@dataclass(frozen=True)
class TextInput:
    """A file of texts; the fields are arguments of `open_texts`."""

    input_file: str
    format: str | None
    field: str | None
    tokenizer: str
    allow_blank: bool

    def open(self) -> Texts:
        """A context manager of the texts."""
        return open_texts(self.input_file, format=self.format, field=self.field, tokenizer=self.tokenizer,
                          allow_blank=self.allow_blank)


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

    def target(self, default_layout: str | None = None) -> Target:
        """The checked target; `default_layout` replaces the layout that the suffix chooses."""
        words = self.targets and _words(check_file("--targets", self.targets))
        form = OutputSpec(self.layers, self.pool, self.dtype, words)
        layout = layout_of(self.output_file, self.layout or default_layout)
        layouts.check_output(layout, self.output_file, form, "output file")
        options = options_of(layout, forget_sentences=self.forget_sentences, use_sentence_keys=self.use_sentence_keys)
        if (self.forget_sentences or self.use_sentence_keys) and not options:
            raise ConfigurationError("--forget-sentences, --use-sentence-keys: expected AllenNLP's layout beside them, "
                                     f"got {layout}")
        return Target(self.output_file, layout, form, options)


@dataclass(frozen=True)
class ModelChoice:
    """A model by name or by its two files, by default the bundled model; its precision, backend and device."""

    model: str | None
    precision: str
    backend: str
    cuda_device: int
    allow_nonfinite: bool = False
    options_file: str | None = None
    weight_file: str | None = None

    def load(self) -> LoadedElmo:
        """The named model on its device."""
        return load(self.model, device=torch_device(self.cuda_device), precision=self.precision, backend=self.backend,
                    allow_nonfinite=self.allow_nonfinite)

    def files(self, output: str, inputs: Iterable[str | None]) -> ModelFiles:
        """The model's files. `ConfigurationError` for an output that is a file of the model or of the inputs."""
        model = DEFAULT_MODEL if self.model is self.options_file is self.weight_file is None else self.model
        files = find_model(model, options_file=self.options_file, weight_file=self.weight_file)
        output = local_path(output)
        for path in (*inputs, files.options_file, files.weight_file):
            path = path and local_path(path)
            if path and os.path.exists(output) and os.path.exists(path) and os.path.samefile(output, path):
                raise ConfigurationError(f"output file: expected a file other than the inputs, got {output}")
        return files

    def open(self, files: ModelFiles, **arguments: Any) -> BiLm:
        """The model on the CPU; `arguments` are those of `BiLm`."""
        return open_bilm(files, precision=self.precision, backend=self.backend, allow_nonfinite=self.allow_nonfinite,
                         **arguments)


@dataclass(frozen=True)
class EmbedJob:
    """A run of `elmo-fast embed`. `progress` is that of `Progress`."""

    texts: TextInput
    output: VectorOutput
    model: ModelChoice
    state: str
    token_table: str | None
    unknown: str | None
    batch_size: int | None
    resume: bool
    progress: bool | str

    def __post_init__(self):
        if self.unknown and not self.token_table:
            raise ConfigurationError(f"--unknown: expected --token-table beside it, got {self.unknown} alone")

    @contextlib.contextmanager
    def opened(self, form: OutputSpec) -> Iterator[tuple[Texts, BiLm, Progress]]:
        """The texts, the model on its device, checked against `form`, and the progress. The caller locks the output."""
        with self.texts.open() as texts:
            files = self.model.files(self.output.output_file, [*texts.paths, self.token_table])
            device = torch_device(self.model.cuda_device)
            table = self.token_table and TokenTable.open(self.token_table, unknown=self.unknown or "encode")
            bilm = self.model.open(files, state=self.state, token_table=table)
            form.check(bilm.num_layers)
            progress = Progress(self.progress, texts.count())
            yield texts, without_spare_weights(bilm.to(device)), progress


def embed_file(job: EmbedJob) -> None:
    """Embed the texts of files into a file of vectors, or a directory of shards, in this process."""
    target = job.output.target()
    with locked(target.path) as lock, job.opened(target.form) as (texts, bilm, progress):
        runner = ElmoEmbedder.from_bilm(bilm).runner(job.batch_size, form=target.form)
        write_corpus(texts, runner, target, resume=job.resume, progress=progress, lock=lock)


@dataclass(frozen=True)
class TableJob:
    """A run of `elmo-fast cache`. `vocabulary` is a file of words, or with `corpus` a text whose words are taken."""

    vocabulary: str
    output_file: str
    corpus: bool
    storage: str
    model: ModelChoice
    progress: bool


def write_table(job: TableJob) -> None:
    """Write the token table of a vocabulary; the same job resumes after an interruption."""
    check_target(job.output_file, "output file")
    with locked(job.output_file) as lock:
        with open_texts(job.vocabulary, allow_blank=True) if job.corpus else contextlib.nullcontext() as texts:
            files = job.model.files(job.output_file, texts.paths if job.corpus else [job.vocabulary])
            device = torch_device(job.model.cuda_device)
            vocabulary = corpus_words(text.tokens for text in texts) if job.corpus else job.vocabulary
        bilm = job.model.open(files).to(device)
        try:
            write_words(bilm, vocabulary, job.output_file, job.storage, job.progress, lock)
        except KeyboardInterrupt:
            raise KeyboardInterrupt("interrupted; the same command resumes from the partial table in "
                                    f"{job.output_file}.part") from None


def _words(path: str) -> frozenset[str]:
    try:
        return frozenset(Path(path).read_text(encoding="utf-8-sig").split())
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"--targets: expected UTF-8 text, got undecodable bytes in {path} ({error})"
                                 ) from error
