"""The subcommands `embed`, `cache`, `info`, `doctor`, `score` and `substitutes`."""

import argparse
import logging
import os
import sys
from typing import IO

from elmo_fast.choices import DEFAULT_BATCH_SIZE, DIRECTIONS, STORAGES, UNKNOWN
from elmo_fast.cli.flags import add_command, at_least
from elmo_fast.model.atomic_file import check_target
from elmo_fast.model.options import ConfigurationError
from elmo_fast.model.sources import DEFAULT_MODEL, ModelFiles, find_model

logger = logging.getLogger(__name__)

_FILES = "--model", "--options-file", "--weight-file"
_NUMERICS = "--precision", "--backend"
_HEAD = "--model", "--state", *_NUMERICS


def add_commands(commands) -> None:
    """Add the subcommands to an argparse collection; each sets `run`, a function of the parsed arguments."""
    _add_embed(commands)
    _add_cache(commands)
    add_command(commands, "info", _info, "print a model's layers, sizes and parameters", "MODEL", *_FILES[1:])
    add_command(commands, "doctor", _doctor, "print versions, processor, GPU, and the backend of every operation")
    _add_score(commands)
    _add_substitutes(commands)


def _add_embed(commands) -> None:
    embed = add_command(commands, "embed", _embed, "embed a tokenized text, one sentence a line, into an HDF5 file",
                        *_FILES, "--state", *_NUMERICS, "--cuda-device", "--quiet")
    embed.add_argument("input_file", metavar="INPUT", help="text file, UTF-8, tokens separated by spaces; - is stdin")
    embed.add_argument("output_file", metavar="OUTPUT", help="HDF5 file, one dataset a sentence")
    layers = embed.add_mutually_exclusive_group(required=True)
    for name, meaning in (("all", "every layer"), ("top", "the top layer"), ("average", "the mean of the layers")):
        layers.add_argument(f"--{name}", dest="layers", action="store_const", const=name, help=meaning)
    embed.add_argument("--batch-size", type=at_least(1), default=DEFAULT_BATCH_SIZE,
                       help="sentences at a time (default: %(default)s)")
    embed.add_argument("--forget-sentences", action="store_true", help="leave out sentence_to_index")
    embed.add_argument("--use-sentence-keys", action="store_true", help="sentences as keys, in place of line numbers")
    embed.add_argument("--allow-blank", action="store_true", help="give blank lines datasets without tokens")
    embed.add_argument("--token-table", metavar="FILE", help="take token vectors from a file that cache wrote")
    embed.add_argument("--unknown", choices=UNKNOWN, help="a word outside the table gets its own vector, raises an "
                       "error, or gets the vector of <UNK> (default: encode)")
    old = embed.add_argument_group("further flags of `allennlp elmo`")
    old.add_argument("--file-friendly-logging", action="store_true",
                     help="progress as lines, every ten seconds, also where stderr is a file")
    old.add_argument("--include-package", action="append", default=[], metavar="PACKAGE",
                     help="import a package and its modules first; repeatable")
    old.add_argument("--vocab-path", metavar="FILE", help="not used, neither here nor by AllenNLP 0.9")


def _add_cache(commands) -> None:
    cache = add_command(commands, "cache", _cache, "encode the words of a vocabulary once, into a token table for "
                        "embed", *_FILES, *_NUMERICS, "--cuda-device", "--quiet")
    cache.epilog = ("After an interruption the same command resumes. embed refuses a table of a lower precision than "
                    "its own.")
    cache.add_argument("vocabulary", metavar="VOCAB", help="vocabulary file, one word a line, with <S> and </S>")
    cache.add_argument("output_file", metavar="OUT", help="HDF5 file")
    cache.add_argument("--corpus", action="store_true", help="VOCAB is a tokenized text, one sentence a line: cache "
                       "every word of it")
    cache.add_argument("--storage", choices=STORAGES, default="float32", help="(default: %(default)s)")


def _add_score(commands) -> None:
    score = add_command(commands, "score", _score, "print log-probabilities of the sentences of a text, in both "
                        "directions", *_HEAD, model=DEFAULT_MODEL, state="warm")
    _add_head(score)
    score.add_argument("--tokens", action="store_true", help="a line for each token")


def _add_substitutes(commands) -> None:
    substitutes = add_command(commands, "substitutes", _substitutes, "print the likeliest words in place of each token "
                              "of a text", *_HEAD, model=DEFAULT_MODEL, state="warm")
    _add_head(substitutes)
    substitutes.add_argument("--top", type=int, default=10, metavar="K", help="words a token (default: %(default)s)")
    substitutes.add_argument("--word", action="append", metavar="WORD", help="only in place of WORD; repeatable")
    substitutes.add_argument("--direction", choices=DIRECTIONS, default="both", help="(default: %(default)s)")


def _add_head(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("input_file", metavar="INPUT", help="UTF-8 text, one tokenized sentence a line; - is stdin")
    parser.add_argument("--softmax-file", metavar="FILE", help="HDF5 softmax, as export --softmax writes it (default: "
                        "softmax.hdf5 beside the weights)")
    parser.add_argument("--vocab-file", metavar="FILE", help="its vocabulary (default: vocab.txt beside the weights)")


def _embed(parsed: argparse.Namespace) -> None:
    from elmo_fast.embed.embedder import ElmoEmbedder, torch_device
    from elmo_fast.model.bilm import BiLm
    from elmo_fast.model.token_table.table import TokenTable

    check_target(parsed.output_file, "output file")
    if parsed.unknown and not parsed.token_table:
        raise ConfigurationError(f"--unknown: expected --token-table beside it, got {parsed.unknown} alone")
    _apply_allennlp_flags(parsed)
    with _open(parsed.input_file) as input_file:
        files = _files(parsed, DEFAULT_MODEL)
        _check_apart(parsed.output_file, parsed.input_file, files.options_file, files.weight_file, parsed.token_table)
        device = torch_device(parsed.cuda_device)
        table = parsed.token_table and TokenTable.open(parsed.token_table, unknown=parsed.unknown or "encode")
        bilm = BiLm.from_model(files, state=parsed.state, precision=parsed.precision, backend=parsed.backend,
                               token_table=table)
        progress = "lines" if parsed.file_friendly_logging and not parsed.quiet else not parsed.quiet
        ElmoEmbedder.from_bilm(bilm.to(device)).embed_file(
            input_file, parsed.output_file, parsed.layers, parsed.batch_size, parsed.forget_sentences,
            parsed.use_sentence_keys, allow_blank=parsed.allow_blank, progress=progress)


def _apply_allennlp_flags(parsed: argparse.Namespace) -> None:
    if parsed.vocab_path is not None:
        logger.warning("--vocab-path: not used, neither here nor by AllenNLP 0.9")
    if parsed.include_package:
        from elmo_fast.compat.allennlp.registry import import_submodules

        for package in parsed.include_package:
            import_submodules(package)


def _cache(parsed: argparse.Namespace) -> None:
    from elmo_fast.embed.embedder import torch_device
    from elmo_fast.embed.files import read_lines
    from elmo_fast.model.bilm import BiLm
    from elmo_fast.model.token_table.build import corpus_words, write_token_table

    check_target(parsed.output_file, "output file")
    files = _files(parsed, DEFAULT_MODEL)
    _check_apart(parsed.output_file, parsed.vocabulary, files.options_file, files.weight_file)
    device = torch_device(parsed.cuda_device)
    vocabulary = parsed.vocabulary
    if parsed.corpus:
        with _open(parsed.vocabulary) as file:
            vocabulary = corpus_words(line.tokens for line in read_lines(file, allow_blank=True))
    bilm = BiLm.from_model(files, precision=parsed.precision, backend=parsed.backend).to(device)
    try:
        write_token_table(bilm, vocabulary, parsed.output_file, storage=parsed.storage, progress=not parsed.quiet)
    except KeyboardInterrupt:
        raise KeyboardInterrupt("interrupted; the same command resumes from the partial table in "
                                f"{parsed.output_file}.part") from None


def _info(parsed: argparse.Namespace) -> None:
    from elmo_fast.model.weights import describe

    for name, value in describe(_files(parsed)).items():
        print(f"{name + ':':24}{value}")


def _doctor(parsed: argparse.Namespace) -> None:
    from elmo_fast.ops.doctor import report

    print("\n".join(report()))


def _score(parsed: argparse.Namespace) -> None:
    from elmo_fast.embed.scoring import score_lines

    with _open(parsed.input_file) as file:
        for line in score_lines(_head(parsed), file, parsed.tokens):
            print(line)


def _substitutes(parsed: argparse.Namespace) -> None:
    from elmo_fast.embed.scoring import substitute_lines

    words = frozenset(parsed.word) if parsed.word else None
    with _open(parsed.input_file) as file:
        for line in substitute_lines(_head(parsed), file, parsed.top, parsed.direction, words):
            print(line)


def _head(parsed: argparse.Namespace):
    from elmo_fast.embed.scoring import load_head

    return load_head(parsed.model, parsed.softmax_file, parsed.vocab_file, state=parsed.state,
                     precision=parsed.precision, backend=parsed.backend)


def _open(name: str) -> IO[str]:
    if name != "-":
        return open(name, encoding="utf-8")
    if sys.stdin is None:
        raise ConfigurationError("input file: expected text on stdin, which is closed")
    return open(sys.stdin.fileno(), encoding="utf-8", closefd=False)


def _files(parsed: argparse.Namespace, default: str | None = None) -> ModelFiles:
    model = parsed.model
    if model is None and parsed.options_file is None and parsed.weight_file is None:
        if default is None:
            raise ConfigurationError("model: expected MODEL, or --options-file and --weight-file; got neither")
        model = default
    return find_model(model, options_file=parsed.options_file, weight_file=parsed.weight_file)


def _check_apart(output: str, *inputs: str | os.PathLike | None) -> None:
    for path in inputs:
        if path and os.path.exists(output) and os.path.exists(path) and os.path.samefile(output, path):
            raise ConfigurationError(f"output file: expected a file other than the inputs, got {output}")
