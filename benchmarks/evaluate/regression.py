"""A linear probe: multinomial logistic regression on dense and sparse features side by side."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from elmo_fast.environment import extra
from elmo_fast.files import stops

with extra("scikit-learn"):  # with SciPy
    from scipy.optimize import minimize
    from scipy.sparse import issparse

Features = Sequence[Any]  # blocks [N, D]: float32 arrays, scaled by the probe, or sparse matrices, left as they are
STRENGTHS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)  # C of scikit-learn's LogisticRegression, smallest first
_HELD_OUT, _SEED = 10, 0  # a tenth of the texts, by a fixed shuffle, chooses among them
# L-BFGS ends when the gradient is this part of that of zero weights, as features may be small (TF-IDF).
_ROUNDS, _TOLERANCE = 200, 1e-3


def scaled(train: Features, test: Features) -> tuple[list, list]:
    """Dense blocks minus the mean, over the standard deviation, of the training part; sparse blocks unchanged.

    Beside sparse blocks, dense ones together get the sparse ones' mean square of a row, so that one C suits both.
    """
    width = sum(block.shape[1] for block in train if not issparse(block))
    square = sum(float(block.multiply(block).sum()) / block.shape[0] for block in train if issparse(block))
    factor = np.sqrt(square / width) if square and width else 1.0
    pairs = []
    for learned, tested in zip(train, test):
        if not issparse(learned):
            mean, spread = learned.mean(0, dtype=np.float64), learned.std(0, dtype=np.float64)
            spread[spread == 0] = 1
            learned, tested = (((block - mean) * (factor / spread)).astype(np.float32) for block in (learned, tested))
        pairs.append((learned, tested))
    return [learned for learned, _ in pairs], [tested for _, tested in pairs]


def fit(features: Features, targets: np.ndarray, classes: int, strength: float, start: np.ndarray | None = None,
        tolerance: float = _TOLERANCE) -> np.ndarray:
    """Weights [D + 1, classes], the last row a bias without penalty, of scikit-learn's LogisticRegression(C=strength).

    `targets` are int [N] from 0. `start` are weights to begin with; the minimum does not depend on them.
    """
    rows, width = len(targets), sum(block.shape[1] for block in features)
    one_hot = np.eye(classes, dtype=np.float32)[targets]

    def loss(flat: np.ndarray) -> tuple[float, np.ndarray]:
        stops.check()
        weights = flat.reshape(width + 1, classes)
        logits = scores(features, weights)
        logits -= logits.max(1, keepdims=True)
        exponents = np.exp(logits)
        sums = exponents.sum(1, keepdims=True)
        errors = (exponents / sums - one_hot) / rows
        gradient = [np.asarray(block.T @ errors) for block in features]
        penalty = weights[:-1] / (strength * rows)
        value = float(np.mean(np.log(sums[:, 0], dtype=np.float64) - logits[np.arange(rows), targets]))
        gradient = np.concatenate([np.concatenate(gradient) + penalty, errors.sum(0, keepdims=True)])
        return value + 0.5 * float((weights[:-1] * penalty).sum()), gradient.astype(np.float64).ravel()

    zero = np.zeros((width + 1, classes))
    steepest = float(np.abs(loss(zero)[1][: width * classes]).max(initial=0))
    start = zero if start is None else start
    found = minimize(loss, start.ravel(), jac=True, method="L-BFGS-B",
                     options={"maxiter": _ROUNDS, "gtol": tolerance * steepest, "ftol": 64 * np.finfo(float).eps})
    return found.x.reshape(width + 1, classes)


def scores(features: Features, weights: np.ndarray) -> np.ndarray:
    """Logits float32 [N, classes]."""
    weights, first, total = weights.astype(np.float32), 0, weights[-1].astype(np.float32)
    for block in features:
        total = total + np.asarray(block @ weights[first : first + block.shape[1]])
        first += block.shape[1]
    return total


def choose(train: Features, targets: np.ndarray, classes: int, groups: np.ndarray | None = None,
           dev: tuple[Features, np.ndarray] | None = None) -> float:
    """The first of `STRENGTHS` before the loss on `dev`, features and targets, rises.

    The loss is smooth in the strength; an accuracy has ties that the rounding of sums would decide. Without `dev` a
    tenth of the `groups` of training rows (int [N], by default the rows) takes its place.
    """
    kept = np.ones(len(targets), bool)
    if dev is None:
        groups = np.arange(len(targets)) if groups is None else groups
        shuffled = np.random.default_rng(_SEED).permutation(int(groups.max()) + 1)
        held = np.isin(groups, shuffled[: len(shuffled) // _HELD_OUT])
        kept, dev = ~held, ([block[held] for block in train], targets[held])
    learned, tested = scaled([block[kept] for block in train], dev[0])
    best, chosen, weights = np.inf, STRENGTHS[0], None
    for strength in STRENGTHS:
        weights = fit(learned, targets[kept], classes, strength, weights)
        loss = log_loss(scores(tested, weights), dev[1])
        if not loss < best:
            break
        best, chosen = loss, strength
    return chosen


def log_loss(logits: np.ndarray, targets: np.ndarray) -> float:
    """The mean negative log-probability of `targets` int [N] by logits [N, classes]; 0 without rows."""
    logits = logits.astype(np.float64)
    logits -= logits.max(1, keepdims=True)
    losses = np.log(np.exp(logits).sum(1)) - logits[np.arange(len(targets)), targets]
    return float(losses.mean()) if len(losses) else 0.0


def predict(train: Features, targets: np.ndarray, test: Features, classes: int, strength: float) -> np.ndarray:
    """Predicted classes of `test`, int [M], of a probe fitted to `train`."""
    learned, tested = scaled(train, test)
    return scores(tested, fit(learned, targets, classes, strength)).argmax(1)
