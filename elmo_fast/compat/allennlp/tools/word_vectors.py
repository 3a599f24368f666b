"""Vectors of a vocabulary's words without context, as GloVe-format text for AllenNLP's embedding reader."""

import gzip
import os
from pathlib import Path
from typing import IO

import torch

from elmo_fast.choices import check_count
from elmo_fast.embed.embedder import torch_device
from elmo_fast.model.atomic_file import atomic_path
from elmo_fast.model.bilm import BiLm
from elmo_fast.model.options import ConfigurationError
from elmo_fast.text.batching import BOUNDARIES

UNKNOWN = "@@UNKNOWN@@"  # the unknown word of AllenNLP's vocabularies
EMBEDDINGS_NAME = "elmo_embeddings.txt.gz"
_WORDS_PER_SENTENCE = 50


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
    a GPU. Both files are written atomically, after all words are encoded. From AllenNLP's tool of that name.
    """
    words = _with_boundaries(_read_vocabulary(vocab_path), use_custom_oov_token)
    check_count("batch_size", batch_size, error=ConfigurationError)
    bilm = BiLm.from_files(elmo_config_path, elmo_weights_path).to(torch_device(device, "device"))
    if bilm.options.char_cnn is None:
        raise ConfigurationError("elmo_config: expected a model with the section char_cnn, got one that reads word ids")
    folder = Path(output_dir)
    vocabulary = folder / Path(vocab_path).name
    if vocabulary.exists() and vocabulary.samefile(vocab_path):
        raise ConfigurationError(f"output_dir: expected another folder than that of vocab_path, whose file would be "
                                 f"overwritten, got {folder}")
    folder.mkdir(parents=True, exist_ok=True)
    with atomic_path(folder / EMBEDDINGS_NAME) as vectors_part, atomic_path(vocabulary) as vocabulary_part:
        with gzip.open(vectors_part, "wt", encoding="utf-8", newline="\n") as file:
            _write_vectors(file, words, bilm, batch_size * _WORDS_PER_SENTENCE)
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


def _write_vectors(file: IO[str], words: list[str], bilm: BiLm, batch_size: int) -> None:
    for first in range(0, len(words), batch_size):
        batch = words[first : first + batch_size]
        with torch.no_grad():
            vectors = bilm.encode(batch).cpu().numpy()  # float32 [words, P]
        file.writelines(" ".join([word, *map(str, vector)]) + "\n" for word, vector in zip(batch, vectors))
