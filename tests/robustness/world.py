"""Undamaged files of every kind, and a case that damages copies of them."""

import contextlib
import functools
import io
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch

from elmo_fast import cli
from tests.support.files import paths, write_model
from tests.support.training import QUIET, corpus_arguments

WORDS = ["<S>", "</S>", "<UNK>", *(f"word{k}" for k in range(300))]


@dataclass(frozen=True)
class Case:
    """A call of `run` in a child process, with its result in `right`, or any where that is None.

    A refusal names `file`, or a file in it, unless that is empty. `description` is of the damage.
    """

    description: str
    run: Callable[[], Any]
    right: tuple | None = None
    file: str = ""
    seconds: int = 10


class World:
    """Undamaged files of every kind, which cases copy."""

    def __init__(self, folder: Path):
        torch.set_num_threads(1)  # forks lack the threads of this process and would wait for them
        self.folder = folder
        self.model = write_model(folder / "model")
        self.secret = folder / "secret"
        self.secret.write_bytes(b"root:x:0:0:" * 5000)
        with h5py.File(folder / "secret.hdf5", "w") as file:
            file["values"] = np.full((64, 64), 7.0, dtype=np.float32)
        self.archive = folder / "model.zip"
        shutil.make_archive(str(self.archive.with_suffix("")), "zip", self.model)
        self.words = WORDS[3:]
        self.vocabulary, self.large_vocabulary = folder / "vocab.txt", folder / "large.txt"
        self.vocabulary.write_text("\n".join(WORDS) + "\n")
        self.large_vocabulary.write_text("\n".join([*WORDS, *(f"more{k}" for k in range(40_000))]) + "\n")
        self.table = folder / "table.hdf5"
        self.command("cache", self.vocabulary, self.table, *self.files(self.model), "--quiet")
        self.corpus = corpus_arguments(folder / "corpus")

    @functools.cached_property
    def run(self) -> Path:
        """A training run of four steps."""
        from elmo_fast.train.setup import start_or_resume

        start_or_resume(self.folder / "run", **self.corpus, **QUIET, checkpoint_every=2, max_steps=4)
        return self.folder / "run"

    @staticmethod
    def files(model: Path) -> tuple[str, ...]:
        options, weights = paths(model)
        return "--options-file", str(options), "--weight-file", str(weights)

    @staticmethod
    def command(*arguments) -> str:
        """Run the command in this process: its stdout, or `ValueError` with its one line on stderr."""
        out, errors = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
            try:
                status = cli.main([str(part) for part in arguments])
            except SystemExit as stop:  # argparse
                status = stop.code
        if status:
            lines = errors.getvalue().strip().splitlines()
            raise ValueError("\n".join(line for line in lines if "error" in line or line is lines[-1]))
        return out.getvalue()
