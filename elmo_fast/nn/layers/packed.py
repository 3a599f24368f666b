"""A module that computes with weights packed from its parameters (see `nn.at_rest`)."""

import torch

from elmo_fast.nn.at_rest import AtRest, tensors_of
from elmo_fast.nn.outside_graphs import OutsideGraphs


class Packed(OutsideGraphs):
    """Its parameters, and what was made of them: made anew after `train()` and `eval()`, and in each replica."""

    _at_rest: AtRest

    def tensors(self) -> list[torch.Tensor]:
        """All parameters."""
        return list(tensors_of(self))

    def at_rest(self) -> object:
        """What was made of the current parameters: another object after an edit."""
        return self._at_rest.get("at rest", self.tensors(), object)

    def train(self, mode: bool = True) -> "Packed":
        if mode != self.training:
            self._at_rest.drop()
        return super().train(mode)

    @torch.inference_mode(False)
    def _apply(self, *arguments, **named) -> "Packed":
        return super()._apply(*arguments, **named)

    def _replicate_for_data_parallel(self) -> "Packed":
        replica = super()._replicate_for_data_parallel()
        replica._at_rest = AtRest()
        return replica
