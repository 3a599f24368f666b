"""Models of bilm-tf and AllenNLP: `options.json` and HDF5, of characters or of words."""

from typing import TYPE_CHECKING

from elmo_fast.model.opening import ModelOptions
from elmo_fast.model.options import Options
from elmo_fast.model.sources import ModelFiles
from elmo_fast.model.weights import read_model as read

if TYPE_CHECKING:
    from elmo_fast.model.bilm import BiLm

__all__ = ["describe", "make", "read"]


def make(files: ModelFiles, opening: ModelOptions) -> "BiLm":
    """The biLM."""
    from elmo_fast.model.bilm import BiLm  # with torch, which `elmo-fast info` does not need

    return BiLm.from_model(files, opening)


def describe(options: Options) -> str:
    """What the model reads of a token."""
    if (cnn := options.char_cnn) is None:
        return f"word ids, {options.n_tokens_vocab:,} words"
    return (f"characters (UTF-8 bytes), at most {cnn.max_characters_per_token} a token, {cnn.embedding_dim} values "
            "each")
