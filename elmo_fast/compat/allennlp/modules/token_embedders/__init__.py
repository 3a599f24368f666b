"""`allennlp.modules.token_embedders`, as far as they are ELMo's."""

from elmo_fast.compat.allennlp.modules.token_embedders.elmo_token_embedder import ElmoTokenEmbedder

__all__ = ["ElmoTokenEmbedder"]
