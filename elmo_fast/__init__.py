"""elmo-fast: ELMo models (Peters et al. 2018) on today's PyTorch, with the original numbers and calls.

Public names are imported at their first use: `import elmo_fast` itself loads no torch.
"""

import importlib
from typing import TYPE_CHECKING

from elmo_fast.environment import VERSION

if TYPE_CHECKING:
    from elmo_fast.compat.elmo_embedder import ElmoEmbedder
    from elmo_fast.embed.api import LoadedElmo, load
    from elmo_fast.embed.build_table import build_token_table, corpus_words, write_token_table
    from elmo_fast.engine.table import TokenTable
    from elmo_fast.errors import ConfigurationError
    from elmo_fast.explore.comparison import compare
    from elmo_fast.explore.contexts import ContextIndex
    from elmo_fast.nn.batching import Batcher, TokenBatcher, batch_to_ids
    from elmo_fast.nn.bilm import BiLm
    from elmo_fast.nn.elmo import Elmo
    from elmo_fast.nn.layers.batch_layout import BiLmOutput, remove_boundaries
    from elmo_fast.nn.layers.scalar_mix import ScalarMix
    from elmo_fast.scale.dataset import embed_dataset
    from elmo_fast.text.fasta import FastaRecord, read_fasta
    from elmo_fast.text.readers import open_texts
    from elmo_fast.text.vocabulary import UnicodeCharsVocabulary, Vocabulary
    from elmo_fast.vectors.open import Embeddings, open_embeddings
    from elmo_fast.weights.datasets import random_weights, read_weights, write_weights
    from elmo_fast.weights.options import Options

__version__ = VERSION
__all__ = [
    "Batcher", "BiLm", "BiLmOutput", "ConfigurationError", "ContextIndex", "Elmo", "ElmoEmbedder", "Embeddings",
    "FastaRecord", "LoadedElmo", "Options", "ScalarMix", "TokenBatcher", "TokenTable", "UnicodeCharsVocabulary",
    "Vocabulary", "batch_to_ids", "build_token_table", "compare", "corpus_words", "embed_dataset", "load",
    "open_embeddings", "open_texts", "random_weights", "read_fasta", "read_weights", "remove_boundaries",
    "write_token_table", "write_weights",
]
_NAMES = {  # module -> the public names that it defines
    "errors": ("ConfigurationError",),
    "embed.api": ("LoadedElmo", "load"),
    "explore.comparison": ("compare",),
    "explore.contexts": ("ContextIndex",),
    "compat.elmo_embedder": ("ElmoEmbedder",),
    "vectors.open": ("Embeddings", "open_embeddings"),
    "text.readers": ("open_texts",),
    "nn.layers.batch_layout": ("BiLmOutput", "remove_boundaries"),
    "nn.bilm": ("BiLm",),
    "nn.elmo": ("Elmo",),
    "weights.options": ("Options",),
    "nn.layers.scalar_mix": ("ScalarMix",),
    "embed.build_table": ("build_token_table", "corpus_words", "write_token_table"),
    "engine.table": ("TokenTable",),
    "weights.datasets": ("random_weights", "read_weights", "write_weights"),
    "scale.dataset": ("embed_dataset",),
    "nn.batching": ("Batcher", "TokenBatcher", "batch_to_ids"),
    "text.fasta": ("FastaRecord", "read_fasta"),
    "text.vocabulary": ("UnicodeCharsVocabulary", "Vocabulary"),
}
_MODULES = {name: f"{__name__}.{module}" for module, names in _NAMES.items() for name in names}

if not TYPE_CHECKING:

    def __getattr__(name: str):
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = globals()[name] = getattr(importlib.import_module(_MODULES[name]), name)
        return value


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
