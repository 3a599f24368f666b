"""Peak memory of `elmo-fast` commands, a process for each."""

import os
import subprocess
import sys

# VmHWM begins anew with the program; ru_maxrss would count what its parent had.
_WORKER = """
import re, resource, sys
from pathlib import Path
from elmo_fast.cli import main
if status := main(sys.argv[1:]):
    sys.exit(status)
told = Path("/proc/self/status")
found = told.is_file() and re.search(r"VmHWM:\\s*(\\d+) kB", told.read_text())
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**10 if sys.platform == "darwin" else 1)
print(int(found[1]) if found else peak)
"""


def peak_mib(arguments: list[str], threads: int | None) -> float:
    """Peak memory of the command in a process of its own."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    if threads:
        environment["OMP_NUM_THREADS"] = str(threads)
    done = subprocess.run([sys.executable, "-c", _WORKER, *arguments], capture_output=True, text=True, env=environment)
    if done.returncode:
        raise RuntimeError(f"elmo-fast: {done.stderr.strip()[-500:]}")
    return int(done.stdout.split()[-1]) / 2**10
