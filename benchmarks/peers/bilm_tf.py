"""bilm-tf's own trainer as a peer: from a checkout that the user names, in a Python with TensorFlow 2 and tf_keras."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.peers.external import External

WORKER = Path(__file__).with_name("bilm_tf_worker.py")


class BilmTf(External):
    """Trains in turns. `options` have bilm-tf's keys; `train` is a glob of files, `vocabulary` a file of words."""

    def __init__(self, python: str, checkout: str, options: Mapping[str, Any], train: str, vocabulary: Path,
                 folder: Path):
        self._variables = folder / "variables.npz"
        settings = {"options": options, "train": train, "vocabulary": str(vocabulary),
                    "folder": str(folder / "bilm-tf"), "threads": torch.get_num_threads(),
                    "variables": str(self._variables)}
        (folder / "settings.json").write_text(json.dumps(settings), encoding="utf-8")
        # Their code calls no seed: the order of their text differs from run to run.
        super().__init__("bilm-tf", python, WORKER, checkout, str(folder / "settings.json"))
        self.answer("ready")

    def turn(self, steps: int) -> float:
        """Train some steps; returns the seconds."""
        self.ask(steps)
        return self.answer("seconds", "done")

    def weights(self) -> dict[str, np.ndarray]:
        """Of the model as trained, by the names of bilm-tf's dump; ends the training."""
        self.finish()
        with np.load(self._variables) as found:
            return {ours_name(name): found[name] for name in found.files}


def ours_name(name: str) -> str:
    """A bilm-tf variable as the dataset that its dump calls it: RNN_0/rnn/multi_rnn_cell/cell_1/lstm_cell/kernel."""
    if not name.startswith("RNN_"):
        return name
    direction, _, _, cell, _, *leaf = name.split("/")
    last = {"kernel": "W_0", "bias": "B", "projection/kernel": "W_P_0"}["/".join(leaf)]
    return f"{direction}/RNN/MultiRNNCell/Cell{cell.removeprefix('cell_')}/LSTMCell/{last}"
