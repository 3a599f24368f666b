"""A Ray cluster of this machine for tests, and processes below a process."""

import contextlib
import os
import shutil
import signal
import tempfile
import time
from pathlib import Path

STORE = 200 << 20  # bytes
KILLS = int(os.environ.get("ELMO_FAST_KILLS", 2))  # times that a test kills a worker
TEXTS = [f"The {number} foxes jumped over a dog , again ." for number in range(2000)]
TEXTS[7] = ""
TEXTS[8] = "one"
TEXTS[9] = "a long text of 2,000 words " * 400


@contextlib.contextmanager
def cluster_settings(monkeypatch):
    """The environment of a small, quiet cluster, whose files are removed at the end."""
    folder = tempfile.mkdtemp(prefix="ray-", dir="/tmp")  # names of sockets must be short
    for name, value in {"RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0", "RAY_USAGE_STATS_ENABLED": "0",
                        # of a busy machine, which answers late and is short of memory
                        "RAY_health_check_failure_threshold": "60", "RAY_memory_monitor_refresh_ms": "0",
                        "RAY_TMPDIR": folder, "RAY_DEFAULT_OBJECT_STORE_MAX_MEMORY_BYTES": str(STORE)}.items():
        monkeypatch.setenv(name, value)
    try:
        yield
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def workers_below(process):
    """Ids of the processes of Ray's pools of actors that descend from a process."""
    parents, found = {}, []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            if (folder / "cmdline").read_bytes().startswith(b"ray::MapWorker"):
                found.append(int(folder.name))
    return [each for each in found if process in ancestors(each, parents)]


def ancestors(process, parents):
    while (process := parents.get(process, 0)) > 1:
        yield process


def kill_one(process):
    """Kill a worker below a process, with SIGKILL: its id."""
    worker = workers_below(process)[0]
    os.kill(worker, signal.SIGKILL)
    return worker


def wait_until(condition, seconds=120):
    end = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)
    return value
