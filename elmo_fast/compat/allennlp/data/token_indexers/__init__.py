"""`allennlp.data.token_indexers`, the part that ELMo needs."""

from elmo_fast.compat.allennlp.data.token_indexers.elmo_indexer import ELMoTokenCharactersIndexer

__all__ = ["ELMoTokenCharactersIndexer"]
