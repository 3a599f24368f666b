"""SeqVec's functions and command: embeds the protein sequences of FASTA files. A residue is a token.

Names, batches and identifiers are those of SeqVec's script (Heinzinger et al. 2019, BMC Bioinformatics 20:723).
"""

import functools
import logging
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from elmo_fast.arguments import (
    SEQVEC_BATCH_SIZE,
    SEQVEC_LAYERS,
    STORAGES,
    check_choice,
    check_count,
    check_path,
    gathered,
    shown,
)
from elmo_fast.embed.jobs import summary
from elmo_fast.embed.progress import Progress, progress_bar
from elmo_fast.errors import ConfigurationError
from elmo_fast.files.lock import locked
from elmo_fast.text import fasta
from elmo_fast.text.readers import Text
from elmo_fast.vectors import layouts
from elmo_fast.vectors.layouts.arrays import WRITERS, write_arrays
from elmo_fast.vectors.layouts.table import layout_of, options_of
from elmo_fast.vectors.spec import OutputSpec, Selection, Target
from elmo_fast.weights.datasets import check_is_hdf5
from elmo_fast.weights.opening import ModelOptions
from elmo_fast.weights.sources import MODEL_NAMES, ModelFiles, find_model, is_name

if TYPE_CHECKING:
    from elmo_fast.compat.elmo_embedder import ElmoEmbedder
    from elmo_fast.embed.embedder import Embedder

_DEFAULT_DIRECTORY = "model"
_LAYERS = {"CNN": 0, "LSTM1": 1, "LSTM2": 2}

logger = logging.getLogger(__name__)


def get_elmo_model(model_dir: str | os.PathLike | None, cpu: bool, *, device: str | None = None,
                   **arguments) -> "ElmoEmbedder":
    """Load the model in a directory or archive, or of a name or URL (see `find_model`), on the first GPU unless `cpu`.

    None is the directory `model` if it exists. If it does not, and for an empty directory, the published model is
    downloaded into the cache. `FileNotFoundError` for another path that does not exist. `arguments` are keyword
    arguments of `ElmoEmbedder`, and `device`, in place of `cpu`, as in `load`.
    """
    files = _find(model_dir)
    from elmo_fast.compat.elmo_embedder import ElmoEmbedder
    from elmo_fast.ops.device import available_device

    index = available_device("cpu" if cpu else device).index
    return ElmoEmbedder(files.options_file, files.weight_file, -1 if index is None else index, **arguments)


def _open(model_dir: str | os.PathLike | None, cpu: bool, device: str | None = None,
          opening: ModelOptions | None = None, **arguments) -> "Embedder":
    """As `get_elmo_model`, without torch on the CPU."""
    files = _find(model_dir)
    from elmo_fast.embed.opening import default_device, open_embedder

    check_is_hdf5(files)
    device = "cpu" if cpu else device or default_device()
    return open_embedder(files, gathered(ModelOptions, arguments, opening), device)


def _find(model_dir: str | os.PathLike | None) -> ModelFiles:
    name = _DEFAULT_DIRECTORY if model_dir is None else check_path("model", model_dir)
    folder = Path(name)
    if (model_dir is None and not folder.exists()) or (folder.is_dir() and not any(folder.iterdir())):
        logger.info("no options.json and weights in %s: using the published SeqVec model", folder)
        return find_model("seqvec")
    if not folder.exists() and not is_name(name):
        raise FileNotFoundError(f"model: expected a directory or an archive, or one of {', '.join(MODEL_NAMES)}, found "
                                f"nothing at {name}; --model seqvec downloads the published model")
    return find_model(name)


@functools.lru_cache(maxsize=1)
def _cpu_model(model_dir: str | os.PathLike | None, **arguments) -> "Embedder":
    return _open(model_dir, cpu=True, **arguments)


def read_fasta(sequences: dict[str, str], fasta_path: str | os.PathLike, split_char: str, id_field: int) -> None:
    """Add the sequences of a FASTA file, in upper case, to the dictionary `sequences` by identifier.

    The identifier is field `id_field` of the header split at `split_char`, or the whole header for -1.
    `ConfigurationError` for a missing field, and for an identifier that is empty or occurs twice.
    """
    for identifier, record in _records([fasta_path], split_char, id_field, sequences):
        sequences[identifier] = record.sequence


def read_fasta_file(seq_dir: str | os.PathLike, split_char: str, id_field: int) -> dict[str, str]:
    """Read sequences by identifier from a FASTA file, also `.gz`, or from all files below a directory.

    In a directory, files with `fasta` in their names are read.
    """
    records = _records(_fasta_files(seq_dir), split_char, id_field)
    return {identifier: record.sequence for identifier, record in records}


def _fasta_files(seq_dir: str | os.PathLike) -> list[Path]:
    root = Path(check_path("input", seq_dir))
    if not root.exists():
        raise FileNotFoundError(f"input: expected a FASTA file or a directory of them, found nothing at {root}")
    paths = sorted(path for path in root.glob("**/*fasta*") if path.is_file()) if root.is_dir() else [root]
    if not paths:
        raise ConfigurationError(f"input: expected files with fasta in their name, found none below {root}")
    return paths


def _records(paths: Iterable[str | os.PathLike], split_char: str, id_field: int,
             known: Iterable[str] = ()) -> Iterator[tuple[str, fasta.FastaRecord]]:
    """Identifiers, none in `known`, and records with sequences in upper case; errors are those of `read_fasta`."""
    if not split_char and id_field != -1:
        raise ConfigurationError("split_char: expected at least one character, got ''")
    taken = set(known)
    for path in paths:
        for header, sequence in fasta.read_fasta(path):
            header = header.replace(">", "")
            fields = [header] if id_field == -1 else header.split(split_char)
            if not -len(fields) <= id_field < len(fields):
                raise ConfigurationError(f"id: expected a field of the header split at {split_char!r}, got number "
                                         f"{id_field} of {header!r:.60} in {path}; -1 takes the whole header, 0 "
                                         "its first field (--id 0 --split-char ' ': its first word)")
            identifier = fields[id_field]
            if not identifier.strip("/. "):
                raise ConfigurationError(f"id: expected an identifier, got {identifier!r} from {header!r:.60} in "
                                         f"{path}")
            if identifier in taken:
                raise ConfigurationError(f"FASTA file: expected different identifiers, got {identifier!r:.60} twice "
                                         f"(the second time in {path})")
            taken.add(identifier)
            yield identifier, fasta.FastaRecord(header, sequence.upper())


def process_embedding(embedding: np.ndarray, per_protein: bool, layer: str) -> np.ndarray:
    """Reduce layers [layers, L, 2 P] to [L, 2 P] for `sum` or a layer, [L, layers * 2 P] for `all`.

    With `per_protein` the result is the mean over L.
    """
    check_choice("layer", layer, SEQVEC_LAYERS, ConfigurationError)
    if layer == "sum":
        embedding = embedding.sum(axis=0)
    elif layer == "all":
        embedding = np.concatenate(list(embedding), axis=1)
    elif _LAYERS[layer] < len(embedding):
        embedding = embedding[_LAYERS[layer]]
    else:
        raise ConfigurationError(f"layer: expected a layer of a model that has {len(embedding)}, got {shown(layer)}")
    return embedding.mean(axis=0) if per_protein else embedding


def embed_with_fallback(batch: list[tuple[str, str]], model: "Embedder",
                        model_dir: str | os.PathLike) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the identifier and layers [layers, L, 2 P] of every (identifier, sequence) in a batch.

    If the batch fails, its sequences run one by one; a sequence that fails on the GPU then runs on the CPU. Fallbacks
    are logged as errors in SeqVec's words; the last error is raised. `model` may be any object with `embed_batch` and
    `embed_sentence`.
    """
    try:
        arrays = model.embed_batch([list(sequence) for _, sequence in batch])
    except RuntimeError as error:
        logger.error("Error processing batch of %d sequences: %s", len(batch), error)
        logger.error("Sequences in the failing batch: %s", [identifier for identifier, _ in batch])
        logger.error("Starting single sequence processing")
        arrays = (_embed_alone(*item, model, model_dir) for item in batch)
    yield from zip((identifier for identifier, _ in batch), arrays, strict=True)


def get_embeddings(seq_dir: str | os.PathLike, model_dir: str | os.PathLike, split_char: str = "|", id_field: int = 1,
                   cpu: bool = False, layer: str = "sum", batchsize: int = SEQVEC_BATCH_SIZE,
                   per_protein: bool = False, *, progress: bool = True,
                   **arguments) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the identifier and embedding (see `process_embedding`) of every sequence, shortest first.

    A batch ends when it has more than `batchsize` residues, or after a sequence longer than half of `batchsize`. Input
    and model (`arguments` are fields of `ModelOptions`) are read when the iteration starts.
    """
    check_count("batchsize", batchsize)
    check_choice("layer", layer, SEQVEC_LAYERS, ConfigurationError)

    def embeddings():
        ordered = _sorted_by_length(read_fasta_file(seq_dir, split_char, id_field).items())
        model = _open(model_dir, cpu, **arguments)
        with progress_bar(len(ordered), "sequences", progress) as bar:
            for batch in _batches(ordered, batchsize):
                for identifier, layers in embed_with_fallback(batch, model, model_dir):
                    yield identifier, process_embedding(layers, per_protein, layer)
                    bar.update()

    return embeddings()


def save_from_generator(emb_path: str | os.PathLike, per_protein: bool,
                        the_generator: Iterable[tuple[str, np.ndarray]]) -> None:
    """Write (identifier, array) pairs with `write_arrays` to `.h5`, `.hdf5`, `.npz` or, for `per_protein`, `.npy`."""
    _check_output(emb_path, per_protein)
    write_arrays(emb_path, the_generator)


@dataclass(frozen=True)
class FastaOptions(ModelOptions):
    """How `embed_fasta` opens its model, on a `device` as in `load`, and writes its file.

    `dtype` is `float32` or `float16`. With `resume` a run continues after the batches that an interrupted run has saved
    (see `write_corpus`).
    """

    device: str | None = None
    dtype: str = "float32"
    progress: bool = True
    resume: bool = False


def embed_fasta(input_path: str | os.PathLike, output_path: str | os.PathLike, model_dir: str | os.PathLike | None,
                per_protein: bool = False, split_char: str = "|", id_field: int = 1, cpu: bool = False,
                layer: str = "sum", batchsize: int = SEQVEC_BATCH_SIZE, **options) -> str:
    """Run SeqVec's command: write the embeddings of `get_embeddings` to a file, as `save_from_generator` does.

    `options` are fields of `FastaOptions`. Returns a line that says what was written.
    """
    options = gathered(FastaOptions, options)
    _check_output(output_path, per_protein)
    check_count("batchsize", batchsize)
    form = _SeqVecSpec(layer=check_choice("layer", layer, SEQVEC_LAYERS, ConfigurationError), per_protein=per_protein,
                       dtype=check_choice("dtype", options.dtype, STORAGES, ConfigurationError))
    with locked(output_path) as part:
        ordered = _sorted_by_length((identifier, record.sequence, next(iter(record.header.split()), identifier))
                                    for identifier, record in _records(_fasta_files(input_path), split_char, id_field))
        model = _open(model_dir, cpu, options.device, options)
        from elmo_fast.embed.embedder import Runner
        from elmo_fast.embed.run import write_corpus

        def run(groups: Iterator[list[Text]]) -> Iterator[np.ndarray]:
            for group in groups:
                batch = [(text.key, "".join(text.tokens)) for text in group]
                for _, layers in embed_with_fallback(batch, model, model_dir):
                    yield layers

        layout = layout_of(output_path)
        target = Target(output_path, layout, form, options_of(layout, forget_sentences=True, original_ids=True))
        runner = Runner(model, lambda texts: _batches(texts, batchsize, 2), run, {"batchsize": batchsize}, model.state)
        # bio_embeddings' name of a sequence is stored beside its vectors.
        texts = (Text(identifier, name, list(sequence)) for identifier, sequence, name in ordered)
        written = write_corpus(texts, runner, target, resume=options.resume, lock=part,
                               progress=Progress(options.progress, len(ordered), "sequences"))
    return summary(target, written, model.model)


@dataclass(frozen=True)
class _SeqVecSpec(OutputSpec):
    """The output spec of `process_embedding`."""

    layer: str = "sum"
    per_protein: bool = False

    def apply(self, vectors: np.ndarray, tokens: Sequence[str]) -> Selection:
        return Selection(process_embedding(vectors, self.per_protein, self.layer), None)

    def shape_in_words(self, num_layers: int, width: int) -> str:
        tokens = [] if self.per_protein else ["residues"]
        return f"[{', '.join([*tokens, str(width * (num_layers if self.layer == 'all' else 1))])}]"

    def describe(self) -> dict:
        return {**super().describe(), "layers": self.layer, "pool": "mean" if self.per_protein else None}


def _check_output(path: str | os.PathLike, per_protein: bool) -> None:
    """Raise `ConfigurationError` or `OSError` if the output cannot be written; `.npy` needs `per_protein`."""
    if Path(check_path("output", path)).suffix not in WRITERS:
        raise ConfigurationError(f"output: expected a file that ends in {', '.join(WRITERS)}, got {os.fspath(path)}")
    layouts.check_output(layout_of(path), path, OutputSpec("average", "mean" if per_protein else None))


def _sorted_by_length(sequences: Iterable[tuple[str, ...]]) -> list[tuple[str, ...]]:
    ordered = sorted(sequences, key=lambda item: len(item[1]))
    logger.info("%d sequences", len(ordered))
    return ordered


def _embed_alone(identifier: str, sequence: str, model: "Embedder", model_dir) -> np.ndarray:
    try:
        return model.embed_sentence(list(sequence))
    except RuntimeError as error:
        device = getattr(getattr(model, "model", None), "device", None)
        if getattr(model, "cuda_device", -1 if str(device) == "cpu" else 0) < 0:
            raise
        logger.error("RuntimeError for %s with %d residues: %s", identifier, len(sequence), error)
        logger.error("Single sequence processing failed. Switching to CPU now. This slows down the embedding process.")
        settings = {}
        if hasattr(model, "state"):  # whose weights with NaN were refused or allowed when it was read
            settings = {"state": model.state, "precision": model.model.precision, "allow_nonfinite": True}
        return _cpu_model(model_dir, **settings).embed_sentence(list(sequence))


def _batches(ordered: Iterable[tuple], batchsize: int, place: int = 1) -> Iterator[list]:
    """Group tuples with their residues at `place` into batches as `get_embeddings` describes."""
    batch, residues = [], 0
    for item in ordered:
        batch.append(item)
        residues += len(item[place])
        if residues > batchsize or 2 * len(item[place]) > batchsize:
            yield batch
            batch, residues = [], 0
    if batch:
        yield batch


if __name__ == "__main__":
    sys.exit("seqvec: expected `elmo-fast seqvec`, which has SeqVec's flags; this module only provides functions")
