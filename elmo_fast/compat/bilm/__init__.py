"""bilm-tf's public names (github.com/allenai/bilm-tf) on PyTorch; docs/migrating.md lists the old calls."""

from elmo_fast import nn  # noqa: F401 (first: it says how to install torch where torch is missing)
from elmo_fast.compat.bilm.data import Batcher, TokenBatcher
from elmo_fast.compat.bilm.elmo import LayerWeights, Variables, weight_layers
from elmo_fast.compat.bilm.model import BidirectionalLanguageModel, dump_bilm_embeddings, dump_token_embeddings

__all__ = ["Batcher", "BidirectionalLanguageModel", "LayerWeights", "TokenBatcher", "Variables", "dump_bilm_embeddings",
           "dump_token_embeddings", "weight_layers"]
