"""bilm-tf's two dumps: the vectors of a vocabulary, and the layers of every sentence of a text file."""

import os
from collections.abc import Iterator

import torch
from tqdm import tqdm

from elmo_fast.embed.readers import read_lines, scan
from elmo_fast.embed.stream import SlotStream
from elmo_fast.embed.writers import hdf5_file
from elmo_fast.model.bilm import BiLm
from elmo_fast.model.options import ConfigurationError
from elmo_fast.model.table_file import describe
from elmo_fast.model.atomic_file import check_target
from elmo_fast.model.atomic_hdf5 import atomic_hdf5
from elmo_fast.text.characters import BEGIN_SENTENCE_TOKEN, END_SENTENCE_TOKEN
from elmo_fast.text.vocabulary import Vocabulary

_WORDS_AT_ONCE = 4096


def dump_token_embeddings(
    vocab_file: str | os.PathLike,
    options_file: str | os.PathLike,
    weight_file: str | os.PathLike,
    outfile: str | os.PathLike,
    *,
    device: torch.device | str = "cpu",
    precision: str = "highest",
    backend: str = "auto",
    progress: bool = True,
) -> None:
    """Write the vectors of a vocabulary: `embedding`, float32 [words, P], row k for line k of the file.

    The file serves as `embedding_weight_file`, here and in bilm-tf; an attribute says which model it is of, so that
    another one refuses it. It appears only when it is whole. A vocabulary without `<S>` or `</S>` is refused: bilm-tf
    gives its last word the vector of `</S>`.
    """
    check_target(outfile, "outfile")
    words = _vocabulary(vocab_file).words
    bilm = _bilm(options_file, weight_file, device, precision=precision, backend=backend)
    with atomic_hdf5(outfile) as (file, disk), tqdm(total=len(words), unit=" words",
                                                   disable=None if progress else True) as bar:
        dataset = file.create_dataset("embedding", (len(words), bilm.options.lstm.projection_dim), dtype="float32")
        for first in range(0, len(words), _WORDS_AT_ONCE):
            some = words[first : first + _WORDS_AT_ONCE]
            with torch.no_grad():
                dataset[first : first + len(some)] = bilm.encode(some).float().cpu().numpy()
            disk.check()
            bar.update(len(some))
        describe(file, None, bilm.fingerprint(), bilm.computes_in)


def dump_bilm_embeddings(
    vocab_file: str | os.PathLike,
    dataset_file: str | os.PathLike,
    options_file: str | os.PathLike,
    weight_file: str | os.PathLike,
    outfile: str | os.PathLike,
    *,
    batch_size: int = 1,
    state: str = "carry",
    device: torch.device | str = "cpu",
    precision: str = "highest",
    backend: str = "auto",
    progress: bool = True,
) -> None:
    """Write the layers of every line of a text file, float32 [layers, tokens, 2 P], keyed `0`, `1`, ... by line.

    As in bilm-tf, every line starts from the state that the line before ended in (`batch_size=1`, `state="carry"`).
    Larger batches are much faster: line i then goes on from line `i - batch_size`, as in batches of that size; in the
    states `zero` and `warm` lines do not depend on each other, and any size gives the same. A blank line has no tokens
    and runs as `<S> </S>`. The output appears only when it is whole.
    """
    if isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1:
        raise ValueError(f"batch_size: expected an integer of at least 1, got {batch_size!r}")
    check_target(outfile, "output file")
    _vocabulary(vocab_file)
    bilm = _bilm(options_file, weight_file, device, state=state, precision=precision, backend=backend)
    with open(dataset_file, encoding="utf-8") as file, hdf5_file(outfile) as writer:
        count = scan(file, allow_blank=True)
        tokens = (line.tokens for line in read_lines(file, allow_blank=True))
        arrays: Iterator = SlotStream(bilm, batch_size, runs_empty=True).run(tokens)
        for number, vectors in enumerate(tqdm(arrays, total=count, unit=" sentences",
                                              disable=None if progress else True)):
            writer.write(str(number), vectors)


def _vocabulary(vocab_file: str | os.PathLike) -> Vocabulary:
    vocabulary = Vocabulary(vocab_file)
    vocabulary.require(BEGIN_SENTENCE_TOKEN, END_SENTENCE_TOKEN)
    return vocabulary


def _bilm(options_file, weight_file, device, **arguments) -> BiLm:
    bilm = BiLm.from_files(options_file, weight_file, **arguments)
    if bilm.options.char_cnn is None:
        raise ConfigurationError("options_file: expected the section char_cnn, since text is read as characters, "
                                 "found a model that reads word ids")
    return bilm if torch.device(device).type == "cpu" else bilm.to(device)
