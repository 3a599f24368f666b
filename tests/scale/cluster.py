"""A Ray cluster of this machine for tests, and processes below a process."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

STARTS = 3  # Ray gives up when a machine is so busy that it has not started in 30 seconds
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
                        # for busy machines: late answers, little memory, little time for nice processes
                        "RAY_health_check_failure_threshold": "60", "RAY_memory_monitor_refresh_ms": "0",
                        "RAY_worker_niceness": "0",
                        # Otherwise a process has no token until it starts its first cluster.
                        "RAY_AUTH_MODE": "disabled",
                        "RAY_TMPDIR": folder, "RAY_DEFAULT_OBJECT_STORE_MAX_MEMORY_BYTES": str(STORE)}.items():
        monkeypatch.setenv(name, value)
    try:
        yield
    finally:
        if "ray" in sys.modules:  # the cluster of this process, whose workers read the folder
            sys.modules["ray"].shutdown()
        shutil.rmtree(folder, ignore_errors=True)


_START = f"""
import ray, sys
ray.init("local", num_cpus=2, include_dashboard=False, object_store_memory={STORE}, log_to_driver=False)
print(ray.get_runtime_context().gcs_address, flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def cluster(monkeypatch):
    """The address of a cluster of two CPUs, which a child process starts and ends."""
    with cluster_settings(monkeypatch):
        for _ in range(STARTS):
            process = subprocess.Popen([sys.executable, "-c", _START], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                       stderr=subprocess.PIPE, text=True)
            if address := process.stdout.readline().strip():
                break
            errors = process.communicate()[1]
        else:
            raise OSError(f"Ray has not started in {STARTS} tries: {errors[-2000:]}")
        try:
            yield address
        finally:
            process.communicate()


def workers_below(process):
    """Process ids of Ray's pool workers that descend from a process."""
    parents, workers = {}, []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            if (folder / "cmdline").read_bytes().startswith(b"ray::MapWorker"):
                workers.append(int(folder.name))
    return [worker for worker in workers if process in ancestors(worker, parents)]


def ancestors(process, parents):
    while (process := parents.get(process, 0)) > 1:
        yield process


def kill_one(process):
    """Kill a worker below a process with SIGKILL, and return its id."""
    worker = workers_below(process)[0]
    os.kill(worker, signal.SIGKILL)
    return worker
