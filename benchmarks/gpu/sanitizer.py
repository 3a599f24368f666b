"""Stage `sanitizer`: NVIDIA's compute-sanitizer over every tier of the LSTM at small sizes, tool by tool.

The program under it is this file with --small: one layer, ragged lengths, restarts, both clips, each precision, on each
tier that runs; the first call of B and of C runs their self-tests besides.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from benchmarks import common
from benchmarks.gpu import stage as stages
from benchmarks.gpu import tiers

TOOLS = ("memcheck", "racecheck")
PLACES = (Path("/usr/local/cuda/bin"), Path("/opt/cuda/bin"))
KILLED = 15.0  # seconds that a case needs at least


def small(device: str) -> None:
    """What is watched."""
    import torch

    there = torch.device(device, torch.cuda.current_device()) if device == "cuda" else torch.device(device)
    for tier, precision in watched(there):
        with tiers.forced(tier):
            small_on(device, precision)
        print(f"tier {tier} in {precision}", flush=True)
    print("done")


def watched(device) -> list[tuple[str, str]]:
    """The tiers that run on a device, with each precision of theirs."""
    from elmo_fast.ops import cuda_tiers
    from elmo_fast.ops.precision import PRECISIONS

    work = [(tier, precision, cuda_tiers.Work(48, 16, 1, 30, precision)) for tier in cuda_tiers.TIERS
            for precision in PRECISIONS]
    return [(tier, precision) for tier, precision, each in work if not cuda_tiers.why_not(tier, device, each)]


def small_on(device: str, precision: str) -> None:
    """The calls of one tier in one precision."""
    import torch

    from elmo_fast.ops.schedule import make_schedule

    sizes = {"dim": 48, "projection_dim": 16}
    weights, stage = tiers.layer(sizes, device), stages.Stage("small", Path(os.devnull), 60, device == "cpu")
    restart = torch.full((32,), 0.1, device=device), torch.full((96,), 0.1, device=device)
    for lengths, lanes in (((9, 1, 17, 4), (0, 1, 1, 2)), ((3,), (0,))):
        schedule = make_schedule(lengths, lanes)
        count = schedule.lanes.size
        rows = torch.arange(2 * sum(lengths), dtype=torch.int32).view(2, -1) % 5
        state = torch.zeros(count, 32, device=device), torch.zeros(count, 96, device=device)
        out, _ = tiers.engine(stage)(torch.randn(5, 16, device=device), rows, schedule, state, weights,
                                     precision=precision, restart=restart, cell_clip=0.3, proj_clip=0.3)
        assert out.isfinite().all()


def command() -> str | None:
    """The program, if it is installed."""
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), *map(str, PLACES)])
    return shutil.which("compute-sanitizer", path=path)


def watch(stage: stages.Stage, tool: str) -> dict:
    """Errors that a tool counted; the case fails unless it counted none and the program ran to its end."""
    program = command()
    if stage.dry_run or program is None:
        return {"skipped": "a dry run has no kernels to watch" if stage.dry_run else "compute-sanitizer is not installed"}
    if stage.left() < KILLED:
        return {"skipped": f"{max(0.0, stage.left()):.1f} s are left"}
    done = subprocess.run(
        [program, "--tool", tool, "--target-processes", "all", sys.executable, "-m", "benchmarks.gpu.sanitizer", "--small"],
        cwd=common.ROOT, env={**os.environ, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"},
        capture_output=True, text=True, timeout=max(1.0, stage.left()))
    return verdict(done.stdout + done.stderr)


def verdict(said: str) -> dict:
    """What the tool's output means."""
    counted = re.findall(r"(?:ERROR|RACECHECK) SUMMARY: (\d+)", said)
    if not counted:
        return {"failed": "no summary: " + stages.without_paths((said.strip() or "no output").splitlines()[-1])[:200]}
    errors, ended = sum(map(int, counted)), "\ndone" in "\n" + said
    result = {"errors_found": errors, "passed": errors == 0 and ended,
              "watched": re.findall(r"^tier (\S+ in \S+)$", said, re.MULTILINE)}
    if not result["passed"]:
        result["log"] = [stages.without_paths(line)[:200] for line in said.splitlines() if "=====" in line][:20]
    return result


def work(stage: stages.Stage) -> None:
    import torch

    from elmo_fast.ops import cuda_tiers

    for tier in cuda_tiers.TIERS:
        reason = cuda_tiers.why_not(tier, torch.device(stage.device))
        if reason:
            stage.add(tier=tier, skipped=reason)
    for tool in TOOLS:
        stage.attempt({"tool": tool}, lambda: watch(stage, tool))


if __name__ == "__main__":
    if sys.argv[1:] == ["--small"]:
        sys.exit(small("cuda"))
    sys.exit(stages.run("sanitizer", work, stages.parser(__doc__).parse_args(), strict=True))
