"""`allennlp.modules.scalar_mix`."""

from elmo_fast.nn.layers.scalar_mix import ScalarMix

__all__ = ["ScalarMix"]
