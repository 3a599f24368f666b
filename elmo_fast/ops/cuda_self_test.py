"""Tiers B and C of the LSTM on a GPU against tier A, on a random layer, before they are trusted with that shape.

The cost is one layer's random weights on the device (fp32; 151 MB in the original size) and their packing on the host,
which the first use of a model's layer costs too, and at most three runs of twelve steps, waited for. On a GPU whose
blocks do not come at once, tier C waits two seconds once.
"""

import functools
import logging
import math

import numpy as np
import torch

from elmo_fast.ops import native_cuda_lstm, stepwise_lstm
from elmo_fast.ops.cuda_limits import FEWEST_STEPS, limits, resident_blocks, why_not
from elmo_fast.ops.reference import LstmWeights
from elmo_fast.ops.schedule import make_schedule

MOST_ERROR = {"fp16": 3e-3, "bf16": 3e-2}  # relative Frobenius error against A in `highest`

_RUNS = {"B": native_cuda_lstm.step_kernel, "C": native_cuda_lstm.persistent}
# lanes, and whether sentences restart. Every width of the kernel: B's steps narrow as lanes end
_CASES = {"B": ((60, True), (5, False)), "C": ((31, True), (15, False), (7, True))}
_STEPS = FEWEST_STEPS + 4
_CLIPS = {"cell_clip": 0.5, "proj_clip": 0.3}

logger = logging.getLogger(__name__)


@functools.cache
def failure(tier: str, device: torch.device, dim: int, projection: int, operand: str) -> str | None:
    """None when tier `B` or `C` agrees with A on a layer of D cells and P projected values, else what is wrong.

    Runs once for each combination; a failure is warned of. Waits for the device.
    """
    try:
        wrong = difference(_RUNS[tier], tier, device, dim, projection, operand)
    except RuntimeError as error:
        wrong = f"its self-test did not run ({error})"
    if wrong:
        logger.warning("projected_lstm: CUDA tier %s is not used for layers of %d cells and %d values on %s: %s", tier,
                       dim, projection, device, wrong)
    return wrong


@torch.inference_mode(False)
@torch.no_grad()
def difference(run, tier: str, device: torch.device, dim: int, projection: int, operand: str) -> str | None:
    """None when `run`, called as `native_cuda_lstm.step_kernel` is, agrees with A, else how far it is off."""
    weights = _weights(device, dim, projection)
    for lanes, restarts in _CASES[tier]:
        if _fits(tier, device, dim, projection, lanes, operand):
            error = _error(run, weights, lanes, restarts, device, operand)
            if not error <= MOST_ERROR[operand]:  # NaN is not
                return f"its self-test differs by {error:.1e}, at most {MOST_ERROR[operand]:g}"
    return None


def _fits(tier: str, device: torch.device, dim: int, projection: int, lanes: int, operand: str) -> bool:
    of = limits(device)
    resident = resident_blocks(of, device, dim, projection, lanes, operand) if tier == "C" else None
    return not why_not(tier, of, dim, projection, lanes=lanes, steps=_STEPS, resident=resident)


def _weights(device: torch.device, dim: int, projection: int) -> tuple[LstmWeights, LstmWeights]:
    generator = torch.Generator(device).manual_seed(0)

    def draw(*shape: int, spread: float) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, device=device) * spread

    def direction() -> LstmWeights:
        w_p = None if dim == projection else draw(dim, projection, spread=1 / math.sqrt(dim))
        return draw(2 * projection, 4 * dim, spread=1 / math.sqrt(projection)), draw(4 * dim, spread=0.1), w_p

    return direction(), direction()


def _error(run, weights, lanes: int, restarts: bool, device: torch.device, operand: str) -> float:
    """Over two sentences in each lane, of many lengths, from random states; both clips fire."""
    dim, projection = len(weights[0][1]) // 4, len(weights[0][0]) // 2
    generator = torch.Generator().manual_seed(lanes)
    lengths = _STEPS - 2 - np.arange(lanes) * (_STEPS - 2) // lanes
    schedule = make_schedule(np.concatenate([lengths, np.full(lanes, 2)]), np.tile(np.arange(lanes), 2))
    rows = torch.randint(0, 5, schedule.tokens.shape, generator=generator, dtype=torch.int32)
    inputs, h, c = (torch.randn(*shape, generator=generator).to(device)
                    for shape in ((5, projection), (lanes, 2 * projection), (lanes, 2 * dim)))
    given = inputs, rows, schedule, (h, c), weights
    restart = (h[0] / 4, c[0] / 4) if restarts else None
    out, state = run(*given, restart=restart, operand=operand, **_CLIPS)
    expected, expected_state = stepwise_lstm.projected_lstm(*given, restart=restart, precision="highest", **_CLIPS)
    pairs = zip((out, *state), (expected, *expected_state))
    errors = [float((one - other).norm() / other.norm()) for one, other in pairs]
    return max(errors, key=lambda error: math.inf if math.isnan(error) else error)
