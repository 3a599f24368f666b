"""AllenNLP's tool, run with `python -m`: writes word vectors without context as text in GloVe's format."""

import argparse
import gzip
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import IO

import torch

from elmo_fast.arguments import check_count, check_file, check_path
from elmo_fast.compat.allennlp import registry
from elmo_fast.compat.allennlp.common.checks import raises_either
from elmo_fast.compat.elmo_embedder import torch_device
from elmo_fast.errors import ConfigurationError
from elmo_fast.files.atomic import atomic_path
from elmo_fast.nn.bilm import BiLm
from elmo_fast.text.batching import BOUNDARIES

UNKNOWN = "@@UNKNOWN@@"  # the unknown word of AllenNLP's vocabularies


@raises_either
def create_elmo_embeddings_from_vocab(vocab_path: str | os.PathLike, elmo_config_path: str | os.PathLike,
                                      elmo_weights_path: str | os.PathLike, output_dir: str | os.PathLike,
                                      batch_size: int = 64, device: int = -1,
                                      use_custom_oov_token: bool = False, **options) -> None:
    """Write `elmo_embeddings.txt.gz`, with a word and its P numbers per line, and the vocabulary with `<S>` and `</S>`.

    `vocab_path` is UTF-8 text with one word per line, the unknown word first: `@@UNKNOWN@@` unless
    `use_custom_oov_token`. `<S>` and `</S>` are put after it in both files, and removed elsewhere. The new vocabulary
    is written to `output_dir` under the name of the old one. `batch_size` counts sentences of 50 words; `device` is -1
    for the CPU or the number of a GPU. Both files are written atomically, after all words are encoded. `options` are
    fields of `ModelOptions`. From AllenNLP's tool of that name.
    """
    vocab_path = check_file("vocab_path", vocab_path)
    words = _read_vocabulary(vocab_path, use_custom_oov_token)
    check_count("batch_size", batch_size, error=ConfigurationError)
    bilm = BiLm.from_files(elmo_config_path, elmo_weights_path, **options)
    bilm = bilm.to(torch_device(device, "device"))
    folder = Path(check_path("output_dir", output_dir))
    vocabulary = folder / Path(vocab_path).name
    if vocabulary.exists() and vocabulary.samefile(vocab_path):
        raise ConfigurationError(f"output_dir: expected another folder than that of vocab_path, whose file would be "
                                 f"overwritten, got {folder}")
    folder.mkdir(parents=True, exist_ok=True)
    with atomic_path(folder / "elmo_embeddings.txt.gz") as vectors_part, atomic_path(vocabulary) as vocabulary_part:
        with gzip.open(vectors_part, "wt", encoding="utf-8", newline="\n") as file:
            _write_vectors(file, words, bilm, batch_size * 50)
        with open(vocabulary_part, "w", encoding="utf-8", newline="\n") as file:
            file.writelines(f"{word}\n" for word in words)


main = create_elmo_embeddings_from_vocab  # the name in AllenNLP's tool


def run(arguments: Sequence[str] | None = None) -> int:
    """Run the tool and return its exit status: 0 for success, 2 for bad input, with one line on stderr."""
    parser = argparse.ArgumentParser(prog="create_elmo_embeddings_from_vocab",
                                     description="Write vectors without context for the words of a vocabulary.")
    parser.add_argument("--vocab_path", required=True, help="UTF-8 vocabulary, one word per line, unknown word first")
    parser.add_argument("--elmo_config", required=True, help="options.json, a path or URL")
    parser.add_argument("--elmo_weights", required=True, help="HDF5 weights, a path or URL")
    parser.add_argument("--output_dir", required=True, help="folder for elmo_embeddings.txt.gz and the new vocabulary")
    parser.add_argument("--batch_size", type=int, default=64, help="sentences of 50 words at a time (default: 64)")
    parser.add_argument("--device", type=int, default=-1, help="number of the GPU, or -1 for the CPU (default)")
    parser.add_argument("--use_custom_oov_token", nargs="?", type=_boolean, const=True, default=False,
                        metavar="true|false", help="use the first word as the unknown word, whatever it is")
    parser.add_argument("--allow_nonfinite", action="store_true", help="load weights that are NaN or infinite")
    parsed = parser.parse_args(arguments)
    try:
        create_elmo_embeddings_from_vocab(parsed.vocab_path, parsed.elmo_config, parsed.elmo_weights, parsed.output_dir,
                                          parsed.batch_size, parsed.device, parsed.use_custom_oov_token,
                                          allow_nonfinite=parsed.allow_nonfinite)
    except (ValueError, OSError, ImportError, RuntimeError) as error:
        print(f"create_elmo_embeddings_from_vocab: error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    return 0


def _read_vocabulary(path: str | os.PathLike, use_custom_oov_token: bool) -> list[str]:
    """Read the words of a file, with `<S>` and `</S>` after the first."""
    try:
        with open(path, encoding="utf-8-sig") as file:
            first, *words = file.read().strip().split("\n")
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"vocab_path {os.fspath(path)}: expected UTF-8 text, "
                                 f"got undecodable bytes ({error})") from error
    if not (first or words):
        raise ConfigurationError("vocab_path: expected one word per line, got an empty file")
    if first != UNKNOWN and not use_custom_oov_token:
        raise ConfigurationError(f"vocab_path: expected {UNKNOWN} on the first line, got {first!r}; if that is "
                                 "the unknown word, set use_custom_oov_token")
    return [first, *BOUNDARIES, *(word for word in words if word not in BOUNDARIES)]


def _write_vectors(file: IO[str], words: list[str], bilm: BiLm, batch_size: int) -> None:
    for first in range(0, len(words), batch_size):
        batch = words[first : first + batch_size]
        with torch.no_grad():
            vectors = bilm.encode(batch).cpu().numpy()  # float32 [words, P]
        file.writelines(" ".join([word, *map(str, vector)]) + "\n" for word, vector in zip(batch, vectors))


def _boolean(text: str) -> bool:
    try:
        return registry.boolean(text.lower())
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{error}, got {text!r}") from error


if __name__ == "__main__":
    sys.exit(run())
