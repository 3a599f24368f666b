"""`allennlp.modules.highway`."""

from elmo_fast.nn.layers.highway import Highway

__all__ = ["Highway"]
