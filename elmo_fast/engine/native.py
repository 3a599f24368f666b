"""The model on the C++ engine (csrc/model.h)."""

import math
import os
import sys
from collections.abc import Sequence

import numpy as np

from elmo_fast.engine.backend import effective_precision, native_module, number_of
from elmo_fast.engine.model import HostModel, RunState, in_schedule_order, in_slot_order
from elmo_fast.engine.schedule import Schedule
from elmo_fast.environment import cores
from elmo_fast.weights.datasets import DIRECTIONS, LSTM_DATASETS, Weights, lstm_name
from elmo_fast.weights.opening import WARM_TEXT
from elmo_fast.weights.options import CharCnnOptions, Options

_PADDING = 261  # the id that pads tokens


class NativeModel(HostModel):
    """A model whose weights are packed; the arrays of `weights` are not kept."""

    def __init__(self, options: Options, weights: Weights, precision: str = "highest", state: str = "warm",
                 warm_text: Sequence[Sequence[str]] = WARM_TEXT):
        super().__init__(options, weights, warm_text)
        self.precision, self.computes_in = precision, effective_precision(precision)
        self._packed = PackedWeights(options, weights, self.computes_in)
        self._embedding = None if options.char_cnn else np.array(weights["embedding"], np.float32)
        if state == "warm" and self.computes_in != "highest":  # the warm text runs in `highest`
            self._warm = NativeModel(options, weights, warm_text=warm_text)._warm

    def _encode(self, ids: np.ndarray) -> np.ndarray:
        return self._packed.encode(ids) if self._embedding is None else self._embedding[ids - 1]

    run = property(lambda self: self._packed.run)


class PackedWeights:
    """Weights of a biLM, or of its char encoder or its LSTM alone, packed for this processor; they never change.

    The arrays of `weights` are not kept; `precision` is one that the engine supports here.
    """

    def __init__(self, options: Options, weights: Weights, precision: str):
        arrays: list[np.ndarray] = []  # that the weights are packed from, while they are packed
        self._projection_dim, self._characters = options.lstm.projection_dim, 0
        if options.char_cnn is not None:
            self._characters = options.char_cnn.max_characters_per_token
        self._model = native_module()[0].Model(
            **_encoder(options.char_cnn, weights, arrays), **_stack(options, weights, arrays),
            precision=number_of(precision))
        self.size = self._model.size

    def encode(self, ids: np.ndarray) -> np.ndarray:
        """Character ids int32 [N, C], or with words [N, C + 1] -> vectors float32 [N, P]."""
        words = None
        if not 0 <= ids.shape[1] - self._characters <= 1:
            raise ValueError(f"ids: expected {self._characters} characters a token, got {ids.shape[1]}")
        if ids.shape[1] > self._characters:
            ids, words = np.ascontiguousarray(ids[:, : self._characters]), ids[:, self._characters] - 1
        vectors = np.empty((len(ids), self._projection_dim), np.float32)
        self._model.encode(ids.ctypes.data, _address(words), len(ids), vectors.ctypes.data, threads())
        return vectors

    def run(self, vectors: np.ndarray, rows: np.ndarray, schedule: Schedule, state: RunState,
            addresses: np.ndarray) -> RunState:
        """`HostModel.run`."""
        vectors, rows = np.ascontiguousarray(vectors, np.float32), np.ascontiguousarray(rows, np.int32)
        (h, c), initial = in_schedule_order(state.last, schedule), state.initial
        self._model.run(
            vectors=vectors.ctypes.data, vector_count=len(vectors), rows=rows.ctypes.data,
            steps=len(schedule.batch_sizes), batch_sizes=schedule.batch_sizes.ctypes.data, packed_rows=rows.shape[1],
            sequence_start=0 if initial is None else schedule.sequence_starts.ctypes.data,
            initial_h=0 if initial is None else initial[0].ctypes.data,
            initial_c=0 if initial is None else initial[1].ctypes.data, outputs=addresses.ctypes.data,
            slots=h.shape[1], h=h.ctypes.data, c=c.ctypes.data, threads=threads())
        return RunState(in_slot_order((h, c), schedule), initial)


def on_this_machine(precision: str) -> str:
    """The precision and the instruction set that weights are packed for."""
    return f"{precision} for {native_module()[0].cpu_isa()}"


def why_unsupported(options: Options, weights: Weights) -> str | None:
    """What the C++ engine does not support of a model, or None."""
    if not options.lstm.is_projected and any(name.endswith("/W_P_0") for name in weights):
        return "the native kernels do not support a projection to as many values as there are cells"
    return None


def threads() -> int:
    """Threads of a call: PyTorch's number where it is imported, else OMP_NUM_THREADS; at most the usable processors."""
    torch = sys.modules.get("torch")
    chosen = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0]
    count = torch.get_num_threads() if torch else int(chosen) if chosen.isdigit() else cores()
    return max(1, min(count, cores()))


def set_threads(count: int) -> None:
    """Set the number that `threads` returns in this process."""
    os.environ["OMP_NUM_THREADS"] = str(count)
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(count)


def _address(array: np.ndarray | None) -> int:
    return 0 if array is None else array.ctypes.data


def _at(weights: Weights, name: str, arrays: list[np.ndarray]) -> int:
    """The address of a weight, contiguous float32; 0 if there is none."""
    if name not in weights:
        return 0
    arrays.append(np.ascontiguousarray(weights[name], np.float32))
    return arrays[-1].ctypes.data


def _encoder(options: CharCnnOptions | None, weights: Weights, arrays: list[np.ndarray]) -> dict:
    """The arguments of the char encoder; no banks for a model of words, and for an LSTM alone."""
    embedding = next((weights[name] for name in weights if name.endswith("char_embed")), None)
    if options is None or embedding is None:
        return {"banks": []}
    arrays.append(np.concatenate([np.zeros_like(embedding[:1]), embedding]).astype(np.float32, copy=False))
    table, banks, first = arrays[-1], [], 0
    for number, (width, filters) in enumerate(options.filters):
        banks.append((width, filters, first, _at(weights, f"CNN/W_cnn_{number}", arrays), 0))
        first += filters
    biases = np.concatenate([weights[f"CNN/b_cnn_{k}"] for k in range(len(banks))]).astype(np.float32)
    arrays.append(biases)
    highways = [[_at(weights, f"CNN_high_{k}/{name}", arrays) for name in ("W_carry", "b_carry", "W_transform",
                                                                           "b_transform")]
                for k in range(options.n_highway)]
    words = next((weights[name] for name in weights if name.endswith("word_embed")), None)
    if words is not None:
        arrays.append(words := np.ascontiguousarray(words, np.float32))
    return {"characters": options.max_characters_per_token, "padding": _PADDING,
            "activation": native_module()[0].activations[options.activation], "table": table.ctypes.data,
            "table_rows": len(table), "char_dim": table.shape[1], "banks": banks,
            "char_biases": biases.ctypes.data, "highways": highways,
            "words": _address(words), "word_rows": 0 if words is None else len(words),
            "word_dim": 0 if words is None else words.shape[1],
            "token_projection": _at(weights, "CNN_proj/W_proj", arrays),
            "token_projection_bias": _at(weights, "CNN_proj/b_proj", arrays)}


def _stack(options: Options, weights: Weights, arrays: list[np.ndarray]) -> dict:
    """The arguments of the LSTM; no layers for a char encoder alone."""
    lstm = options.lstm
    count = lstm.n_layers if lstm_name(0, 0, LSTM_DATASETS[0]) in weights else 0
    layers = [[[_at(weights, lstm_name(direction, layer, name), arrays) for direction in DIRECTIONS]
               for name in LSTM_DATASETS] for layer in range(count)]
    return {"dim": lstm.dim, "projection": lstm.projection_dim, "layers": layers, "skips": lstm.use_skip_connections,
            "cell_clip": lstm.cell_clip or math.inf, "proj_clip": lstm.proj_clip or math.inf}
