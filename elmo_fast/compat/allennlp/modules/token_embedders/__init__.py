"""`allennlp.modules.token_embedders`, the part that ELMo needs."""

from elmo_fast.compat.allennlp.modules.token_embedders.elmo_token_embedder import ElmoTokenEmbedder
from elmo_fast.compat.allennlp.registry import stays_with_allennlp

__all__ = ["ElmoTokenEmbedder"]
__getattr__ = stays_with_allennlp(__name__)
