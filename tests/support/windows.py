"""Processes on Linux that refuse what Windows refuses (`simulated_windows/sitecustomize.py`), and so do their children.

Modules, functions and signals of POSIX are absent; SIGTERM ends a process silently. An open or mapped file can be
neither replaced, renamed nor removed, by any of its names, nor can the directories that it is in; a rename onto an
existing file fails, `os.replace` onto a directory too; directories cannot be opened, files open to read cannot be
flushed, mapped files not be truncated; some characters are forbidden in names. Workers are spawned, and the number of a
parent stays when it has ended. Text that goes to a pipe has the code page 1252.
"""

import os
import subprocess
import sys

from tests.support.files import ROOT

SIMULATION = ROOT / "tests" / "support" / "simulated_windows"


def environment(folder, **changes):
    """Environment variables of a process; processes with the same folder know of each other's open files."""
    processes = folder / ".processes"
    processes.mkdir(exist_ok=True)
    path = os.pathsep.join(filter(None, [str(SIMULATION), str(ROOT), os.environ.get("PYTHONPATH")]))
    return {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "ELMO_FAST_SIMULATED": str(processes),
            "ELMO_FAST_NO_NATIVE": "1", **changes}


def start(folder, *arguments, **options):
    """A Python process with these arguments in `folder`."""
    return subprocess.Popen([sys.executable, *map(str, arguments)], cwd=folder, env=environment(folder, **options),
                            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                            encoding="utf-8")


def run(folder, *arguments, status=0, **options):
    """stdout and stderr of a process that ended with `status`, and that did simulate Windows."""
    process = start(folder, *arguments, **options)
    out, errors = process.communicate(timeout=500)
    assert process.returncode == status, (out + errors)[-6000:]
    assert (folder / ".processes" / str(process.pid)).exists()
    return out, errors


def command(folder, *arguments, **options):
    """Like `run`, for the command."""
    return run(folder, "-m", "elmo_fast.cli", *arguments, **options)
