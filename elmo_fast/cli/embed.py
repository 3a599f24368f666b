"""The subcommands `embed`, `cache`, `info`, `models`, `doctor`, `seqvec` and `bench`."""

import contextlib
import functools
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from elmo_fast import arguments
from elmo_fast.cli.flags import NUMERICS, add_command, at_least, value_of
from elmo_fast.errors import ConfigurationError
from elmo_fast.files.atomic import check_target
from elmo_fast.files.lock import locked
from elmo_fast.model.sources import DEFAULT_MODEL, ModelFiles, find_model

if TYPE_CHECKING:
    from elmo_fast.embed.run import Target  # imports torch: the help of the command needs none

_FILES = "--model", "--options-file", "--weight-file"


def add_commands(commands) -> None:
    """Add the subcommands to an argparse collection; each sets `run`, a function of the parsed arguments."""
    _add_embed(commands)
    parser = add_command(commands, "cache", _cache, "encode the words of a vocabulary once, into a token table for "
                         "embed", *_FILES, *NUMERICS, "--cuda-device", "--quiet")
    parser.epilog = ("After an interruption the same command resumes. embed refuses a table of a lower precision than "
                     "its own.")
    add = parser.add_argument
    add("vocabulary", metavar="VOCAB", help="vocabulary file, one word a line, with <S> and </S>")
    add("output_file", metavar="OUT", help="HDF5 file")
    add("--corpus", action="store_true", help="VOCAB is a text (INPUT of embed): cache every word of it")
    add("--storage", choices=arguments.STORAGES, default="float32", help="(default: %(default)s)")
    add_command(commands, "info", _info, "print a model's layers, sizes and parameters", "model", *_FILES[1:],
                NUMERICS[2])
    add_command(commands, "models", "elmo_fast.model.sources:public_model_lines",
                "list the public models that can be named")
    add_command(commands, "doctor", "elmo_fast.ops.doctor:report", "print versions, processor, GPU, and the backend of "
                "every operation")


def _add_embed(commands) -> None:
    parser = add_command(commands, "embed", _embed, "embed a tokenized text, one sentence a line, into a file of "
                         "vectors", *_FILES, "--state", *NUMERICS, "--cuda-device", "--quiet")
    parser.epilog = ("Every half minute what is done is stored in OUTPUT.part; after a kill the same command with "
                     "--resume goes on from there.")
    add = parser.add_argument
    add("input_file", metavar="INPUT", help="UTF-8 text, tokens separated by spaces, or by its suffix CoNLL-U, FASTA, "
        "JSON lines or Parquet, also compressed; a glob; - is stdin")
    add("output_file", metavar="OUTPUT", help=".hdf5 or .h5, .parquet, .arrow, .npz, .npy with --pool, or a directory "
        "of shards")
    layers = parser.add_mutually_exclusive_group(required=True)
    for name, meaning in (("all", "every layer"), ("top", "the top layer"), ("average", "the mean of the layers")):
        layers.add_argument(f"--{name}", dest="layers", action="store_const", const=name, help=meaning)
    factors = value_of(lambda text: tuple(map(float, text.split(","))), "numbers with commas between them", bool)
    layers.add_argument("--weights", dest="layers", type=factors, metavar="W,W,...", help="the sum of the layers, each "
                        "times its factor")
    size = arguments.DEFAULT_BATCH_SIZE
    add("--batch-size", type=at_least(1), help=f"sentences at a time, at most {arguments.MOST_SENTENCES:,} (default: "
        f"{size}; {2 * size} where that is faster)")
    add("--resume", action="store_true", help="go on with what a run that did not end has left")
    add("--allow-blank", action="store_true", help="give texts without tokens arrays without tokens")
    add("--token-table", metavar="FILE", help="take token vectors from a file that cache wrote")
    add("--unknown", choices=arguments.UNKNOWN, help="a word outside the table gets its own vector, raises an error, "
        "or gets the vector of <UNK> (default: encode)")
    _add_formats(parser)
    add = parser.add_argument_group("further flags of `allennlp elmo`").add_argument
    add("--forget-sentences", action="store_true", help="leave out sentence_to_index")
    add("--use-sentence-keys", action="store_true", help="sentences as keys, in place of line numbers")
    add("--file-friendly-logging", action="store_true",
        help="progress as lines, every ten seconds, also where stderr is a file")
    add("--include-package", action="append", default=[], metavar="PACKAGE",
        help="import a package and its modules first; repeatable")
    add("--vocab-path", metavar="FILE", help="not used, neither here nor by AllenNLP 0.9")
    _add_ray(parser)


def _add_formats(parser) -> None:
    add = parser.add_argument_group("formats").add_argument
    add("--layout", choices=arguments.LAYOUTS, help="of OUTPUT; packed is HDF5 for many texts (default: by the suffix, "
        "AllenNLP's for HDF5)")
    add("--dtype", choices=arguments.STORAGES, default="float32", help="(default: %(default)s)")
    add("--pool", choices=arguments.POOLS, help="one vector a text")
    add("--targets", metavar="FILE", help="keep the vectors of these words alone, one a line")
    add("--format", choices=arguments.FORMATS, help="of INPUT (default: by the suffix)")
    add("--field", metavar="NAME", help="key or column of the texts in JSON lines and Parquet (default: text)")
    add("--tokenizer", default="whitespace", metavar="NAME", help=f"{', '.join(arguments.TOKENIZERS)} or "
        "package.module:function (default: %(default)s)")


def _add_ray(parser) -> None:
    add = parser.add_argument_group("many machines, with Ray").add_argument
    add("--ray", nargs="?", const="local", metavar="ADDRESS", help="embed on the workers of a Ray cluster, by default "
        "of this machine alone, into a new directory of shards, with --state zero or warm; the last flag, or with an "
        "address")
    add("--ray-workers", type=at_least(1), metavar="N", help="workers (default: as many as there is room for)")
    add("--ray-cpus", type=at_least(1), default=1, metavar="N", help="threads of a worker (default: %(default)s)")
    add("--ray-gpus", type=at_least(0), default=0, metavar="N", help="GPUs of a worker (default: %(default)s)")


def add_seqvec(commands) -> None:
    """Add the subcommand `seqvec`, with SeqVec's flags."""
    parser = add_command(commands, "seqvec", "elmo_fast.compat.seqvec:embed_fasta", "embed the protein sequences of "
                         "FASTA files, with SeqVec's flags", "--state", *NUMERICS)
    parser.epilog = "SeqVec carries states; with zero and warm a sequence's vectors depend on the sequence alone."
    add = parser.add_argument
    add("-i", "--input", dest="input_path", required=True, type=Path, metavar="FASTA", help="FASTA file (.gz too), or "
        "a directory, of which every file with fasta in its name is read")
    add("-o", "--output", dest="output_path", required=True, type=Path, metavar="FILE", help=".h5, a dataset a "
        "sequence; .npz; or .npy with a .json of identifiers beside it (with --protein)")
    add("--model", dest="model_dir", type=Path, default=Path("model"), metavar="DIRECTORY", help="directory with "
        "weights.hdf5 and options.json; without them the published model is fetched (default: ./model)")
    switch = value_of(lambda text: ("false", "true").index(text.lower()) == 1, "True or False", lambda _: True)
    add("--protein", dest="per_protein", nargs="?", type=switch, const=True, default=False, metavar="True|False",
        help="one vector a protein: the mean over its residues")
    add("--batchsize", type=int, default=arguments.SEQVEC_BATCH_SIZE, metavar="RESIDUES",
        help="residues that complete a batch (default: %(default)s)")
    add("--split-char", "--split_char", default="|", metavar="C", help="splits headers into fields (default: |)")
    add("--id", type=int, default=1, metavar="N", dest="id_field", help="number of the field, from 0, that identifies "
        "a sequence; -1 takes the whole header (default: %(default)s)")
    add("--cpu", nargs="?", type=switch, const=True, default=False, metavar="True|False", help="use the CPU where "
        "there is a GPU")
    add("--layer", choices=arguments.SEQVEC_LAYERS, default="sum", help="sum of the layers, all of them side by side, "
        "or a single layer (default: %(default)s)")
    add("--resume", action="store_true", help="go on with what a run that did not end has left")
    add("--silent", dest="progress", action="store_false", help="no progress bar")


def add_bench(commands) -> None:
    """Add the subcommand `bench`."""
    parser = add_command(commands, "bench", "elmo_fast.bench.run:command", "measure speed, latency and memory of a "
                         "model on this machine, in about half a minute", "--model", "--precision", model=DEFAULT_MODEL)
    parser.epilog = "Every way to run the model is compared with the reference path before it is timed."
    add = parser.add_argument
    add("--device", metavar="NAME", help="cpu, cuda, cuda:1 (default: the first GPU where there is one)")
    add("--json", dest="json_file", metavar="FILE", help="write all figures, with the machine, into FILE")
    add("--plot", dest="plot_file", metavar="FILE", help="draw them (.png, .svg, .pdf; elmo-fast[plots])")
    add("--seconds", type=value_of(float, "a number of at least 1", lambda value: 1 <= value < 3600), default=30.0,
        help="about how long to measure (default: %(default)s)")


def _embed(input_file, output_file, cuda_device, token_table, unknown, file_friendly_logging, include_package,
           vocab_path, progress, model, options_file, weight_file, state, precision, backend, allow_nonfinite,
           batch_size, resume, allow_blank, format, field, tokenizer, ray, ray_workers, ray_cpus, ray_gpus,
           **form) -> None:
    from elmo_fast.embed.embedder import ElmoEmbedder, torch_device
    from elmo_fast.embed.progress import Progress
    from elmo_fast.embed.run import write_corpus
    from elmo_fast.model.manylangs import open_bilm
    from elmo_fast.model.token_table.table import TokenTable
    from elmo_fast.text.readers import open_texts

    if unknown and not token_table:
        raise ConfigurationError(f"--unknown: expected --token-table beside it, got {unknown} alone")
    if vocab_path is not None:
        logging.getLogger(__name__).warning("--vocab-path: not used, neither here nor by AllenNLP 0.9")
    if include_package:
        from elmo_fast.compat.allennlp.registry import import_submodules

        for package in include_package:
            import_submodules(package)
    if ray and form["layout"] is None:
        form["layout"] = "parquet"
    target = _target(output_file, **form)
    write_on_ray = ray and _ray_writer(target, state, batch_size, resume, cuda_device, ray, ray_workers, ray_cpus,
                                       ray_gpus)
    with locked(output_file, reserve=True), open_texts(input_file, format=format, field=field, tokenizer=tokenizer,
                                                       allow_blank=allow_blank) as texts:
        files = _files(output_file, [*texts.paths, token_table], model, options_file, weight_file)
        device = torch_device(cuda_device)
        table = token_table and TokenTable.open(token_table, unknown=unknown or "encode")
        bilm = open_bilm(files, state=state, precision=precision, backend=backend, token_table=table,
                         allow_nonfinite=allow_nonfinite)
        target.form.check(bilm.num_layers)
        progress = Progress("lines" if progress and file_friendly_logging else progress, texts.count())
        if write_on_ray:
            write_on_ray(texts, bilm, progress=progress)
        else:
            embedder = ElmoEmbedder.from_bilm(bilm.to(device))
            write_corpus(texts, embedder.runner(batch_size, target.form), target, resume=resume, progress=progress)


def _words(path: str) -> frozenset[str]:
    try:
        return frozenset(Path(path).read_text(encoding="utf-8-sig").split())
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"--targets: expected UTF-8 text, got undecodable bytes in {path} ({error})"
                                 ) from error


def _target(output_file, layout, layers, pool, dtype, targets, forget_sentences, use_sentence_keys) -> "Target":
    from elmo_fast.embed.run import Target
    from elmo_fast.vectors import layouts
    from elmo_fast.vectors.form import Form

    words = targets and _words(arguments.check_file("--targets", targets))
    form, layout = Form(layers, pool, dtype, words), layouts.layout_of(output_file, layout)
    layouts.check_output(layout, output_file, form, "output file")
    options = {"forget_sentences": forget_sentences, "use_sentence_keys": use_sentence_keys}
    if layout != "allennlp" and any(options.values()):
        raise ConfigurationError("--forget-sentences, --use-sentence-keys: expected AllenNLP's layout beside them, got "
                                 f"{layout}")
    return Target(output_file, layout, form, options if layout == "allennlp" else {})


def _ray_writer(target: "Target", state: str, batch_size: int | None, resume: bool, cuda_device: int, address: str,
                workers: int | None, cpus: int, gpus: int) -> Callable[..., None]:
    """What writes a target with Ray, a function of texts, model and progress; refuses flags of one process alone."""
    from elmo_fast.scale import Cluster
    from elmo_fast.scale.run import embed_on_ray
    from elmo_fast.scale.workers import Settings

    if resume:
        raise ConfigurationError("--resume: expected a run without --ray, which replaces killed workers itself")
    if cuda_device >= 0:
        raise ConfigurationError(f"--cuda-device: expected --ray-gpus in its place with --ray, got {cuda_device}")
    settings = Settings(target.form, state, batch_size, cpus, gpus)
    return functools.partial(embed_on_ray, target=target, settings=settings, cluster=Cluster(address, workers))


def _cache(vocabulary, output_file, corpus, storage, cuda_device, progress, precision, backend, allow_nonfinite,
           **names) -> None:
    from elmo_fast.embed.build_table import corpus_words, write_token_table
    from elmo_fast.embed.embedder import torch_device
    from elmo_fast.model.manylangs import open_bilm
    from elmo_fast.text.readers import open_texts

    check_target(output_file, "output file")
    with locked(output_file, reserve=True):
        with open_texts(vocabulary, allow_blank=True) if corpus else contextlib.nullcontext() as texts:
            files = _files(output_file, texts.paths if corpus else [vocabulary], **names)
            device = torch_device(cuda_device)
            vocabulary = corpus_words(text.tokens for text in texts) if corpus else vocabulary
        bilm = open_bilm(files, precision=precision, backend=backend, allow_nonfinite=allow_nonfinite).to(device)
        try:
            write_token_table(bilm, vocabulary, output_file, storage=storage, progress=progress)
        except KeyboardInterrupt:
            raise KeyboardInterrupt("interrupted; the same command resumes from the partial table in "
                                    f"{output_file}.part") from None


def _info(allow_nonfinite, **names) -> list[str]:
    from elmo_fast.model.describe import describe

    if all(name is None for name in names.values()):
        raise ConfigurationError("model: expected MODEL, or --options-file and --weight-file; got neither")
    return [f"{name + ':':24}{value}" for name, value in describe(find_model(**names), allow_nonfinite).items()]


def _files(output: str, inputs: list[str | None], model, options_file, weight_file) -> ModelFiles:
    """The model's files; refuses an output that is a file of the model or of the inputs."""
    model = DEFAULT_MODEL if model is options_file is weight_file is None else model
    files = find_model(model, options_file=options_file, weight_file=weight_file)
    output = arguments.local_path(output)
    for path in (*inputs, files.options_file, files.weight_file):
        path = path and arguments.local_path(path)
        if path and os.path.exists(output) and os.path.exists(path) and os.path.samefile(output, path):
            raise ConfigurationError(f"output file: expected a file other than the inputs, got {output}")
    return files
