"""The model of a GPU, or in plain PyTorch: its weights, tensors on a device, which nothing changes."""

import functools
from collections.abc import Sequence

import numpy as np
import torch

from elmo_fast.engine.model import RunState
from elmo_fast.engine.schedule import Schedule
from elmo_fast.nn.gpu.chunks import TensorModel
from elmo_fast.nn.layers.lstm import run_layers
from elmo_fast.nn.layers.token_vectors import token_vectors
from elmo_fast.ops.device import synchronize_stream, to_device
from elmo_fast.ops.linear import computes_in
from elmo_fast.ops.numerics import numerics
from elmo_fast.ops.projected_lstm.reference import State
from elmo_fast.weights.datasets import DIRECTIONS, LSTM_DATASETS, Weights, lstm_name
from elmo_fast.weights.opening import WARM_TEXT
from elmo_fast.weights.options import Options


class TorchModel(TensorModel):
    """A model on a `device`, by the ops of a `backend`; the arrays of `weights` are not kept."""

    @torch.inference_mode(False)
    def __init__(self, options: Options, weights: Weights, device: torch.device, precision: str = "highest",
                 backend: str = "auto", warm_text: Sequence[Sequence[str]] = WARM_TEXT):
        super().__init__(options, weights, warm_text)
        self.device, self.precision, self.backend = device, precision, backend
        tensors = {name: torch.tensor(values, dtype=torch.float32).to(device) for name, values in weights.items()}
        self._layers = [tuple(tuple(tensors.pop(lstm_name(direction, layer, name), None) for name in LSTM_DATASETS)
                              for direction in DIRECTIONS) for layer in range(options.lstm.n_layers)]
        self._weights = tensors  # of the tokens
        self.computes_in = computes_in(self._layers[0][0][0], backend, precision)

    def encode_tensors(self, tokens: Sequence[str]) -> torch.Tensor:
        if self.token_table is not None:
            return to_device(self.encode(tokens), self.device)
        with self.computing():
            return self._token_vectors(self.token_ids(tokens))

    def run_tensors(self, vectors: torch.Tensor, rows: torch.Tensor, schedule: Schedule,
                    state: RunState) -> tuple[list[torch.Tensor], State]:
        return run_layers(self._layers, self.options.lstm, vectors, rows, schedule, state, backend=self.backend,
                          precision=self.precision)

    @functools.cached_property
    def _warm(self) -> State:
        tokens, schedule = self._warm_steps()
        with self.computing(), numerics("highest", self.device):
            vectors = self._token_vectors(self.token_ids(tokens))
            _, last = run_layers(self._layers, self.options.lstm, vectors, torch.from_numpy(schedule.tokens), schedule,
                                 self.begin(1, "carry"), backend=self.backend)
        synchronize_stream(self.device)  # any stream may read it
        return tuple(value[:, 0] for value in last)

    def _encode(self, ids: np.ndarray) -> np.ndarray:
        with self.computing():
            return self._token_vectors(ids).cpu().numpy()

    def _token_vectors(self, ids: np.ndarray) -> torch.Tensor:
        return token_vectors(to_device(ids, self.device).long(), self._weights, self.options, self.backend)
