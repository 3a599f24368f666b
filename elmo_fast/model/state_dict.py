"""AllenNLP 0.9's names, order, sign and +1 in `state_dict`, bilm-tf's layout in the parameters.

A checkpoint of AllenNLP's `Elmo` loads into ours, and ours into AllenNLP's, with `load_state_dict` alone.
"""

import torch
from torch import nn

Tensors = dict[str, torch.Tensor]


class AllenNlpStateDict(nn.Module):
    """A module whose `state_dict` has AllenNLP's names. Subclasses convert their own parameters both ways."""

    def to_allennlp(self, own: Tensors) -> Tensors:
        """Own parameters by name, as AllenNLP's tensors by name."""
        raise NotImplementedError

    def from_allennlp(self, theirs: Tensors) -> Tensors:
        """The inverse of `to_allennlp`."""
        raise NotImplementedError

    def _save_to_state_dict(self, destination, prefix, keep_vars):
        require_data(self._parameters)
        own = {name: value if keep_vars else value.detach() for name, value in self._parameters.items()}
        for name, value in self.to_allennlp(own).items():
            destination[prefix + name] = value

    def _load_from_state_dict(self, state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys,
                              error_msgs):
        own = {name: torch.empty_like(value, device="meta") for name, value in self._parameters.items()}
        shapes = {name: value.shape for name, value in self.to_allennlp(own).items()}
        theirs = {name: state_dict.pop(prefix + name) for name in shapes if prefix + name in state_dict}
        missing = [prefix + name for name in shapes if name not in theirs]
        wrong = [
            f"size mismatch for {prefix}{name}: copying a param with shape {tuple(value.shape)} from checkpoint, "
            f"the shape in current model is {tuple(shapes[name])}."
            for name, value in theirs.items() if value.shape != shapes[name]
        ]
        error_msgs.extend(wrong)
        if missing or wrong:
            missing_keys.extend(missing)
            unexpected_keys.extend(key for key in state_dict if key.startswith(prefix) and strict)
            return
        converted = {prefix + name: value for name, value in self.from_allennlp(theirs).items()}
        state_dict.update(converted)
        super()._load_from_state_dict(state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys,
                                      error_msgs)
        for name in converted:
            del state_dict[name]


def require_data(parameters: Tensors) -> None:
    """Raise `RuntimeError` when the fp32 weights were dropped: what was packed from them cannot be written."""
    gone = [name for name, value in parameters.items() if value.is_meta]
    if gone:
        raise RuntimeError(f"weights: expected fp32 weights in memory, but {', '.join(gone[:3])} and others were "
                           "dropped (keep_fp32=False); read the model again to save, move or train it")


def conv_to_allennlp(weight: torch.Tensor) -> torch.Tensor:
    """[1, width, E, n] -> [n, E, width]."""
    return weight.squeeze(0).permute(2, 1, 0).contiguous()


def conv_from_allennlp(weight: torch.Tensor) -> torch.Tensor:
    """[n, E, width] -> [1, width, E, n]."""
    return weight.permute(2, 1, 0).unsqueeze(0).contiguous()


def highway_to_allennlp(transform: torch.Tensor, carry: torch.Tensor) -> torch.Tensor:
    """Weights [D, D] or biases [D] of the two gates -> [2 D, D] or [2 D]; AllenNLP's gate is one minus the carry."""
    return torch.cat([_transposed(transform), -_transposed(carry)])


def highway_from_allennlp(both: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """[2 D, D] or [2 D] -> transform and carry."""
    transform, carry = both.chunk(2)
    return _transposed(transform).contiguous(), -_transposed(carry).contiguous()


def swap_gates(rows: torch.Tensor) -> torch.Tensor:
    """Gates i, j, f, o to i, f, j, o along the first dimension, or back."""
    i, second, third, o = rows.chunk(4)
    return torch.cat([i, third, second, o])


def bias_to_allennlp(bias: torch.Tensor) -> torch.Tensor:
    """B [4 D] in i, j, f, o, without the forget gate's +1 -> i, f, j, o, with it."""
    i, j, f, o = bias.chunk(4)
    return torch.cat([i, f + 1, j, o])


def bias_from_allennlp(bias: torch.Tensor) -> torch.Tensor:
    """The inverse of `bias_to_allennlp`."""
    i, f, j, o = bias.chunk(4)
    return torch.cat([i, j, f - 1, o])


def _transposed(value: torch.Tensor) -> torch.Tensor:
    return value.t() if value.dim() == 2 else value
