"""The weights of a biLM in memory: by dataset, and identified."""

import numpy as np

from elmo_fast.ops.calling_thread import threads_of_a_child
from elmo_fast.ops.weight_snapshot import check_in_full
from elmo_fast.outside_graphs import OutsideGraphs
from elmo_fast.weights.datasets import fingerprint


class StoredWeights(OutsideGraphs):
    """The part of `BiLm` that stores the weights."""

    @threads_of_a_child()
    def fingerprint(self) -> str:
        """32 hexadecimal digits that identify the network's options and the current weights."""
        check_in_full(self.parameters())
        return self._last_fingerprint.get(None, self._layers(), lambda: fingerprint(self.weights(), self.options))

    def weights(self) -> dict[str, np.ndarray]:
        """The weights by dataset name, float32, in file order; `write_weights` gives a file that loads anywhere."""
        return {dataset: getattr(module, parameter).detach().float().cpu().numpy()
                for module in (self._token_embedder, self._elmo_lstm)
                for parameter, dataset in module.datasets.items()}
