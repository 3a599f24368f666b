"""How far a fast path may be from what it is timed against: the limits of elmo_fast/engine/precision.py."""

import numpy as np

from elmo_fast import testing
from elmo_fast.engine.precision import PRECISIONS

TABLE = testing.AGAINST_FLOAT64
GRADIENT_LIMIT = testing.GRADIENT_AGAINST_FLOAT64
_OPERANDS = {"cpu": "cpu", "cuda": "bounded", "cuda model": "gpu"}  # fields of `Precision`


def limit(precision: str, exact: bool = False, where: str = "cpu") -> float:
    """Relative Frobenius error allowed `where` it is computed; `exact` is against float64, else another fp32 path.

    Both of two fp32 paths may be off by what `highest` allows, so it is added for the second.
    """
    return TABLE[getattr(PRECISIONS[precision], _OPERANDS[where])] + (0.0 if exact else TABLE["ieee"])


def relative_error(found, expected) -> float:
    """|found - expected| / |expected| in float64 over all arrays; infinite where values are missing or not finite."""
    difference = size = 0.0
    for ours, theirs in zip(found, expected, strict=True):
        ours, theirs = np.asarray(ours, dtype=np.float64), np.asarray(theirs, dtype=np.float64)
        if ours.shape != theirs.shape:
            return float("inf")
        difference += float(np.square(ours - theirs).sum())
        size += float(np.square(theirs).sum())
    error = np.sqrt(difference / size) if size else float(difference > 0)
    return float(error) if np.isfinite(error) else float("inf")


def by_layer(found: list, expected: list) -> list[float]:
    """Relative error by layer over all sentences; arrays are [layers, tokens, 2 P]."""
    return [relative_error([layers[layer] for layers in found], [layers[layer] for layers in expected])
            for layer in range(len(expected[0]))]


def require(what: str, error: float, allowed: float) -> None:
    """Raises `ValueError` where the error is above what is allowed."""
    if not error <= allowed:
        raise ValueError(f"{what}: relative error {error:.1e} (limit {allowed:.1e})")
