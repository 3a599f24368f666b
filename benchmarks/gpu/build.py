"""Stage `build`: installs the checkout without network, then says which backend each op has on this machine."""

import json
import subprocess
import sys
import time

from benchmarks import common
from benchmarks.gpu import stage as stages

INSTALL = ("-m", "pip", "install", "--no-index", "--no-build-isolation", "--no-deps", "--no-input", "-e", ".")
TAIL = 15  # lines of a failed build's log that go into the results

BACKENDS = """
import json, sys, torch
from elmo_fast.ops.backend import BACKENDS, OPS, why_not
operands = [torch.empty(0, device=sys.argv[1])]
print(json.dumps({op: {backend: why_not(op, backend, operands) or "available"
                       for backend in BACKENDS if backend != "auto"} for op in OPS}))
"""


def install(stage: stages.Stage) -> dict:
    """Runs the build; one that fails leaves the checkout importable in pure Python, so later stages go on."""
    if stage.dry_run:
        return {"skipped": "a dry run installs nothing"}
    began = time.monotonic()
    try:
        done = subprocess.run([sys.executable, *INSTALL], cwd=common.ROOT, capture_output=True, text=True,
                              timeout=max(1.0, stage.left()))
    except subprocess.TimeoutExpired:
        return {"failed": f"not built after {stage.seconds:.0f} s"}
    log = (done.stdout + done.stderr).splitlines()
    result = {"seconds": round(time.monotonic() - began, 1), "exit": done.returncode}
    if done.returncode:
        print("\n".join(log[-60:]))
        result["failed"] = "the build did not succeed"
        result["log"] = [stages.without_paths(line)[:300] for line in log[-TAIL:]]
    return result


def backends(stage: stages.Stage) -> dict:
    """What a fresh process finds: this one imported nothing of the package."""
    done = subprocess.run([sys.executable, "-c", BACKENDS, stage.device], cwd=common.ROOT, capture_output=True,
                          text=True, timeout=120)
    if done.returncode:
        raise RuntimeError((done.stderr.strip() or "no output").splitlines()[-1])
    return {"ops": json.loads(done.stdout)}


def work(stage: stages.Stage) -> None:
    stage.attempt({"case": "install"}, lambda: install(stage))
    stage.attempt({"case": "backends"}, lambda: backends(stage))


if __name__ == "__main__":
    sys.exit(stages.run("build", work, stages.parser(__doc__).parse_args(), strict=True))
