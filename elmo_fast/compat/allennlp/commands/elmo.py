"""`allennlp.commands.elmo`: `ElmoEmbedder`, its default files, and the subcommand `elmo`."""

import argparse
import io
import os
import sys
from typing import IO

from elmo_fast.arguments import DEFAULT_BATCH_SIZE, LAYERS, check_file
from elmo_fast.compat import elmo_embedder as embedder
from elmo_fast.compat.allennlp.common.checks import ConfigurationError, raises_either
from elmo_fast.compat.allennlp.data.token_indexers.elmo_indexer import ELMoTokenCharactersIndexer
from elmo_fast.compat.allennlp.modules.elmo import _ElmoBiLm, batch_to_ids
from elmo_fast.compat.elmo_embedder import DEFAULT_OPTIONS_FILE, DEFAULT_WEIGHT_FILE

__all__ = ["DEFAULT_BATCH_SIZE", "DEFAULT_OPTIONS_FILE", "DEFAULT_WEIGHT_FILE", "ConfigurationError", "Elmo",
           "ElmoEmbedder", "batch_to_ids", "elmo_command"]


class ElmoEmbedder(embedder.ElmoEmbedder):
    """Computes vectors of tokenized sentences; `elmo_bilm` is an `_ElmoBiLm`. From AllenNLP's `ElmoEmbedder`.

    It runs on the device of `elmo_bilm`, also after `elmo_bilm.to(device)`, which does not change `cuda_device`.
    """

    _bilm = _ElmoBiLm
    __init__ = raises_either(embedder.ElmoEmbedder.__init__)
    embed_file = raises_either(embedder.ElmoEmbedder.embed_file)

    def _take(self, bilm: _ElmoBiLm, cuda_device: int) -> None:
        super()._take(bilm, cuda_device)
        self.indexer = ELMoTokenCharactersIndexer()


class Elmo:
    """The subcommand `elmo`, with AllenNLP's flags and `--allow-nonfinite`. `elmo-fast embed` has more flags."""

    def add_subparser(self, name: str, parser) -> argparse.ArgumentParser:
        """Add the subcommand to argparse's collection of subparsers."""
        subparser = parser.add_parser(name, description="Create word vectors using ELMo.", help="embed a text")
        add = subparser.add_argument
        add("input_file", help="tokenized UTF-8 text, one sentence per line; - reads stdin")
        add("output_file", help="HDF5 file to write")
        layers = subparser.add_mutually_exclusive_group(required=True)
        for layer in ("all", "top", "average"):
            layers.add_argument(f"--{layer}", action="store_true")
        add("--vocab-path", help="ignored, as in AllenNLP 0.9")
        add("--options-file", default=DEFAULT_OPTIONS_FILE)
        add("--weight-file", default=DEFAULT_WEIGHT_FILE)
        add("--batch-size", type=int, default=DEFAULT_BATCH_SIZE)
        add("--file-friendly-logging", action="store_true", help="report progress in lines")
        add("--cuda-device", type=int, default=-1)
        add("--forget-sentences", action="store_true")
        add("--use-sentence-keys", action="store_true")
        add("--allow-nonfinite", action="store_true", help="load weights that are NaN or infinite")
        subparser.set_defaults(func=elmo_command)
        return subparser


def elmo_command(args: argparse.Namespace) -> None:
    """Embed `args.input_file`: a path, `-` for stdin, or an open file, as from AllenNLP's own parser."""
    layers = next(name for name in LAYERS if getattr(args, name))
    with _opened(args.input_file) as file:
        elmo = ElmoEmbedder(args.options_file, args.weight_file, args.cuda_device,
                            allow_nonfinite=getattr(args, "allow_nonfinite", False))  # AllenNLP's parser lacks it
        elmo.embed_file(file, args.output_file, layers, args.batch_size, args.forget_sentences, args.use_sentence_keys,
                        progress="lines" if args.file_friendly_logging else True)


def _opened(source: str | os.PathLike | IO[str]) -> IO[str]:
    """The input as a file that can be read twice."""
    file = sys.stdin if source == "-" else source
    if not hasattr(file, "readline"):
        return open(check_file("input_file", file), encoding="utf-8")
    return file if file.seekable() else io.StringIO(file.read())
