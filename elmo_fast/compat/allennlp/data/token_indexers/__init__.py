"""`allennlp.data.token_indexers`, as far as they are ELMo's."""

from elmo_fast.compat.allennlp.data.token_indexers.elmo_indexer import ELMoTokenCharactersIndexer

__all__ = ["ELMoTokenCharactersIndexer"]
