"""`allennlp.modules.token_embedders`, the part that ELMo needs."""

from elmo_fast.compat.allennlp.modules.token_embedders.elmo_token_embedder import ElmoTokenEmbedder

__all__ = ["ElmoTokenEmbedder"]
