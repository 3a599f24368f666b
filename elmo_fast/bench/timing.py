"""Timings by turns, as medians with quantiles."""

from collections.abc import Callable
from dataclasses import asdict, dataclass

import numpy as np


def rounded(value):
    """The same with five significant digits: more would be noise."""
    if isinstance(value, dict):
        return {key: rounded(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [rounded(part) for part in value]
    return float(f"{value:.5g}") if isinstance(value, float) else value


@dataclass(frozen=True)
class Timing:
    """Seconds per call: median, 20th and 80th percentile over `rounds` samples, and the samples in their order."""

    median: float
    p20: float
    p80: float
    rounds: int
    calls_per_round: int
    samples: tuple[float, ...] = ()

    @classmethod
    def of(cls, samples: list[float], calls_per_round: int = 1) -> "Timing":
        p20, median, p80 = np.percentile(samples, [20, 50, 80])
        return cls(float(median), float(p20), float(p80), len(samples), calls_per_round, tuple(samples))

    def as_dict(self, samples: bool = False) -> dict:
        return rounded({key: value for key, value in asdict(self).items() if samples or key != "samples"})

    def times_as_fast_as(self, other: "Timing") -> float:
        """Median of the ratios within a round: a slow minute then hits both sides of a ratio."""
        return float(np.median(np.divide(other.samples, self.samples)))


def take_turns(measure: dict, rounds: int, after: Callable[[object], None] | None = None) -> dict[object, list[float]]:
    """What functions measure in every round; the order moves on by one every round. `after(key)` ends a turn."""
    samples: dict[object, list[float]] = {key: [] for key in measure}
    order = list(measure)
    for _ in range(rounds):
        for key in order:
            samples[key].append(measure[key]())
            if after:
                after(key)
        order = order[1:] + order[:1]
    return samples
