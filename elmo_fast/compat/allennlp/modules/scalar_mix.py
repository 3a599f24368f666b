"""`allennlp.modules.scalar_mix`."""

from elmo_fast.model.scalar_mix import ScalarMix

__all__ = ["ScalarMix"]
