"""The subcommand `embed`."""

import logging

from elmo_fast import arguments
from elmo_fast.cli.flags import (
    FORMATS_HELP,
    MODEL_FILES,
    NUMERICS,
    SHARED,
    TEXTS,
    add_command,
    add_weights,
    at_least,
    pop_fields,
    say,
)
from elmo_fast.vectors.layouts.table import LAYOUTS, SUFFIXES
from elmo_fast.vectors.spec import POOLS

_READING = *(flag.removeprefix("--") for flag in TEXTS), "allow_blank"  # arguments of `open_texts`


def add_commands(commands) -> None:
    """Add the subcommand `embed`."""
    parser = add_command(commands, "embed", _embed, "embed a tokenized text, one sentence per line, and write the "
                         "vectors to a file", *MODEL_FILES, "--state", *NUMERICS, "--device", "--quiet")
    parser.epilog = ("Results are saved in OUTPUT.part every half minute. If the process is killed, run the same "
                     "command with --resume to continue.")
    add = parser.add_argument
    add("input_file", metavar="INPUT", help=f"UTF-8 text, tokens separated by spaces; {FORMATS_HELP}")
    add("output_file", metavar="OUTPUT", help=f"file that ends in {arguments.listed(SUFFIXES)} (only with --pool); "
        "a directory of files with --layout parquet or arrow and a name without suffix")
    layers = parser.add_mutually_exclusive_group()
    for name, meaning in (("all", "write every layer (default)"), ("top", "write the top layer"),
                          ("average", "write the mean of the layers")):
        layers.add_argument(f"--{name}", dest="layers", action="store_const", const=name, help=meaning)
    layers.add_argument("--layer", dest="layers", type=at_least(0), metavar="N", help="write layer N, from 0 (the "
                        "token layer)")
    add_weights(layers, "write a weighted sum of the layers: 0.2,0.3,0.5", dest="layers")
    size = arguments.DEFAULT_BATCH_SIZE
    add("--batch-size", type=at_least(1), help=f"sentences at a time, at most {arguments.MOST_SENTENCES:,} (default: "
        f"{size}; more where that is faster and --state not carry)")
    add("--resume", action="store_true", help="continue an interrupted run")
    add("--allow-blank", action="store_true", help="accept texts without tokens; their arrays are "
        "empty, or with --pool zeros")
    add("--token-table", metavar="FILE", help="read token vectors from a file written by cache")
    add("--unknown", choices=arguments.UNKNOWN, help="for a word outside the table: encode it, stop with an error, or "
        "use the vector of <UNK> (default: encode)")
    _add_formats(parser)
    add = parser.add_argument_group("other flags of `allennlp elmo`").add_argument
    add("--forget-sentences", action="store_true", help="do not write sentence_to_index")
    add("--use-sentence-keys", action="store_true", help="use sentences as keys in place of line numbers")
    add("--file-friendly-logging", action="store_true",
        help="report progress in lines, every ten seconds, even if stderr is a file")
    add("--include-package", action="append", default=[], metavar="PACKAGE",
        help="import a package and its modules first; repeatable")
    add("--vocab-path", metavar="FILE", help="ignored, as in AllenNLP 0.9")


def _add_formats(parser) -> None:
    add = parser.add_argument_group("formats").add_argument
    add("--layout", choices=LAYOUTS, help="layout of OUTPUT (default: by suffix; allennlp for HDF5)")
    add("--dtype", choices=arguments.STORAGES, default="float32", help="data type of the vectors (default: "
        "%(default)s)")
    add("--pool", choices=POOLS, help="write one vector per text")
    add("--targets", metavar="FILE", help="write only the vectors of the words in FILE, one word per line")
    for flag in TEXTS:
        add(flag, **SHARED[flag])


def _embed(vocab_path, include_package, file_friendly_logging, progress, layers, **flags) -> None:
    from elmo_fast.embed.jobs import ModelChoice, VectorOutput, embed_file
    from elmo_fast.text.readers import open_texts

    if vocab_path is not None:
        logging.getLogger(__name__).warning("--vocab-path: ignored, as in AllenNLP 0.9")
    if include_package:
        from elmo_fast.compat.allennlp.registry import import_submodules

        for name in include_package:
            import_submodules(name)
    flags["layers"] = "all" if layers is None else layers
    texts = open_texts(flags.pop("input_file"), **{name: flags.pop(name) for name in _READING})
    line = embed_file(texts, pop_fields(VectorOutput, flags), pop_fields(ModelChoice, flags),
                      progress="lines" if progress and file_friendly_logging else progress, **flags)
    if progress:
        say(line)
