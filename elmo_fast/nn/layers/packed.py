"""A module that computes with weights packed from its parameters (see `nn.at_rest`)."""

from typing import ClassVar

import torch

from elmo_fast.nn.at_rest import AtRest, Now, parameter_of
from elmo_fast.nn.outside_graphs import OutsideGraphs


class Packed(OutsideGraphs):
    """Its parameters, and what was made of them: made anew after `train()` and `eval()`, and in each replica.

    Methods take the `now` of their call, or look themselves. `like` is a parameter, with the device and type of all.
    """

    like = property(parameter_of)

    _at_rest: AtRest
    _forwards: ClassVar[frozenset] = frozenset()  # those of our parts

    def now(self) -> Now:
        """The parts and parameters of this moment; `is_plain` says whether the parts need not be called."""
        return Now(self, self._forwards, self._at_rest)

    def train(self, mode: bool = True) -> "Packed":
        if mode != self.training:
            self._at_rest = AtRest()
        return super().train(mode)

    @torch.inference_mode(False)
    def _apply(self, *arguments, **named) -> "Packed":
        return super()._apply(*arguments, **named)

    def _replicate_for_data_parallel(self) -> "Packed":
        replica = super()._replicate_for_data_parallel()
        replica._at_rest = AtRest()
        return replica
