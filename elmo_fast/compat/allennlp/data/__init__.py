"""`allennlp.data`, the part that ELMo needs."""

from elmo_fast.compat.allennlp.registry import stays_with_allennlp

__getattr__ = stays_with_allennlp(__name__)
