"""All layers of a data set, written to a file once: the counterpart of bilm-tf's usage_cached.py.

    python examples/usage_cached.py [--options-file OPTIONS --weight-file WEIGHTS --vocab-file VOCAB]
"""

import bilm_arguments
import h5py

from elmo_fast.compat.bilm import dump_bilm_embeddings, weight_layers

arguments = bilm_arguments.parse(__doc__)

# A small data set, one tokenized sentence per line.
sentences = [
    "The ferry leaves the old harbour at noon .",
    "It comes back after dark , when the lamps are lit .",
    "When does the ferry leave ?",
]
dataset_file = arguments.folder / "dataset_file.txt"
dataset_file.write_text("\n".join(sentences) + "\n", encoding="utf-8")

# The dump. Run it once for a data set.
embedding_file = arguments.folder / "elmo_embeddings.hdf5"
dump_bilm_embeddings(
    arguments.vocab_file, dataset_file, arguments.options_file, arguments.weight_file, embedding_file
)

# Read the second sentence.
with h5py.File(embedding_file, "r") as file:
    second_sentence_embeddings = file["1"][...]
print("layers of the second sentence:", second_sentence_embeddings.shape)

# Layers that were read from a file can be mixed as well.
batch = {"lm_embeddings": second_sentence_embeddings[None], "mask": [[True] * second_sentence_embeddings.shape[1]]}
elmo = weight_layers("input", batch, l2_coef=0.0)
print("their mixture:", tuple(elmo["weighted_op"].shape))
