"""An embedder of a `BiLm`, with its current weights, device and carried states."""

import contextlib
import copy
from collections.abc import Sequence

import numpy as np

from elmo_fast.embed.embedder import Embedder
from elmo_fast.engine.model import State
from elmo_fast.engine.stream import SlotStream
from elmo_fast.environment import extra
from elmo_fast.nn import by_parts
from elmo_fast.nn.at_rest import parameter_of
from elmo_fast.nn.bilm import BiLm
from elmo_fast.nn.gpu.of_bilm import BiLmModel
from elmo_fast.nn.layers.batch_layout import remove_boundaries
from elmo_fast.nn.lookup import TokenEncoder
from elmo_fast.ops.device import to_host
from elmo_fast.ops.numerics import full_precision

with extra("torch"):
    import torch


class BiLmEmbedder(Embedder):
    """Computes with `elmo_bilm`, which carries the states. Batches run padded, by calls of the module, for the
    reference backend and where parts of the module have hooks or were replaced.
    """

    def __init__(self, bilm: BiLm):
        self.elmo_bilm = bilm
        super().__init__(BiLmModel(bilm))

    def copy(self, memo: dict) -> "BiLmEmbedder":
        twin = copy.copy(self)
        BiLmEmbedder.__init__(twin, copy.deepcopy(self.elmo_bilm, memo))
        return twin

    def __getstate__(self) -> dict:
        names = vars(self).keys() - {"model", "_state", "_lock", "_spare"}
        return {name: vars(self)[name] for name in names}

    def __setstate__(self, state: dict) -> None:
        vars(self).update(state)
        BiLmEmbedder.__init__(self, self.elmo_bilm)

    @property
    def state(self) -> str:
        return self.elmo_bilm.state

    @property
    def carried(self) -> State | None:
        """The states that `elmo_bilm` carries."""
        states = self.elmo_bilm._elmo_lstm._states
        return states and tuple(value.detach().cpu().numpy() for value in states)

    @carried.setter
    def carried(self, states: State | None) -> None:
        like = full_precision(parameter_of(self.elmo_bilm))
        if states is not None or self.elmo_bilm._elmo_lstm._states is not None:
            self.elmo_bilm._elmo_lstm._states = states and tuple(torch.from_numpy(value).to(like) for value in states)

    def exclusive(self, carried: bool) -> contextlib.AbstractContextManager:
        return self.elmo_bilm._elmo_lstm.exclusive(carried)

    def batch(self, batch: list[tuple[str, ...]], state: str, stream: SlotStream | None = None) -> list[np.ndarray]:
        if not self._runs_padded() or not batch or (len(batch) == 1 and not len(batch[0])):
            return super().batch(batch, state, stream)
        embeddings, mask = self._padded(batch, state)
        padded = to_host(embeddings.float()).numpy()
        return [vectors[:, :length].copy() for vectors, length in zip(padded, mask.sum(1).tolist())]

    def _runs_padded(self) -> bool:
        bilm = self.elmo_bilm
        return bilm.backend == "reference" or not by_parts.is_plain(TokenEncoder.of(bilm), bilm._lstm_now())

    def _padded(self, batch: Sequence[Sequence[str]], state: str) -> tuple[torch.Tensor, torch.Tensor]:
        """Vectors of a batch [B, layers, T, 2 P], zero past a sentence's end, and mask int64 [B, T]."""
        ids = self.elmo_bilm.token_source.batch_ids(batch)
        with torch.no_grad():
            output = self.elmo_bilm(ids, state=state)
        inner = [remove_boundaries(layer, output["mask"]) for layer in output["activations"]]
        return torch.stack([layer for layer, _ in inner], dim=1), inner[0][1].long()
