"""oneDNN's LSTM with projection as a peer of one layer, in its own process, from an installation the user names."""

import os
import subprocess
import tempfile
from pathlib import Path

import numpy as np
import torch

from benchmarks import common

HEADER = Path("include", "oneapi", "dnnl", "dnnl.hpp")
SOURCE = common.ROOT / "benchmarks" / "native" / "onednn_lstm.cpp"
TYPES = {"highest": "fp32", "medium": "bf16"}  # by precision of ours; oneDNN has no sum of three bf16 products
GATES = (0, 2, 1, 3)  # oneDNN's order i, f, candidate, o in ours, i, j, f, o


class OneDnnError(RuntimeError):
    """The installation is missing or does not compute this layer."""


class OneDnnLstm:
    """One direction of a layer from zero states, without clips, on PyTorch's number of threads.

    A context manager: it ends the process.

    `prefix` has `include/oneapi/dnnl` and `lib/libdnnl.so` (the packages onednn-devel-cpu-gomp and onednn-cpu-gomp put
    both under the prefix of their environment). x [T, B, I]; W [I + P, 4 D], B [4 D], W_P [D, P] as
    `reference.projected_lstm` takes them. `outputs` [T, B, P] and `implementation` are of the first run.
    """

    def __init__(self, prefix: Path, precision: str, x: np.ndarray, weights: tuple[np.ndarray, ...]):
        self._folder = tempfile.TemporaryDirectory()
        folder, (w, b, w_p) = Path(self._folder.name), weights
        cells, projection = w_p.shape
        gates = w.reshape(len(w), 4, cells)[:, GATES, :]
        bias = b.reshape(4, cells)[GATES, :] + np.array([[0], [1], [0], [0]], dtype=np.float32)  # of the forget gate
        operands = x, gates[: x.shape[2]], gates[x.shape[2]:], bias, w_p
        (folder / "operands").write_bytes(b"".join(np.float32(part).tobytes() for part in operands))
        _compile(prefix, folder / "program")
        sizes = [str(size) for size in (*x.shape, cells, projection)]
        threads = {**os.environ, "OMP_NUM_THREADS": str(torch.get_num_threads())}
        self._process = subprocess.Popen([folder / "program", TYPES[precision], *sizes, folder], text=True, env=threads,
                                         stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.implementation = self._process.stdout.readline().strip()
        if not self.implementation:
            raise OneDnnError(f"--onednn: {self._process.communicate()[1].strip()}")
        self.outputs = np.fromfile(folder / "outputs", dtype=np.float32).reshape(*x.shape[:2], projection)

    def seconds(self, runs: int) -> float:
        """Time of that many runs of two directions: twice that of the one."""
        print(runs, file=self._process.stdin, flush=True)
        return 2 * float(self._process.stdout.readline())

    def __enter__(self) -> "OneDnnLstm":
        return self

    def __exit__(self, *_) -> None:
        self._process.communicate()
        self._folder.cleanup()


def _compile(prefix: Path, program: Path) -> None:
    if not (prefix / HEADER).is_file():
        raise OneDnnError(f"--onednn: expected a directory with {HEADER} and lib/libdnnl.so, got {prefix}")
    library = prefix.resolve() / "lib"
    done = subprocess.run(["c++", "-O2", "-std=c++17", f"-I{prefix}/include", SOURCE, f"-L{library}", "-ldnnl",
                           f"-Wl,-rpath,{library}", "-o", program], capture_output=True, text=True)
    if done.returncode:
        raise OneDnnError(f"--onednn: {SOURCE.name} does not compile: {done.stderr.strip().splitlines()[0]}")
