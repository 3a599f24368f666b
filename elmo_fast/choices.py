"""Accepted values and defaults of arguments. Imports nothing, so that the help of the command needs no torch."""

BACKENDS = ("auto", "reference", "torch", "native")
PRECISIONS = ("highest", "high", "medium")
STATES = ("carry", "zero", "warm")
LAYERS = ("all", "top", "average")
UNKNOWN = ("encode", "error", "unk")  # words outside a token table: their own vector, an error, or <UNK>'s
STORAGES = ("float32", "float16")  # of the vectors in a token table
DIRECTIONS = ("both", "forward", "backward")  # of the language model that gives substitutes
SEQVEC_LAYERS = ("sum", "all", "CNN", "LSTM1", "LSTM2")

DEFAULT_BATCH_SIZE = 64  # sentences
SEQVEC_BATCH_SIZE = 15000  # residues
