"""Models of bilm-tf and AllenNLP: `options.json` and HDF5, of characters or of words."""

from elmo_fast.weights.datasets import read_model as read
from elmo_fast.weights.options import Options

__all__ = ["describe", "read"]


def describe(options: Options) -> str:
    """What the model reads of a token."""
    if (cnn := options.char_cnn) is None:
        return f"word ids, {options.n_tokens_vocab:,} words"
    return (f"characters (UTF-8 bytes), at most {cnn.max_characters_per_token} a token, {cnn.embedding_dim} values "
            "each")
