"""Shared by tests and benchmarks: numerical tolerances, and options of models of the published sizes and a tiny one.

The commit message must justify a loosened tolerance.
"""

from typing import TYPE_CHECKING, Any

from elmo_fast import arguments
from elmo_fast.engine.precision import GRADIENT_TOLERANCE, OPERANDS
from elmo_fast.train.config import FILTERS

if TYPE_CHECKING:
    import torch

# Relative Frobenius error of a layer against the float64 reference, by the operand type of its matrix products.
AGAINST_FLOAT64 = {name: operands.tolerance for name, operands in OPERANDS.items()}
AGAINST_FLOAT64["bf16 weights"] = 5e-3  # where products are fp32
GRADIENT_AGAINST_FLOAT64 = GRADIENT_TOLERANCE
AGAINST_TENSORFLOW = 1e-5  # largest absolute error against embeddings that TensorFlow wrote
PERPLEXITY = {"high": 1e-4, "medium": 1e-3, "low": 7e-3}  # largest relative difference from that in `highest`
SAME_MODEL = 2e-6  # largest absolute error between two fp32 runs of a model whose sums may be ordered differently

SIZES = {"tiny": (32, 16, 1), **arguments.SIZES}  # tiny is for dry runs
TINY = {
    "lstm": {"dim": 8, "projection_dim": 4, "n_layers": 2, "use_skip_connections": True, "cell_clip": 3,
             "proj_clip": 3},
    "char_cnn": {"embedding": {"dim": 3}, "filters": [[1, 4], [2, 6]], "n_highway": 1, "n_characters": 262,
                 "max_characters_per_token": 50, "activation": "relu"},
}


def relative_error(actual: "torch.Tensor", expected: "torch.Tensor") -> float:
    """|actual - expected| / |expected|, Frobenius norms in float64."""
    actual, expected = actual.double(), expected.double()
    return float((actual - expected).norm() / expected.norm())


def standard_options(size: str, **lstm) -> dict[str, Any]:
    """Content of a published model's `options.json`; keyword arguments replace entries of `lstm`."""
    cells, projection, highways = SIZES[arguments.check_choice("size", size, tuple(SIZES))]
    filters = [[1, 4], [2, 8], [3, 12]] if size == "tiny" else FILTERS
    return {"lstm": {**TINY["lstm"], "dim": cells, "projection_dim": projection, **lstm},
            "char_cnn": {**TINY["char_cnn"], "embedding": {"dim": 16}, "filters": filters, "n_highway": highways}}
