"""`torch.nn.LSTM(proj_size)` as a peer of one layer: both directions, zero states, no clips."""

import warnings

import numpy as np
import torch

from benchmarks import common

GATES = (0, 2, 1, 3)  # torch's order i, f, candidate, o in ours, i, j, f, o


class TorchLstm:
    """A layer in fp32. x [T, B, P]; of each direction W [2 P, 4 D], B [4 D], W_P [D, P]. `outputs` [T, B, 2 P]."""

    def __init__(self, x: torch.Tensor, weights: tuple[tuple[torch.Tensor, ...], ...]):
        cells, projection = weights[0][2].shape
        self._x = x
        self._lstm = torch.nn.LSTM(x.shape[2], cells, proj_size=projection, bidirectional=True).eval()
        warnings.filterwarnings("ignore", message="LSTM with projections is not supported with oneDNN")
        with torch.no_grad():
            for direction, suffix in zip(weights, ("", "_reverse")):
                for name, value in _parameters(*direction, x.shape[2]).items():
                    getattr(self._lstm, f"{name}_l0{suffix}").copy_(value)
            self.outputs: np.ndarray = self._lstm(x)[0].numpy()

    def seconds(self, runs: int) -> float:
        """Time of that many runs."""
        def call():
            with torch.no_grad():
                self._lstm(self._x)

        return runs * common.seconds_per_call(call, runs)


def _parameters(w: torch.Tensor, b: torch.Tensor, w_p: torch.Tensor, inputs: int) -> dict[str, torch.Tensor]:
    cells = len(w_p)
    gates = w.reshape(len(w), 4, cells)[:, GATES, :].reshape(len(w), 4 * cells)
    bias = b.reshape(4, cells)[GATES, :].clone()
    bias[1] += 1  # of the forget gate
    return {"weight_ih": gates[:inputs].T, "weight_hh": gates[inputs:].T, "weight_hr": w_p.T,
            "bias_ih": bias.reshape(-1), "bias_hh": torch.zeros(4 * cells)}
