"""A `BiLm` as the model of the engine's streams: on a GPU, or in plain PyTorch, with the current weights."""

from collections.abc import Hashable, Sequence

import numpy as np
import torch

from elmo_fast.engine.model import RunState, State, write_rows
from elmo_fast.engine.schedule import Schedule
from elmo_fast.engine.table import TokenTable
from elmo_fast.nn.at_rest import parameter_of
from elmo_fast.nn.bilm import BiLm
from elmo_fast.nn.layers import carried
from elmo_fast.nn.lookup import TokenEncoder
from elmo_fast.ops.forked import threads_of_a_child
from elmo_fast.ops.numerics import full_precision, numerics
from elmo_fast.weights.options import Options


class TorchModel:
    """What `engine.model.Model` has, computed by a `BiLm`, whose weights, device and attributes may change."""

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

    @property
    def fingerprint(self) -> str:
        return self.bilm.fingerprint()

    def key(self) -> Hashable:
        return TokenEncoder.of(self.bilm).key()

    def encode(self, tokens: Sequence[str]) -> np.ndarray:
        with torch.no_grad():
            return _plain(self.bilm.encode(tokens))

    def begin(self, slots: int, state: str, carried: State | None = None) -> RunState:
        if state != "carry":
            return RunState(*map(_on_host, self.bilm._begin(slots, state)))
        zeros = _on_host(self.bilm._elmo_lstm.zero_state(slots, full_precision(parameter_of(self.bilm))))
        for values, old in zip(zeros, carried or ()):
            values[:, : old.shape[1]] = old[:, :slots]
        return RunState(zeros, None)

    @threads_of_a_child()
    def run(self, vectors: np.ndarray, rows: np.ndarray, schedule: Schedule, state: RunState,
            addresses: np.ndarray) -> RunState:
        bilm, lstm = self.bilm, self.bilm._elmo_lstm
        device, precision = self.device, TokenEncoder.of(bilm).precision
        with torch.no_grad(), numerics(precision, device):
            begin = carried.RunState(*(None if part is None else tuple(
                torch.from_numpy(values).to(device) for values in part) for part in state))
            inputs = torch.from_numpy(vectors).to(device)
            if lstm.can_write(bilm.backend):
                last = lstm.write(inputs, rows, schedule, begin, addresses, precision)
            else:
                layers, last = lstm.run(inputs, torch.from_numpy(rows), schedule, begin, bilm.backend, precision)
                for layer, to in zip(layers, addresses):
                    for half, at in zip(layer.float().cpu().chunk(2, dim=1), to):
                        write_rows(half.numpy(), at)
            return RunState(_on_host(last), state.initial)


def _on_host(state: carried.State) -> State:
    return tuple(map(_plain, state))


def _plain(values: torch.Tensor) -> np.ndarray:
    return full_precision(values.detach()).cpu().numpy()
