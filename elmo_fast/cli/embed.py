"""The subcommand `embed`."""

import logging

from elmo_fast import arguments
from elmo_fast.cli.flags import FORMATS_HELP, MODEL_FILES, NUMERICS, add_command, at_least, taken, value_of
from elmo_fast.text.records import FORMATS
from elmo_fast.vectors.layouts.table import LAYOUTS, SUFFIXES
from elmo_fast.vectors.spec import POOLS


def add_commands(commands) -> None:
    """Add the subcommand to an argparse collection; it sets `run`, a function of the parsed arguments."""
    parser = add_command(commands, "embed", _embed, "embed a tokenized text, one sentence a line, into a file of "
                         "vectors", *MODEL_FILES, "--state", *NUMERICS, "--cuda-device", "--quiet")
    parser.epilog = ("Every half minute what is done is stored in OUTPUT.part; after a kill the same command with "
                     "--resume goes on from there.")
    add = parser.add_argument
    add("input_file", metavar="INPUT", help="UTF-8 text, tokens separated by spaces, or "
        f"{FORMATS_HELP}")
    add("output_file", metavar="OUTPUT", help=f"{', '.join(SUFFIXES)} (with --pool), or a directory of shards")
    layers = parser.add_mutually_exclusive_group(required=True)
    for name, meaning in (("all", "every layer"), ("top", "the top layer"), ("average", "the mean of the layers")):
        layers.add_argument(f"--{name}", dest="layers", action="store_const", const=name, help=meaning)
    factors = value_of(lambda text: tuple(map(float, text.split(","))), "numbers with commas between them", bool)
    layers.add_argument("--weights", dest="layers", type=factors, metavar="W,W,...", help="the sum of the layers, each "
                        "times its factor")
    size = arguments.DEFAULT_BATCH_SIZE
    add("--batch-size", type=at_least(1), help=f"sentences at a time, at most {arguments.MOST_SENTENCES:,} (default: "
        f"{size}; {2 * size} where that is faster)")
    add("--resume", action="store_true", help="continue an interrupted run")
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
    with_field = arguments.listed([row.title for row in FORMATS.values() if row.has_field], "and")
    add("--layout", choices=LAYOUTS, help="of OUTPUT; packed is HDF5 for many texts (default: by the suffix, "
        "AllenNLP's for HDF5)")
    add("--dtype", choices=arguments.STORAGES, default="float32", help="(default: %(default)s)")
    add("--pool", choices=POOLS, help="one vector a text")
    add("--targets", metavar="FILE", help="keep the vectors of these words alone, one a line")
    add("--format", choices=FORMATS, help="of INPUT (default: by the suffix)")
    add("--field", metavar="NAME", help=f"key or column of the texts in {with_field} (default: text)")
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


def _embed(vocab_path, include_package, file_friendly_logging, progress, ray, ray_workers, ray_cpus, ray_gpus,
           **flags) -> None:
    from elmo_fast.embed.jobs import EmbedJob, ModelChoice, TextInput, VectorOutput, embed_file

    if vocab_path is not None:
        logging.getLogger(__name__).warning("--vocab-path: not used, neither here nor by AllenNLP 0.9")
    _import_packages(include_package)
    job = EmbedJob(taken(TextInput, flags), taken(VectorOutput, flags), taken(ModelChoice, flags),
                   progress="lines" if progress and file_friendly_logging else progress, **flags)
    if ray:
        from elmo_fast.scale.run import Cluster, embed_file_on_ray

        embed_file_on_ray(job, Cluster(ray, ray_workers), ray_cpus, ray_gpus)
    else:
        embed_file(job)


def _import_packages(names: list[str]) -> None:
    if names:
        from elmo_fast.compat.allennlp.registry import import_submodules

        for name in names:
            import_submodules(name)
