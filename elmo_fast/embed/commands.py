"""The subcommand `cache`: its arguments, and the one function it calls."""

import argparse
import os

from elmo_fast.embed import sentences as lines_of
from elmo_fast.embed.embedder import torch_device
from elmo_fast.model.bilm import BiLm
from elmo_fast.model.options import ConfigurationError
from elmo_fast.model.sources import DEFAULT_MODEL, MODEL_NAMES, find_model
from elmo_fast.model.token_table.build import corpus_words, write_token_table
from elmo_fast.model.token_table.file import STORAGES
from elmo_fast.model.atomic_file import check_target
from elmo_fast.ops.backend import BACKENDS
from elmo_fast.ops.precision import PRECISIONS


def add_commands(commands) -> None:
    """Add the subcommand to an argparse collection; it sets `run`, a function of the parsed arguments."""
    cache = commands.add_parser("cache", help="encode the words of a vocabulary once, into a token table for embed",
                                description="Encode the words of a vocabulary once, into a token table for embed. Run "
                                            "again after an interruption, it goes on where it was.")
    cache.add_argument("vocabulary", metavar="VOCAB", help="vocabulary file, one word a line, with <S> and </S>")
    cache.add_argument("output_file", metavar="OUT", help="HDF5 file")
    cache.add_argument("--corpus", action="store_true", help="VOCAB is a tokenized text, one sentence a line: cache "
                       "every word it holds")
    cache.add_argument("--options-file", metavar="FILE", help="options.json, a path or URL")
    cache.add_argument("--weight-file", metavar="FILE", help="HDF5 weights, a path or URL")
    cache.add_argument("--model", help=f"in place of the two files: {', '.join(MODEL_NAMES)}, a directory, a ZIP or "
                                       "a URL (default: bundled)")
    cache.add_argument("--storage", choices=STORAGES, default="float32", help="(default: %(default)s)")
    cache.add_argument("--precision", choices=PRECISIONS, default="highest",
                       help="of the vectors; embed refuses a table of less than its own (default: %(default)s)")
    cache.add_argument("--cuda-device", type=int, default=-1, help="number of the GPU; -1 is the CPU (default)")
    cache.add_argument("--backend", choices=BACKENDS, default="auto", help="(default: %(default)s)")
    cache.add_argument("--quiet", action="store_true", help="no progress bar")
    cache.set_defaults(run=_cache)


def _cache(parsed: argparse.Namespace) -> None:
    check_target(parsed.output_file, "output file")
    given = parsed.model or parsed.options_file or parsed.weight_file
    files = find_model(parsed.model if given else DEFAULT_MODEL, options_file=parsed.options_file,
                       weight_file=parsed.weight_file)
    for path in (parsed.vocabulary, files.options_file, files.weight_file):
        if os.path.exists(parsed.output_file) and os.path.exists(path) and os.path.samefile(parsed.output_file, path):
            raise ConfigurationError("output file: expected another file than those that are read, "
                                     f"got {parsed.output_file}")
    device = torch_device(parsed.cuda_device)
    vocabulary = _words_of_text(parsed.vocabulary) if parsed.corpus else parsed.vocabulary
    bilm = BiLm.from_files(files.options_file, files.weight_file, precision=parsed.precision,
                           backend=parsed.backend).to(device)
    try:
        write_token_table(bilm, vocabulary, parsed.output_file, storage=parsed.storage, progress=not parsed.quiet)
    except KeyboardInterrupt:
        raise KeyboardInterrupt("interrupted; the same command goes on where it was "
                                f"(what is done lies in {parsed.output_file}.part)") from None


def _words_of_text(path: str) -> list[str]:
    with open(path, encoding="utf-8") as file:
        return corpus_words(line.tokens for line in lines_of.read_lines(file, allow_blank=True))
