"""Interleaves measurements, and rounds them."""

from collections.abc import Callable


def rounded(value):
    """Round floats, also nested ones, to five significant digits: more would be noise."""
    if isinstance(value, dict):
        return {key: rounded(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [rounded(part) for part in value]
    return float(f"{value:.5g}") if isinstance(value, float) else value


def take_turns(measure: dict, rounds: int, after: Callable[[object], None] | None = None) -> dict[object, list[float]]:
    """Call every function once per round; the order rotates by one each round. `after(key)` runs after each call."""
    samples: dict[object, list[float]] = {key: [] for key in measure}
    order = list(measure)
    for _ in range(rounds):
        for key in order:
            samples[key].append(measure[key]())
            if after:
                after(key)
        order = order[1:] + order[:1]
    return samples
