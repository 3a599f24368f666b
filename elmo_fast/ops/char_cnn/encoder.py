"""The char encoder on the C++ engine, without gradients: char-CNN, highway layers and projection below torch's ops."""

from typing import NamedTuple

import torch

from elmo_fast.engine.backend import effective_precision
from elmo_fast.ops.backend import needs_gradient, resolve
from elmo_fast.ops.char_cnn.cpu import Filters, filter_values, packed_filters
from elmo_fast.ops.cpu import on_this_machine
from elmo_fast.ops.linear.cpu import packed_product, product
from elmo_fast.ops.weight_cache import cached
from elmo_fast.ops.weight_snapshot import Tensors


class EncoderWeights(NamedTuple):
    """The weights of a char encoder.

    `all` holds char_embed [261, E], `banks` weights [1, width, E, n], `banks` biases [n], then W_carry [F, F],
    b_carry [F], W_transform and b_transform of each highway layer, and W_proj [F, P] and b_proj [P] if there is a
    projection.
    """

    all: Tensors
    banks: int

    @property
    def products(self) -> list[Tensors]:
        """The weights of the highway layers and of the projection, by layer."""
        rest = self.all[1 + 2 * self.banks :]
        return [rest[k : k + 4] for k in range(0, len(rest), 4)]


class _Packed(NamedTuple):
    filters: Filters
    products: list[tuple[torch.Tensor, str, int]]  # packed weights, epilogue and outputs of every product


def runs_on_engine(weights: EncoderWeights, ids: torch.Tensor, backend: str) -> bool:
    """Whether `encode` runs with this `backend`: in the C++ engine, on the CPU, without gradients and tracers."""
    return (ids.device.type == "cpu" and not needs_gradient(weights.all) and not torch.jit.is_tracing()
            and resolve("char_cnn", backend, *weights.all) == "native")


def encode(ids: torch.Tensor, weights: EncoderWeights, activation: str, precision: str) -> torch.Tensor:
    """Vectors of tokens: character ids [N, C] -> float32 [N, P], with the bits of the ops one after the other."""
    precision = effective_precision(precision)
    filters, products = cached(weights.all, f"char encoder {on_this_machine(precision)}",
                               lambda _: _pack(weights, precision))
    x, _ = filter_values(ids, filters, activation)
    for packed, epilogue, outputs in products:
        x = product(x, packed, outputs, epilogue, precision)
    return x


def _pack(weights: EncoderWeights, precision: str) -> _Packed:
    filters = packed_filters([tensor.detach() for tensor in weights.all[: 1 + 2 * weights.banks]])
    return _Packed(filters, [(packed_product(layer, precision), "highway" if len(layer) == 4 else "none",
                              layer[0].shape[1]) for layer in weights.products])
