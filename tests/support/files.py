"""Tiny models, texts and the command, as files and processes, for the tests of the outer parts."""

import contextlib
import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np

from elmo_fast import Options, cli, random_weights, write_weights
from elmo_fast.testing import TINY, tiny

__all__ = ["ROOT", "TINY", "full_disk", "names", "paths", "read_hdf5", "run", "spoil", "start", "tiny", "write_model"]

ROOT = Path(__file__).parents[2]


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


def names(folder):
    """Names of everything in a folder, sorted: shows what an interrupted writer left behind."""
    return sorted(path.name for path in folder.iterdir())


def read_hdf5(path):
    """Every dataset of a file, by name."""
    with h5py.File(path) as file:
        return {name: dataset[()] for name, dataset in file.items()}


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
        status = cli.main([str(each) for each in arguments])
    except SystemExit as stop:  # argparse
        status = stop.code
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def start(code_or_arguments, **options):
    """A Python process that sees the package under test: a string of code, or the arguments of the command."""
    what = ["-c", code_or_arguments] if isinstance(code_or_arguments, str) else [
        "-m", "elmo_fast.cli", *map(str, code_or_arguments)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen([sys.executable, *what], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                            text=True, **options)
