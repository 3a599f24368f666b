"""Times work on the device: events on a GPU, the clock elsewhere."""

import time

import torch

from benchmarks.common import Timing

SHORTEST = 200e-6  # seconds: shorter calls are timed in groups, or the events' own cost shows


def synchronize(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def seconds_of(call, device: str, calls: int = 1) -> float:
    """Seconds per call for `calls` calls in a row, between two events."""
    synchronize(device)
    if device != "cuda":
        start = time.perf_counter()
        for _ in range(calls):
            call()
        return (time.perf_counter() - start) / calls
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    first.record()
    for _ in range(calls):
        call()
    last.record()
    last.synchronize()
    return first.elapsed_time(last) / 1000 / calls


def measure(call, device: str, seconds: float, most: int = 30) -> Timing:
    """Median over as many repeats as `seconds` holds, at least one and at most `most`, after warming up.

    A call so long that warming up would use the time alone is timed once, cold; `rounds` is then 1.
    """
    cold = seconds_of(call, device)
    if cold > seconds / 2:
        return Timing.of([cold])
    once = seconds_of(call, device)
    calls = max(1, round(SHORTEST / max(once, 1e-9)))
    rounds = int(max(1, min(most, (seconds - cold - once) / (once * calls))))
    return Timing.of([seconds_of(call, device, calls) for _ in range(rounds)], calls)
