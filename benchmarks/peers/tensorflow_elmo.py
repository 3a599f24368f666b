"""bilm-tf and simple_elmo as peers of embedding: their own code from a folder that the user names, in a Python with
TensorFlow 2 and tf_keras, in a process of its own."""

from pathlib import Path

import numpy as np
import torch

from benchmarks.peers.external import External

WORKER = Path(__file__).with_name("tensorflow_elmo_worker.py")
FILES = {"bilm-tf": Path("bilm", "model.py"), "simple_elmo": Path("simple_elmo", "elmo_helpers.py")}


class TensorFlowElmo(External):
    """A peer of `FILES` on given files; states are carried from batch to batch, and batches go over as text.

    `tensorflow` is the version that runs it.
    """

    def __init__(self, peer: str, python: str, checkout: str, options_file: Path, weight_file: Path, batch_size: int):
        flag = f"--{peer.replace('_', '-')}"
        if not (Path(checkout) / FILES[peer]).is_file():
            raise RuntimeError(f"{flag}: expected a folder with {FILES[peer]}, got {checkout}")
        super().__init__(flag, python, WORKER, peer, checkout, str(options_file), str(weight_file), str(batch_size),
                         str(torch.get_num_threads()))
        self.tensorflow: str = self.answer("ready")

    def reset_states(self) -> None:
        self.ask({"reset": True})
        self.answer("done")

    def embed_batch(self, batch: list[list[str]]) -> list[np.ndarray]:
        """[layers, tokens, 2 P] a sentence, through a file: its time is not all theirs, see `compute`."""
        file = self.folder / "vectors.npz"
        self.ask({"embed": batch, "file": str(file)})
        self.answer("done")
        with np.load(file) as found:
            return [found[f"arr_{number}"] for number in range(len(batch))]

    def compute(self, batch: list[list[str]]) -> None:
        """The same, but the vectors stay in the other process."""
        self.ask({"embed": batch})
        self.answer("done")
