"""`allennlp.data.token_indexers`, the part that ELMo needs."""

from elmo_fast.compat.allennlp.data.token_indexers.elmo_indexer import ELMoTokenCharactersIndexer
from elmo_fast.compat.allennlp.registry import stays_with_allennlp

__all__ = ["ELMoTokenCharactersIndexer"]
__getattr__ = stays_with_allennlp(__name__)
