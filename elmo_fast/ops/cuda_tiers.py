"""Which of its three engines the LSTM takes on a GPU: A `stepwise`, B the step kernel, C the persistent kernel.

`auto` goes by `cuda_tiers.json`: for each GPU by name, or else by default, rules from first to last. A rule that
fits, and whose tier runs here, decides; A runs everywhere. `ELMO_FAST_CUDA_TIER=A|B|C` forces one.
"""

import functools
import json
import logging
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path

import torch

from elmo_fast.ops.precision import PRECISIONS

TIERS = ("A", "B", "C")
VARIABLE = "ELMO_FAST_CUDA_TIER"
TABLE = Path(__file__).with_name("cuda_tiers.json")

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Work:
    """One layer's call: D cells, lanes of its first step, steps, and the precision."""

    dim: int
    lanes: int
    steps: int
    precision: str


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
    """The tier for `work`. A tier that is forced and does not run here raises `RuntimeError` with the reason."""
    forced = os.environ.get(VARIABLE, "")
    if forced:
        return _forced(forced, device)
    return by_rules(rules_of(device), work, {tier: why_not(tier, device) for tier in TIERS})


def by_rules(rules: Iterable[Rule], work: Work, reasons: Mapping[str, str | None]) -> str:
    """The tier of the first rule that fits `work`, passing over tiers with a reason against them; else A."""
    for rule in rules:
        if rule.fits(work):
            if not reasons[rule.tier]:
                return rule.tier
            _log_once(rule.tier, reasons[rule.tier])
    return "A"


def why_not(tier: str, device: torch.device) -> str | None:
    """None where a tier runs on `device`, else the reason it does not."""
    if tier == "A":
        return None
    return "this installation has no CUDA kernels for it"


def _forced(tier: str, device: torch.device) -> str:
    if tier not in TIERS:
        raise ValueError(f"{VARIABLE}: expected one of {', '.join(TIERS)}, got {tier!r}")
    reason = why_not(tier, device)
    if reason:
        raise RuntimeError(f"{VARIABLE}: tier {tier} was asked for and does not run here: {reason}")
    return tier


@functools.cache
def _log_once(tier: str, reason: str) -> None:
    logger.info("projected_lstm: CUDA tier %s is passed over: %s", tier, reason)
