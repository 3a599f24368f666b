"""Tiny models, texts and the command, as files and processes, for the tests of the outer parts."""

import contextlib
import copy
import json
import os
import resource
import socket
import subprocess
import sys
import time
from pathlib import Path

import h5py
import numpy as np

from elmo_fast import Options, cli, random_weights, write_weights
from elmo_fast.testing import TINY

__all__ = ["ROOT", "TINY", "assert_refused", "flip", "full_disk", "kill", "names", "paths", "program", "python",
           "read_hdf5", "run", "spoil", "start", "start_until", "tiny", "unix_socket", "until", "write_model"]

ROOT = Path(__file__).parents[2]


def tiny(**changes):
    """Content of `TINY`'s `options.json`; `lstm__dim=16` changes `dim` in the section `lstm`."""
    content = copy.deepcopy(TINY)
    for path, value in changes.items():
        *sections, key = path.split("__")
        section = content
        for name in sections:
            section = section[name]
        section[key] = value
    return content


def write_model(folder, content=None, seed=0):
    """Write `options.json` and `weights.hdf5` into a folder, and return it."""
    content = content or TINY
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "options.json").write_text(json.dumps(content), encoding="utf-8")
    write_weights(folder / "weights.hdf5", random_weights(Options.from_dict(content), seed))
    return folder


def spoil(path, name="RNN_0/RNN/MultiRNNCell/Cell0/LSTMCell/B"):
    """Make a value of a file of weights NaN."""
    with h5py.File(path, "r+") as file:
        file[name][3] = np.nan


def paths(model):
    """The two files of a model's folder."""
    return model / "options.json", model / "weights.hdf5"


def program(path, text):
    """Write a shell script in place of a program, and return its path."""
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def unix_socket(path, _=None):
    with socket.socket(socket.AF_UNIX) as endpoint:
        endpoint.bind(os.fspath(path))


def names(folder):
    """Sorted names of everything in a folder, leftovers of an interrupted writer too."""
    return sorted(path.name for path in folder.iterdir())


def read_hdf5(path):
    """Every dataset of a file, by name."""
    with h5py.File(path) as file:
        return {name: dataset[()] for name, dataset in file.items()}


def flip(path, at):
    """Change a bit of a byte."""
    content = bytearray(path.read_bytes())
    content[at] ^= 0x10
    path.write_bytes(content)


@contextlib.contextmanager
def full_disk(size=6000):
    """No file of this process can grow beyond `size` bytes."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def run(capsys, *arguments):
    """Exit code, stdout and stderr of the command, run in this process."""
    try:
        status = cli.main([str(argument) for argument in arguments])
    except SystemExit as stop:  # argparse
        status = stop.code
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def assert_refused(result, message, status=2):
    """One line on stderr, nothing on stdout."""
    assert result[0] == status and result[1] == ""
    assert result[2].startswith(f"elmo-fast: error: {message}"), result[2]
    assert result[2].count("\n") == 1 and result[2].endswith("\n")


def _environment(**changes):
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    return {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", **changes}


def start(code_or_arguments, **options):
    """A Python process that sees the package under test: a string of code, or the arguments of the command."""
    args = ["-c", code_or_arguments] if isinstance(code_or_arguments, str) else [
        "-m", "elmo_fast.cli", *map(str, code_or_arguments)]
    return subprocess.Popen([sys.executable, *args], env=_environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                            text=True, **options)


def start_until(line, code):
    """Start a Python process that runs code, and return it when it has printed a line."""
    process = start(code)
    assert process.stdout.readline() == f"{line}\n", process.communicate()
    return process


def kill(process):
    process.kill()
    process.communicate()


def until(condition, seconds=60):
    """Wait until another thread or process makes `condition()` true, and return its value."""
    end = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.005)
    return value


def python(*arguments, status=0, timeout=560, **environment):
    """A Python process in the checkout that ended with `status`; `environment` has more variables."""
    process = subprocess.run([sys.executable, *map(str, arguments)], cwd=ROOT, env=_environment(**environment),
                             timeout=timeout, text=True, capture_output=True)
    assert process.returncode == status, (process.stdout + process.stderr)[-6000:]
    return process
