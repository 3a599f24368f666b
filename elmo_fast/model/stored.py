"""The weights of a biLM in memory: by dataset, identified, dropped once they are packed, and copied."""

from typing import Self

import numpy as np
import torch

from elmo_fast.errors import ConfigurationError
from elmo_fast.model.layers.state_dict import require_data
from elmo_fast.model.opening import ModelOptions
from elmo_fast.model.sources import ModelFiles
from elmo_fast.model.weights import fingerprint
from elmo_fast.ops.backend import resolve
from elmo_fast.ops.calling_thread import threads_of_a_child
from elmo_fast.ops.projected_lstm import unsupported_weights
from elmo_fast.ops.projected_lstm.reference import State
from elmo_fast.ops.weight_snapshot import check_in_full
from elmo_fast.outside_graphs import OutsideGraphs


class StoredWeights(OutsideGraphs):
    """The part of `BiLm` that stores the weights."""

    _files: ModelFiles | None = None  # that the weights were read from
    _dropped_fingerprint = ""

    @threads_of_a_child()
    def fingerprint(self) -> str:
        """32 hexadecimal digits that identify the network's options and the current weights."""
        check_in_full(self.parameters())
        return self._last_fingerprint.get(None, self._layers(), lambda: fingerprint(self.weights(), self.options))

    def weights(self) -> dict[str, np.ndarray]:
        """The weights by dataset name, float32, in file order; `write_weights` gives a file that loads anywhere.

        Weights that `drop_fp32` has dropped are read again from the model's file.
        """
        by_dataset = {dataset: getattr(module, parameter).detach()
                      for module in (self._token_embedder, self._elmo_lstm)
                      for parameter, dataset in module.datasets.items()}
        read = self._read_again() if self.is_packed else {}
        return {dataset: read[dataset] if value.is_meta else value.float().cpu().numpy()
                for dataset, value in by_dataset.items()}

    @property
    def is_packed(self) -> bool:
        """Whether the matrices are in memory only as the C++ engine has packed them (see `drop_fp32`)."""
        return any(value.is_meta for value in self.parameters())

    @threads_of_a_child()
    def drop_fp32(self) -> Self:
        """Keep the matrices in memory only as the C++ engine packs them for `precision`; returns the model.

        The vectors keep their bits. The model can no longer be saved, moved, trained, or run in another precision
        (`RuntimeError`). `weights`, copies and pickles read its files again. Raises `ConfigurationError` unless the
        engine runs the model on the CPU.
        """
        stack = self._elmo_lstm
        lacking = unsupported_weights(stack.layer_weights(0))
        if resolve("projected_lstm", self.backend, stack.B_0_0, unsupported=lacking) != "native" or (
                stack.B_0_0.device.type != "cpu"):
            raise ConfigurationError("drop_fp32: expected a model that the native engine runs on the CPU, got one on "
                                     f"{stack.B_0_0.device} with the backend {self.backend!r}")
        if not self.is_packed:
            if self._token_embedder.reads_text:
                self._initial_state("warm")
            self._dropped_fingerprint = self.fingerprint()
            self._token_embedder.drop_fp32(self._precision)
            stack.drop_fp32(self._precision)
            for result in (self._last_fingerprint, self._warm_state):
                result.set_weights(self._layers())
        return self

    def _read_again(self) -> dict[str, np.ndarray]:
        """The weights in the model's files; `RuntimeError` if they are no longer those that were packed."""
        if self._files is None:
            for module in (self._token_embedder, self._elmo_lstm):
                require_data(module._parameters)
        options, weights = self._files.family.implementation.read(self._files)
        weights = self._in_type(weights)
        if fingerprint(weights, options) != self._dropped_fingerprint:
            raise RuntimeError(f"weights: expected those that the model was made of in {self._files.weight_file}, "
                               "got others; read the model again")
        return weights

    def _in_type(self, weights: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Weights as rounded to the type of the model's parameters."""
        dtype = self._elmo_lstm.B_0_0.dtype
        return {name: torch.from_numpy(values).to(dtype).float().numpy() for name, values in weights.items()}

    def __getstate__(self) -> dict:
        return {**self.__dict__, "_files": None}  # the paths of one machine

    def __reduce_ex__(self, protocol: int):
        if self._files is None or not self.is_packed:
            return super().__reduce_ex__(protocol)
        opening = ModelOptions(self.state, self.precision, self.backend, warm_text=self.warm_text,
                               token_table=self.token_table)
        return _packed_copy, (type(self), self._files, self._dropped_fingerprint, self._elmo_lstm._states, opening,
                              self._elmo_lstm.B_0_0.dtype, self._word_embedding, self.training)


def _packed_copy(kind: type[StoredWeights], files: ModelFiles, expected: str, states: State | None,
                 opening: ModelOptions, dtype: torch.dtype = torch.float32, words: torch.nn.Module | None = None,
                 training: bool = True) -> StoredWeights:
    """A model like one without fp32 weights, from the same files, with cached words."""
    bilm = kind.from_model(files, opening).to(dtype)
    bilm.lstm._states = states
    bilm._word_embedding = words
    bilm.train(training)
    bilm.drop_fp32()
    if bilm.fingerprint() != expected:
        raise RuntimeError(f"weights: expected those that the model was made of in {files.weight_file}, got others")
    return bilm
