"""bilm-tf's `weight_layers`: trainable mixtures of a biLM's layers, with weights that are shared by name."""

import math
import numbers
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import nn

from elmo_fast.arguments import check_count, shown
from elmo_fast.errors import ConfigurationError
from elmo_fast.nn.layers.scalar_mix import masked_layer_norm


class WeightedLayers(dict):
    """`weighted_op` [n, T, 2 P] and `regularization_op`, a scalar; call `weights`, a module, to mix other batches."""

    weights: "LayerWeights"

    def parameters(self) -> Iterator[nn.Parameter]:
        """The trained parameters, for an optimizer."""
        return self.weights.parameters()


class LayerWeights(nn.Module):
    """`gamma * sum_k softmax(W + 1/n)_k h_k` over n layers, with trainable `W` [n], initially zero, and `gamma` [1].

    With `use_top_only` `W` is None: the top layer is scaled by `gamma`, without layer norm and regularization.
    `do_layer_norm` is as in `ScalarMix`. A call on `bilm_ops` returns `WeightedLayers`. From bilm-tf's `weight_layers`.
    """

    def __init__(self, n_layers: int, l2_coef: float | None = None, use_top_only: bool = False,
                 do_layer_norm: bool = False):
        super().__init__()
        check_count("n_layers", n_layers, most=1000)
        if l2_coef is not None:
            if isinstance(l2_coef, bool) or not isinstance(l2_coef, numbers.Real) or not math.isfinite(l2_coef):
                raise ValueError(f"l2_coef: expected a number or None, got {shown(l2_coef)}")
            l2_coef = float(l2_coef)
        self.settings = {"n_layers": n_layers, "l2_coef": l2_coef, "use_top_only": bool(use_top_only),
                         "do_layer_norm": bool(do_layer_norm)}
        self.register_parameter("W", None if use_top_only else nn.Parameter(torch.zeros(n_layers, dtype=torch.float32)))
        self.gamma = nn.Parameter(torch.ones(1, dtype=torch.float32))

    def forward(self, bilm_ops: Mapping[str, Any]) -> WeightedLayers:
        """Mix `lm_embeddings` [n, layers, T, 2 P] with `mask` [n, T]; both are tensors or arrays."""
        layers, mask = _inputs(bilm_ops, self.gamma.device)
        if layers.shape[1] != self.settings["n_layers"]:
            raise ConfigurationError(f"bilm_ops: expected lm_embeddings of {self.settings['n_layers']} layers, "
                                     f"got {layers.shape[1]}")
        mixed = layers[:, -1]
        if self.W is not None:
            weights = torch.softmax(self.W + 1.0 / len(self.W), dim=0)
            mixed = sum(weight * (masked_layer_norm(layer, mask) if self.settings["do_layer_norm"] else layer)
                        for weight, layer in zip(weights, layers.unbind(1)))
        result = WeightedLayers(weighted_op=mixed * self.gamma, regularization_op=self.regularization())
        result.weights = self
        return result

    def regularization(self) -> torch.Tensor:
        """`l2_coef * sum W^2`, a scalar; zero without a coefficient or with `use_top_only`."""
        if self.W is None:
            return self.gamma.new_zeros(())
        return (self.settings["l2_coef"] or 0.0) * self.W.square().sum()

    def extra_repr(self) -> str:
        return ", ".join(f"{name}={value}" for name, value in self.settings.items())


class Variables(nn.Module):
    """The weights made by `weight_layers`, by name, as in a TensorFlow graph: `variables["input"].gamma`."""

    def __getitem__(self, name: str) -> LayerWeights:
        if name not in self:
            raise KeyError(name)
        return self._modules[_key(name)]

    def __contains__(self, name: str) -> bool:
        return _key(name) in self._modules

    def regularization_losses(self) -> list[torch.Tensor]:
        """Return the L2 terms of all names except those with `use_top_only`; add their sum to the loss."""
        return [weights.regularization() for weights in self.children() if weights.W is not None]

    def get(self, name: str, weights: LayerWeights, reuse: bool) -> LayerWeights:
        """Store `weights` under a new name; with `reuse` return the stored weights, if their settings agree."""
        if reuse and name not in self:
            raise ValueError(f"name: expected the name of weights that were made before, got {shown(name)}")
        if not reuse and name in self:
            raise ValueError(f"name: expected a new name, got {name!r}, which is taken; reuse=True shares its weights")
        if not reuse:
            self.add_module(_key(name), weights)
            return weights
        stored, settings = self[name].settings, weights.settings
        if settings["l2_coef"] is None:
            settings = {**settings, "l2_coef": stored["l2_coef"]}
        if settings != stored:
            raise ConfigurationError(f"name: expected the settings that {name!r} was made with ({stored}), "
                                     f"got {settings}")
        return self[name]


def weight_layers(name: str, bilm_ops: Mapping[str, Any], l2_coef: float | None = None, use_top_only: bool = False,
                  do_layer_norm: bool = False, *, reuse: bool = False,
                  variables: Variables | None = None) -> WeightedLayers:
    """Mix a biLM's layers with trainable weights: `{"weighted_op": [n, T, 2 P], "regularization_op": scalar}`.

    `bilm_ops` is the result of a `BidirectionalLanguageModel`, or a mapping with `lm_embeddings` [n, layers, T, 2 P]
    and `mask` [n, T]. The weights are stored under `name` in `variables`, by default those of the model that made
    `bilm_ops`, or else new ones. The first call with a name makes its weights; later calls need `reuse=True`. The other
    arguments are those of `LayerWeights`. From bilm-tf, where `reuse` belongs to a variable scope.
    """
    layers, _ = _inputs(bilm_ops)
    weights = LayerWeights(layers.shape[1], l2_coef, use_top_only, do_layer_norm).to(layers.device)
    if variables is None:
        variables = getattr(bilm_ops, "variables", None)
    if variables is None and reuse:
        raise ValueError("variables: expected the Variables with the weights to reuse, since no model made bilm_ops, "
                         "got None; or call the `weights` of the earlier result")
    variables = Variables() if variables is None else variables
    return variables.get(name, weights, bool(reuse))(bilm_ops)


def _inputs(bilm_ops: Mapping[str, Any], device: torch.device | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """Check and return the layers and the mask; arrays become tensors on `device`."""
    if not isinstance(bilm_ops, Mapping):
        raise ValueError(f"bilm_ops: expected a mapping with lm_embeddings and mask, got {type(bilm_ops).__name__}")
    missing = [name for name in ("lm_embeddings", "mask") if name not in bilm_ops]
    if missing:
        raise ValueError(f"bilm_ops: expected lm_embeddings and mask, missing {', '.join(missing)}")
    try:
        layers, mask = (value if isinstance(value, torch.Tensor) else torch.as_tensor(np.asarray(value), device=device)
                        for value in (bilm_ops["lm_embeddings"], bilm_ops["mask"]))
    except (TypeError, ValueError) as error:
        raise ValueError(f"bilm_ops: expected lm_embeddings and mask as arrays of numbers ({error})") from error
    if layers.dim() != 4 or not layers.is_floating_point():
        raise ValueError(f"bilm_ops: expected lm_embeddings of shape [sentences, layers, tokens, values], "
                         f"got {layers.dtype} of shape {tuple(layers.shape)}")
    if mask.shape != layers.shape[::2]:
        raise ValueError(f"bilm_ops: expected a mask of shape {tuple(layers.shape[::2])}, got {tuple(mask.shape)}")
    return layers, mask


def _key(name: str) -> str:
    """Return the prefix of a name's weights in a `state_dict`: `input_ELMo`, for `input_ELMo.W` and `.gamma`."""
    if not isinstance(name, str) or not name or "." in name:
        raise ValueError(f"name: expected a string without dots, got {shown(name)}")
    return f"{name}_ELMo"
