"""Shared by tests and benchmarks: numerical tolerances, and options of models from tiny to the published sizes.

The commit message must justify a loosened tolerance.
"""

import copy
from typing import TYPE_CHECKING, Any

from elmo_fast import arguments
from elmo_fast.engine.precision import GRADIENT_TOLERANCE, OPERANDS
from elmo_fast.train.config import FILTERS
from elmo_fast.weights.options import Options

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


def _content(lstm: dict[str, Any], char_cnn: dict[str, Any]) -> dict[str, Any]:
    """Content of an `options.json`: the sections of `TINY` with keys replaced."""
    return {"lstm": {**TINY["lstm"], **lstm}, "char_cnn": {**TINY["char_cnn"], **char_cnn}}


def standard_options(size: str, **lstm) -> dict[str, Any]:
    """Content of a published model's `options.json`; keyword arguments replace entries of `lstm`."""
    cells, projection, highways = SIZES[arguments.check_choice("size", size, tuple(SIZES))]
    filters = [[1, 4], [2, 8], [3, 12]] if size == "tiny" else FILTERS
    return _content({"dim": cells, "projection_dim": projection, **lstm},
                    {"embedding": {"dim": 16}, "filters": filters, "n_highway": highways})


def tiny(**changes) -> dict[str, Any]:
    """Content of `TINY`'s `options.json`; `lstm__dim=16` changes `dim` in the section `lstm`."""
    content = copy.deepcopy(TINY)
    for path, value in changes.items():
        *sections, key = path.split("__")
        section = content
        for name in sections:
            section = section[name]
        section[key] = value
    return content


def options(lstm: dict[str, Any] | None = None, char_cnn: dict[str, Any] | None = None) -> Options:
    """Options of a small model with odd sizes; the arguments replace keys of the two sections."""
    return Options.from_dict(_content(
        {"dim": 37, "projection_dim": 11, **(lstm or {})},
        {"embedding": {"dim": 5}, "filters": [[1, 3], [2, 6], [3, 9], [5, 7]], "n_highway": 2, **(char_cnn or {})}))


SHAPES: dict[str, Options] = {
    "two layers": options(),
    "one layer": options({"n_layers": 1}),
    "four layers": options({"n_layers": 4}),
    "tanh": options(char_cnn={"activation": "tanh"}),
    "no highway": options(char_cnn={"n_highway": 0}),
    "no skip connections": options({"use_skip_connections": False}),
    "no projection": options({"dim": 11}),
    "projection above dim": options({"dim": 7, "cell_clip": 0.3, "proj_clip": 0.05}),
    "no clips": options({"cell_clip": None, "proj_clip": None}),
    "filters as wide as the projection": options(char_cnn={"filters": [[1, 4], [4, 7]]}),
    "clips that fire": options({"cell_clip": 0.3, "proj_clip": 0.05}),
    "short tokens": options(char_cnn={"max_characters_per_token": 9}),
    "one filter as wide as a token": options(char_cnn={"filters": [[7, 8]], "max_characters_per_token": 7}),
}
