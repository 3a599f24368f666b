"""A tiny model with a softmax over words, as files and as a head."""

import h5py
import numpy as np

from elmo_fast import BiLm
from elmo_fast.nn.softmax_head import SoftmaxHead
from tests.support.files import paths, write_model

WORDS = ["</S>", "<S>", "<UNK>", "the", "cat", "sat", "on", "mat", ".", "dog", "naïve", "One"]
SENTENCES = ["the cat sat on the mat .".split(), ["One"], [], "the unseen dog sat naïve .".split()]


def write_softmax_model(folder, content, words=WORDS):
    """Write a random model with a softmax and a vocabulary into a folder, and return it."""
    write_model(folder, content)
    generator = np.random.default_rng(7)
    with h5py.File(folder / "softmax.hdf5", "w") as file:
        file["softmax/W"] = generator.normal(0, 3, (len(words), content["lstm"]["projection_dim"])).astype(np.float32)
        file["softmax/b"] = generator.normal(0, 1, len(words)).astype(np.float32)
    (folder / "vocab.txt").write_text("\n".join(words) + "\n", encoding="utf-8")
    return folder


def head_of(folder, state="zero"):
    """The softmax head of a folder of `write_softmax_model`."""
    return SoftmaxHead.from_files(BiLm.from_files(*paths(folder), state=state), folder / "softmax.hdf5",
                                  folder / "vocab.txt")
