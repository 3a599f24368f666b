"""What the stages of run.sh share: results that survive a failure, a time budget, and a clock."""

import json
import re
import sys
import tempfile
import time
import traceback
from pathlib import Path

import torch

from benchmarks import common
from benchmarks.common import Timing

SHORTEST = 200e-6  # seconds: shorter calls are timed in groups, or the events' own cost shows


class Stage:
    """One stage. It prints JSON, a line for a case that is done, so that a time-out loses at most the case it hit."""

    def __init__(self, seconds: float, dry_run: bool, allennlp: Path | None = None):
        self.seconds, self.dry_run, self.allennlp, self.results = seconds, dry_run, allennlp, []
        self.began, self.device = time.monotonic(), "cpu" if dry_run else "cuda"

    def run(self, work) -> int:
        """The exit status: 1 when the work raised or a case of it failed."""
        say(**common.document("gpu", {"dry_run": self.dry_run, "budget_seconds": self.seconds}, []))
        error = None
        try:
            if self.dry_run:
                torch.set_num_threads(1)  # tiny work: threads that share busy cores would only wait for each other
            elif not torch.cuda.is_available():
                raise RuntimeError("torch sees no CUDA device; --dry-run runs without one")
            work(self)
            if failed := sum("failed" in case or case.get("passed") is False for case in self.results):
                error = f"{failed} of {len(self.results)} cases failed"
        except Exception as raised:
            traceback.print_exc()
            error = describe(raised)
        say(seconds=round(time.monotonic() - self.began, 1), **({"error": error} if error else {}))
        return int(error is not None)

    def left(self) -> float:
        """Seconds of the budget that remain."""
        return self.seconds - (time.monotonic() - self.began)

    def add(self, **case) -> dict:
        """Records one case."""
        self.results.append(common.rounded(case))
        say(case=self.results[-1])
        return self.results[-1]

    def attempt(self, work, needs: float = 1.0, **case) -> dict:
        """Records `case` with what `work()` returns, or with the error it raises, or why there is no time for it."""
        if not self.dry_run and self.left() < needs:
            return self.add(**case, skipped=f"{max(0.0, self.left()):.1f} s are left")
        try:
            return self.add(**case, **work())
        except Exception as error:
            return self.add(**case, failed=describe(error))

    def seconds_of(self, call, calls: int = 1) -> float:
        """Seconds per call for so many in a row: between two events on a GPU."""
        if self.device != "cuda":
            return common.seconds_per_call(call, calls)
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        first.record()
        for _ in range(calls):
            call()
        last.record()
        last.synchronize()
        return first.elapsed_time(last) / 1000 / calls

    def measure(self, call, seconds: float, most: int = 30) -> Timing:
        """Over as many repeats as `seconds` holds; a call too long to warm up in it is timed once, cold."""
        cold = self.seconds_of(call)
        if cold > seconds / 2:
            return Timing.of([cold])
        once = self.seconds_of(call)
        calls = max(1, round(SHORTEST / max(once, 1e-9)))
        rounds = int(max(1, min(most, (seconds - cold - once) / (once * calls))))
        return Timing.of([self.seconds_of(call, calls) for _ in range(rounds)], calls)


def say(**what) -> None:
    print(json.dumps(what), flush=True)


def describe(error: BaseException) -> str:
    """One line without this machine's paths."""
    return without_paths(f"{type(error).__name__}: {(str(error).strip() or 'no message').splitlines()[0][:300]}")


def without_paths(text: str) -> str:
    """Folders of this machine have no place in results that are published."""
    for folder, short in ((common.ROOT, "."), (sys.prefix, "<python>"), (sys.base_prefix, "<python>"),
                          (tempfile.gettempdir(), "<tmp>"), (Path.home(), "~")):
        text = text.replace(str(folder), short)
    return re.sub(r"\S*(?=/site-packages/)", "<python>", text)
