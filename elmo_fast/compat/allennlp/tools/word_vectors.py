"""Vectors of a vocabulary's words without context, as GloVe-format text for AllenNLP's embedding reader."""

import gzip
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import torch

from elmo_fast.model.options import ConfigurationError, Options
from elmo_fast.model.sources import find_model
from elmo_fast.model.encoder import CharacterEncoder
from elmo_fast.model.weights import read_weights
from elmo_fast.model.atomic_file import atomic_path
from elmo_fast.ops.precision import numerics
from elmo_fast.text.batching import BOUNDARIES

UNKNOWN = "@@UNKNOWN@@"  # what AllenNLP's vocabulary calls a word it does not know
EMBEDDINGS_NAME = "elmo_embeddings.txt.gz"
_WORDS_A_SENTENCE = 50


def create_elmo_embeddings_from_vocab(
    vocab_path: str | os.PathLike,
    elmo_config_path: str | os.PathLike,
    elmo_weights_path: str | os.PathLike,
    output_dir: str | os.PathLike,
    batch_size: int = 64,
    device: int = -1,
    use_custom_oov_token: bool = False,
) -> None:
    """Write `elmo_embeddings.txt.gz`, a word and its P numbers a line, and the vocabulary with `<S>` and `</S>` added.

    `vocab_path` is UTF-8 text, a word a line, the unknown word first: `@@UNKNOWN@@` unless `use_custom_oov_token`.
    `<S>` and `</S>` follow it in both files, and are moved there if the file has them. The new vocabulary keeps the
    old one's name, in `output_dir`. `batch_size` is in sentences of 50 words, `device` -1 for the CPU or the number of
    a GPU. Neither file appears before both are whole. From AllenNLP's tool of that name.
    """
    words = _with_boundaries(_read_vocabulary(vocab_path), use_custom_oov_token)
    if isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1:
        raise ConfigurationError(f"batch_size: expected an integer of at least 1, got {batch_size!r}")
    encoder = _encoder(elmo_config_path, elmo_weights_path, device)
    folder = Path(output_dir)
    vocabulary = folder / Path(vocab_path).name
    if vocabulary.exists() and vocabulary.samefile(vocab_path):
        raise ConfigurationError(f"output_dir: expected another folder than that of vocab_path, whose file would be "
                                 f"overwritten, got {folder}")
    folder.mkdir(parents=True, exist_ok=True)
    with atomic_path(folder / EMBEDDINGS_NAME) as vectors_part, atomic_path(vocabulary) as vocabulary_part:
        with gzip.open(vectors_part, "wt", encoding="utf-8", newline="\n") as file:
            _write_vectors(file, words, encoder, batch_size * _WORDS_A_SENTENCE)
        with open(vocabulary_part, "w", encoding="utf-8", newline="\n") as file:
            file.writelines(f"{word}\n" for word in words)


def _read_vocabulary(path: str | os.PathLike) -> list[str]:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read().strip().split("\n")
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"vocab_path {os.fspath(path)}: expected UTF-8 text, "
                                 f"got undecodable bytes ({error})") from error


def _with_boundaries(words: list[str], use_custom_oov_token: bool) -> list[str]:
    if words == [""]:
        raise ConfigurationError("vocab_path: expected a word a line, got an empty file")
    if words[0] != UNKNOWN and not use_custom_oov_token:
        raise ConfigurationError(f"vocab_path: expected {UNKNOWN} on the first line, got {words[0]!r}; where that is "
                                 "the unknown word, say so with use_custom_oov_token")
    return [words[0], *BOUNDARIES, *(word for word in words[1:] if word not in BOUNDARIES)]


def _encoder(options_file: str | os.PathLike, weight_file: str | os.PathLike, device: int) -> CharacterEncoder:
    if device not in range(-1, torch.cuda.device_count()):
        raise ConfigurationError("device: expected -1 for the CPU or the number of a GPU that torch sees, "
                                 f"got {device!r}")
    files = find_model(options_file=options_file, weight_file=weight_file)
    options = Options.from_file(files.options_file)
    if options.char_cnn is None:
        raise ConfigurationError("elmo_config: expected a model with the section char_cnn, got one that reads word ids")
    encoder = CharacterEncoder(options, read_weights(files.weight_file, options))
    return encoder if device < 0 else encoder.to(torch.device("cuda", device))


def _write_vectors(file: IO[str], words: list[str], encoder: CharacterEncoder, at_once: int) -> None:
    for word, vector in zip(words, _vectors(words, encoder, at_once)):
        file.write(" ".join([word, *map(str, vector)]) + "\n")


def _vectors(words: list[str], encoder: CharacterEncoder, at_once: int) -> Iterator:
    """The vector of each word, float32 [P]."""
    device = encoder.char_embed.device
    for first in range(0, len(words), at_once):
        ids = encoder.token_ids(words[first : first + at_once]).to(device)
        with torch.no_grad(), numerics("highest", device):
            yield from encoder(ids).cpu().numpy()
