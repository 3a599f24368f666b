"""A `BiLm` as the model of the engine's streams, with its current weights, device and attributes."""

from collections.abc import Sequence

import numpy as np
import torch

from elmo_fast.engine.model import HostChunks, RunState
from elmo_fast.engine.schedule import Schedule
from elmo_fast.engine.table import TokenTable
from elmo_fast.nn.at_rest import parameter_of
from elmo_fast.nn.bilm import BiLm
from elmo_fast.nn.gpu.chunks import TensorModel
from elmo_fast.nn.lookup import TokenEncoder
from elmo_fast.ops.device import current_stream
from elmo_fast.ops.numerics import full_precision
from elmo_fast.ops.projected_lstm.reference import State
from elmo_fast.weights.options import Options


class BiLmModel(TensorModel):
    """What `TorchModel` has, computed by a `BiLm`; in the C++ engine, outputs are written to addresses."""

    def __init__(self, bilm: BiLm):
        self.bilm = bilm.eval()

    options: Options = property(lambda self: self.bilm.options)
    num_layers: int = property(lambda self: self.bilm.num_layers)
    output_dim: int = property(lambda self: self.bilm.get_output_dim())
    boundaries: tuple[str, str] = property(lambda self: self.bilm.token_source.boundaries)
    precision: str = property(lambda self: self.bilm.precision)
    computes_in: str = property(lambda self: TokenEncoder.of(self.bilm).computes_in)
    backend: str = property(lambda self: self.bilm.backend)
    warm_text: tuple[Sequence[str], ...] = property(lambda self: self.bilm.warm_text)
    token_table: TokenTable | None = property(lambda self: self.bilm.token_table)
    device: torch.device = property(lambda self: parameter_of(self.bilm).device)
    dtype: torch.dtype = property(lambda self: full_precision(parameter_of(self.bilm).new_empty(0)).dtype)
    fingerprint: str = property(lambda self: self.bilm.fingerprint())
    _products: str = property(lambda self: TokenEncoder.of(self.bilm).precision)
    _warm: State = property(lambda self: self.bilm._initial_state("warm"))

    def key(self) -> tuple:
        return TokenEncoder.of(self.bilm).key(), current_stream(self.device)

    def chunks(self, slots: int) -> HostChunks:
        with torch.no_grad():
            is_native = self.bilm._elmo_lstm.can_write(self.backend)
        return HostChunks(self) if is_native else super().chunks(slots)

    def encode(self, tokens: Sequence[str]) -> np.ndarray:
        return full_precision(self.encode_tensors(tokens)).cpu().numpy()

    def encode_tensors(self, tokens: Sequence[str]) -> torch.Tensor:
        with torch.inference_mode(False), torch.no_grad():
            return full_precision(self.bilm.encode(tokens))

    def run(self, vectors: np.ndarray, rows: np.ndarray, schedule: Schedule, state: RunState,
            addresses: np.ndarray) -> RunState:
        """As `HostModel.run`."""
        with self.computing():
            last = self.bilm._elmo_lstm.write(torch.from_numpy(vectors), rows, schedule, state, addresses,
                                              self._products)
        return RunState(last, state.initial)

    def run_tensors(self, vectors: torch.Tensor, rows: torch.Tensor, schedule: Schedule,
                    state: RunState) -> tuple[list[torch.Tensor], State]:
        return self.bilm._elmo_lstm.run(vectors, rows, schedule, state, self.backend, self._products)
