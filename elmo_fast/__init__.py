"""elmo-fast: ELMo models (Peters et al. 2018) on today's PyTorch, with the original numbers and calls."""

from elmo_fast.embed.embedder import ElmoEmbedder
from elmo_fast.embed.load import LoadedElmo, load
from elmo_fast.model.batch_layout import BiLmOutput, remove_boundaries
from elmo_fast.model.bilm import BiLm
from elmo_fast.model.elmo import Elmo
from elmo_fast.model.options import ConfigurationError, Options
from elmo_fast.model.scalar_mix import ScalarMix
from elmo_fast.model.token_table.build import build_token_table, corpus_words, write_token_table
from elmo_fast.model.token_table.table import TokenTable
from elmo_fast.model.weights import random_weights, read_weights, write_weights
from elmo_fast.text.batching import Batcher, TokenBatcher, batch_to_ids
from elmo_fast.text.fasta import FastaRecord, read_fasta
from elmo_fast.text.vocabulary import UnicodeCharsVocabulary, Vocabulary

__version__ = "0.1.0"
__all__ = [
    "Batcher",
    "BiLm",
    "BiLmOutput",
    "ConfigurationError",
    "Elmo",
    "ElmoEmbedder",
    "FastaRecord",
    "LoadedElmo",
    "Options",
    "ScalarMix",
    "TokenBatcher",
    "TokenTable",
    "UnicodeCharsVocabulary",
    "Vocabulary",
    "batch_to_ids",
    "build_token_table",
    "corpus_words",
    "load",
    "random_weights",
    "read_fasta",
    "read_weights",
    "remove_boundaries",
    "write_token_table",
    "write_weights",
]
