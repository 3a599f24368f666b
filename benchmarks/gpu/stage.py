"""What every stage of run.sh does: arguments, a time budget, and results that survive a failure."""

import argparse
import re
import sys
import tempfile
import time
import traceback
from pathlib import Path

from benchmarks import common


class Stage:
    """Results of one stage, written after every case so that a time-out loses at most the case it hit."""

    def __init__(self, name: str, out: Path, seconds: float, dry_run: bool, strict: bool = False):
        self.strict = strict
        self.name, self.out, self.seconds, self.dry_run = name, out, seconds, dry_run
        self.began = time.monotonic()
        self.device = "cpu" if dry_run else "cuda"
        settings = {"stage": name, "dry_run": dry_run, "budget_seconds": seconds}
        self.document = common.document(f"gpu {name}", settings, [])
        self.document["status"] = "running"

    def left(self) -> float:
        """Seconds of the budget that remain."""
        return self.seconds - (time.monotonic() - self.began)

    def add(self, **case) -> dict:
        """Records one case and prints it."""
        case = common.rounded(case)
        self.document["results"].append(case)
        self.write()
        print("  " + "  ".join(f"{key}={value}" for key, value in case.items()), flush=True)
        return case

    def attempt(self, case: dict, work) -> dict:
        """Records `case` with what `work()` returns, or with the error it raises."""
        try:
            return self.add(**case, **work())
        except Exception as error:
            _free_memory()
            return self.add(**case, failed=describe(error))

    def verdict(self) -> str | None:
        """What is wrong: any failed case where `strict`, else only if no case succeeded."""
        cases = self.document["results"]
        failed = sum("failed" in case or case.get("passed") is False for case in cases)
        if failed and (self.strict or failed == len(cases)):
            return f"{failed} of {len(cases)} cases failed"
        return None

    def write(self, status: str | None = None, **more) -> None:
        self.document.update(more)
        self.document["status"] = status or self.document["status"]
        self.document["seconds"] = round(time.monotonic() - self.began, 1)
        common.write_json(self.out, self.document)


def describe(error: BaseException) -> str:
    """One line without this machine's paths."""
    first = (str(error).strip() or "no message").splitlines()[0][:300]
    return without_paths(f"{type(error).__name__}: {first}")


def without_paths(text: str) -> str:
    """Folders of this machine have no place in results that are published."""
    for folder, short in ((common.ROOT, "."), (sys.prefix, "<python>"), (sys.base_prefix, "<python>"),
                          (tempfile.gettempdir(), "<tmp>"), (Path.home(), "~")):
        text = text.replace(str(folder), short)
    return re.sub(r"\S*(?=/site-packages/)", "<python>", text)


def _free_memory() -> None:
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        torch.cuda.empty_cache()


def parser(description: str) -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(description=description)
    result.add_argument("--out", type=Path, required=True, metavar="FILE", help="JSON file to write")
    result.add_argument("--seconds", type=float, default=60, metavar="N", help="time to plan for (default: 60)")
    result.add_argument("--dry-run", action="store_true", help="tiny sizes on the CPU")
    return result


def run(name: str, work, arguments: argparse.Namespace, strict: bool = False) -> int:
    """Runs `work(stage)` and gives the exit status: 1 when it raised or its verdict is bad."""
    stage = Stage(name, arguments.out, arguments.seconds, arguments.dry_run, strict)
    stage.write()
    try:
        _prepare_device(stage)
        work(stage)
    except Exception as error:
        traceback.print_exc()
        stage.write("failed", error=describe(error))
        return 1
    wrong = stage.verdict()
    stage.write("failed" if wrong else "complete", **({"error": wrong} if wrong else {}))
    return 1 if wrong else 0


def _prepare_device(stage: Stage) -> None:
    import torch

    if stage.dry_run:
        torch.set_num_threads(1)  # tiny work: threads that share busy cores would only wait for each other
    elif not torch.cuda.is_available():
        raise RuntimeError("torch sees no CUDA device; --dry-run runs without one")
