"""`python -m elmo_fast.compat.allennlp.tools.create_elmo_embeddings_from_vocab`, with the flags of AllenNLP's tool."""

import argparse
import sys
from collections.abc import Sequence

from elmo_fast.compat.allennlp import registry
from elmo_fast.compat.allennlp.tools.word_vectors import create_elmo_embeddings_from_vocab

main = create_elmo_embeddings_from_vocab  # the name that AllenNLP's tool has for its function


def run(arguments: Sequence[str] | None = None) -> int:
    """Run the tool; 0 when done, 2 for bad usage or input, with one line on stderr."""
    parsed = _parser().parse_args(arguments)
    try:
        create_elmo_embeddings_from_vocab(parsed.vocab_path, parsed.elmo_config, parsed.elmo_weights, parsed.output_dir,
                                          parsed.batch_size, parsed.device, parsed.use_custom_oov_token)
    except (ValueError, OSError, ImportError) as error:
        print(f"create_elmo_embeddings_from_vocab: error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="create_elmo_embeddings_from_vocab",
                                     description="Write vectors without context for the words of a vocabulary.")
    parser.add_argument("--vocab_path", required=True, help="vocabulary, UTF-8, a word a line, the unknown word first")
    parser.add_argument("--elmo_config", required=True, help="options.json, a path or URL")
    parser.add_argument("--elmo_weights", required=True, help="HDF5 weights, a path or URL")
    parser.add_argument("--output_dir", required=True, help="folder for elmo_embeddings.txt.gz and the new vocabulary")
    parser.add_argument("--batch_size", type=int, default=64,
                        help="sentences of 50 words at a time (default: %(default)s)")
    parser.add_argument("--device", type=int, default=-1, help="number of the GPU; -1 is the CPU (default)")
    parser.add_argument("--use_custom_oov_token", nargs="?", type=_boolean, const=True, default=False,
                        metavar="true|false", help="the first word is the unknown word, whatever it is")
    return parser


def _boolean(text: str) -> bool:
    try:
        return registry.boolean(text.lower())
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{error}, got {text!r}") from error


if __name__ == "__main__":
    sys.exit(run())
