"""AllenNLP 0.9's names, gate order, signs and forget bias in `state_dict`, bilm-tf's layout in the parameters.

A checkpoint of AllenNLP's `Elmo` loads into ours, and ours into AllenNLP's, with `load_state_dict` alone.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

import numpy as np
import torch
from torch import nn

from elmo_fast.ops.weight_snapshot import check_in_full
from elmo_fast.outside_graphs import OutsideGraphs


class Conversion(NamedTuple):
    """Names of our parameters (`own`) and of AllenNLP's tensors, and the functions that convert their values."""

    own: list[str]
    theirs: list[str]
    to_allennlp: Callable[..., tuple[torch.Tensor, ...]] = lambda *values: values
    from_allennlp: Callable[..., tuple[torch.Tensor, ...]] = lambda *values: values


class AllenNlpStateDict(OutsideGraphs):
    """Weights as parameters (`datasets`: parameter name -> dataset), under AllenNLP's names in its `state_dict`."""

    @torch.inference_mode(False)  # torch counts no edits of inference tensors: packed weights would go stale
    def __init__(self, datasets: dict[str, str], weights: Mapping[str, np.ndarray], requires_grad: bool):
        super().__init__()
        self.datasets = datasets
        for name, dataset in datasets.items():
            self.register_parameter(name, nn.Parameter(torch.tensor(weights[dataset]), requires_grad=requires_grad))

    def train(self, mode: bool = True) -> "AllenNlpStateDict":
        if self.training and not mode:
            check_in_full(self.parameters())
        return super().train(mode)

    def weights_named(self, names: Iterable[str]) -> list[torch.Tensor | None]:
        """The weights with these names, None for a name that the module lacks."""
        own = self._parameters  # not those of a replica of DataParallel, and not parametrized weights
        return [own[name] if name in own else getattr(self, name, None) for name in names]

    @torch.inference_mode(False)
    def _apply(self, *arguments, **named) -> "AllenNlpStateDict":
        return super()._apply(*arguments, **named)

    def conversions(self) -> Iterator[Conversion]:
        """The conversions of all parameters, in the order of AllenNLP's `state_dict`."""
        raise NotImplementedError

    def _converted(self) -> list[Conversion]:
        """The conversions whose parameters the module has: not those of pruned or parametrized weights."""
        return [part for part in self.conversions() if all(name in self._parameters for name in part.own)]

    def _save_to_state_dict(self, destination, prefix, keep_vars):
        parts, rest = self._converted(), {}
        for part in parts:
            values = part.to_allennlp(*(self._parameters[name] if keep_vars else self._parameters[name].detach()
                                        for name in part.own))
            destination.update({prefix + name: value for name, value in zip(part.theirs, values)})
        super()._save_to_state_dict(rest, prefix, keep_vars)
        saved = {prefix + name for part in parts for name in part.own}
        destination.update({name: value for name, value in rest.items() if name not in saved})

    @torch.inference_mode(False)
    def _load_from_state_dict(self, state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys,
                              error_msgs):
        parts = self._converted()
        empty = {name: torch.empty_like(value, device="meta") for name, value in self._parameters.items()}
        shapes = {prefix + name: value.shape for part in parts
                  for name, value in zip(part.theirs, part.to_allennlp(*(empty[name] for name in part.own)))}
        theirs = {name: state_dict.pop(name) for name in shapes if name in state_dict}
        missing = [name for name in shapes if name not in theirs]
        wrong = [f"size mismatch for {name}: copying a param with shape {tuple(value.shape)} from checkpoint, "
                 f"the shape in current model is {tuple(shapes[name])}."
                 for name, value in theirs.items() if value.shape != shapes[name]]
        error_msgs.extend(wrong)
        missing_keys.extend(missing)
        if wrong:  # the caller raises an error
            unexpected_keys.extend(key for key in state_dict if key.startswith(prefix) and strict)
            return
        kept = {prefix + name for part in parts if any(prefix + name in missing for name in part.theirs)
                for name in part.own}
        converted = {prefix + name: value for part in parts if prefix + part.own[0] not in kept for name, value in
                     zip(part.own, part.from_allennlp(*(theirs[prefix + name] for name in part.theirs)))}
        absent: list[str] = []
        super()._load_from_state_dict(state_dict | converted, prefix, local_metadata, strict, absent, unexpected_keys,
                                      error_msgs)
        missing_keys.extend(name for name in absent if name not in kept)


def transposed(weight: torch.Tensor) -> tuple[torch.Tensor]:
    """[n, m] -> [m, n]."""
    return (weight.t().contiguous(),)


def highway_to_allennlp(transform: torch.Tensor, carry: torch.Tensor) -> tuple[torch.Tensor]:
    """Weights [D, D] or biases [D] of the two gates -> [2 D, D] or [2 D]; AllenNLP's gate is one minus the carry."""
    return (torch.cat([transform.t(), -carry.t()]),)


def highway_from_allennlp(both: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """[2 D, D] or [2 D] -> transform and carry."""
    transform, carry = both.chunk(2)
    return transform.t().contiguous(), -carry.t().contiguous()


def gates_to_allennlp(weight: torch.Tensor, projection: int) -> tuple[torch.Tensor, torch.Tensor]:
    """W [I + P, 4 D] with gates i, j, f, o -> weights of the input [4 D, I] and of the state [4 D, P], i, f, j, o."""
    swapped = _swap_gates(weight.t())
    return swapped[:, :-projection].contiguous(), swapped[:, -projection:].contiguous()


def gates_from_allennlp(*parts: torch.Tensor) -> tuple[torch.Tensor]:
    """The inverse of `gates_to_allennlp`."""
    return transposed(_swap_gates(torch.cat(parts, dim=1)))


def bias_to_allennlp(bias: torch.Tensor) -> tuple[torch.Tensor]:
    """B [4 D] with gates i, j, f, o, without the forget gate's +1 -> gates i, f, j, o, with the +1."""
    i, j, f, o = bias.chunk(4)
    return (torch.cat([i, f + 1, j, o]),)


def bias_from_allennlp(bias: torch.Tensor) -> tuple[torch.Tensor]:
    """The inverse of `bias_to_allennlp`."""
    i, f, j, o = bias.chunk(4)
    return (torch.cat([i, j, f - 1, o]),)


def _swap_gates(rows: torch.Tensor) -> torch.Tensor:
    """Reorder gates along the first dimension from i, j, f, o to i, f, j, o, or back."""
    i, second, third, o = rows.chunk(4)
    return torch.cat([i, third, second, o])
