"""`allennlp.modules`, the part that ELMo needs."""

from elmo_fast.compat.allennlp.modules.elmo import Elmo
from elmo_fast.compat.allennlp.modules.highway import Highway
from elmo_fast.compat.allennlp.modules.scalar_mix import ScalarMix

__all__ = ["Elmo", "Highway", "ScalarMix"]
