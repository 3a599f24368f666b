"""Which of its three engines the LSTM takes on a GPU: A `stepwise`, B the step kernel, C the persistent kernel.

`auto` goes by `cuda_tiers.json`: for each GPU by name, or else by default, rules from first to last. A rule that
fits, and whose tier runs here, decides; A runs everywhere. `ELMO_FAST_CUDA_TIER=A|B|C` forces one. B and C are trusted
with a shape once `cuda_self_test` has run, and C on a device until a launch of it gives up there.
"""

import functools
import json
import logging
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path

import torch

from elmo_fast.ops import cuda_limits, cuda_self_test, native_cuda_lstm
from elmo_fast.ops.precision import PRECISIONS

TIERS = ("A", "B", "C")
VARIABLE = "ELMO_FAST_CUDA_TIER"
TABLE = Path(__file__).with_name("cuda_tiers.json")

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Work:
    """One layer's call: D cells, P projected values, lanes of its first step, steps, and the precision.

    `operand` is `fp16` or `bf16` where products are 16-bit. `is_projected` says whether there is a W_P, and
    `edits_count` whether an edit of the weights would be seen: it is not of inference tensors.
    """

    dim: int
    projection: int
    lanes: int
    steps: int
    precision: str
    operand: str = "fp16"
    is_projected: bool = True
    edits_count: bool = True


@dataclass(frozen=True)
class Rule:
    """`tier` is taken for work within all the limits that are given."""

    tier: str
    precisions: tuple[str, ...] = PRECISIONS
    least_dim: int = 0
    most_dim: float = float("inf")
    least_lanes: int = 0
    most_lanes: float = float("inf")
    least_steps: int = 0

    @classmethod
    def from_dict(cls, values: Mapping) -> "Rule":
        """A rule as the table has it; `ValueError` for a key or a name that is none."""
        unknown = values.keys() - {each.name for each in fields(cls)}
        precisions = tuple(values.get("precisions", PRECISIONS))
        if unknown or values.get("tier") not in TIERS or set(precisions) - set(PRECISIONS):
            raise ValueError(f"rule: expected a tier of {', '.join(TIERS)}, precisions and limits, got {dict(values)}")
        return cls(**{**values, "precisions": precisions})

    def fits(self, work: Work) -> bool:
        return (work.precision in self.precisions and self.least_dim <= work.dim <= self.most_dim
                and self.least_lanes <= work.lanes <= self.most_lanes and self.least_steps <= work.steps)


def read_rules(table: Mapping, gpu: str) -> tuple[Rule, ...]:
    """The rules of a table for a GPU of that name."""
    return tuple(map(Rule.from_dict, table.get("by_gpu", {}).get(gpu) or table["rules"]))


@functools.cache
def rules_of(device: torch.device) -> tuple[Rule, ...]:
    """The rules of the installed table for a device."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else ""
    return read_rules(json.loads(TABLE.read_text(encoding="utf-8")), name)


def choose(work: Work, device: torch.device) -> str:
    """The tier for `work`; A where there is none to do.

    A tier that is forced and cannot run it raises `RuntimeError` with the reason. How few steps C pays for is no reason
    then.
    """
    forced = os.environ.get(VARIABLE, "")
    if forced not in ("", *TIERS):
        raise ValueError(f"{VARIABLE}: expected one of {', '.join(TIERS)}, got {forced!r}")
    if not work.lanes:
        return "A"
    if forced:
        return _forced(forced, device, replace(work, steps=max(work.steps, cuda_limits.FEWEST_STEPS)))
    return by_rules(rules_of(device), work, lambda tier: why_not(tier, device, work))


def by_rules(rules: Iterable[Rule], work: Work, reason_against: Callable[[str], str | None]) -> str:
    """The tier of the first rule that fits `work`, passing over tiers with a reason against them; else A."""
    for rule in rules:
        if rule.fits(work):
            reason = reason_against(rule.tier)
            if not reason:
                return rule.tier
            _log_once(rule.tier, reason)
    return "A"


def why_not(tier: str, device: torch.device, work: Work | None = None) -> str | None:
    """None where a tier runs `work` on `device`, or some work when none is given, else the reason it does not.

    With `work` the first question about a shape runs the self-test, which waits for the device.
    """
    if tier == "A":
        return None
    reason = cuda_limits.lacks(tier, device)
    if reason or work is None:
        return reason
    return _unfit(tier, device, work) or _distrusted(tier, device, work)


def _unfit(tier: str, device: torch.device, work: Work) -> str | None:
    """What the shape says against a tier."""
    of = cuda_limits.limits(device)
    shape = {"lanes": work.lanes, "steps": work.steps, "precision": work.precision, "has_projection": work.is_projected}
    reason = cuda_limits.why_not(tier, of, work.dim, work.projection, **shape)
    if reason:
        return reason
    if not work.edits_count:
        return "its packed weights could not be kept from call to call: the model was made in inference mode"
    if tier == "B":
        return None
    try:
        resident = cuda_limits.resident_blocks(of, device, work.dim, work.projection, work.lanes, work.operand)
    except RuntimeError as error:
        return str(error)
    return cuda_limits.why_not(tier, of, work.dim, work.projection, resident=resident, **shape)


def _distrusted(tier: str, device: torch.device, work: Work) -> str | None:
    """What was seen of a tier in this process."""
    gave_up = f"it gave up on {device} before"
    if tier == "C" and native_cuda_lstm.gave_up(device):
        return gave_up
    wrong = cuda_self_test.failure(tier, device, work.dim, work.projection, work.operand)
    if wrong:
        return wrong
    return gave_up if tier == "C" and native_cuda_lstm.gave_up(device) else None


def _forced(tier: str, device: torch.device, work: Work) -> str:
    reason = why_not(tier, device, work)
    if reason:
        raise RuntimeError(f"{VARIABLE}: tier {tier} was asked for and does not run here: {reason}")
    return tier


@functools.cache
def _log_once(tier: str, reason: str) -> None:
    logger.info("projected_lstm: CUDA tier %s is passed over: %s", tier, reason)
