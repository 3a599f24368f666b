"""The whole model in NumPy: the specification of every engine, and what computes where no native module can be built.

The equations are those of Peters et al. (2018) and of bilm-tf's code: a char-CNN (Kim et al. 2015), highway layers
(Srivastava et al. 2015), and in each direction an LSTM with projection and clipping (Sak et al. 2014).
"""

import math
from collections.abc import Sequence

import numpy as np

from elmo_fast.engine.model import HostModel, RunState, State, in_schedule_order, in_slot_order, write_rows
from elmo_fast.engine.schedule import Schedule
from elmo_fast.weights.datasets import DIRECTIONS, LSTM_DATASETS, Weights, lstm_name
from elmo_fast.weights.opening import WARM_TEXT
from elmo_fast.weights.options import Options


def sigmoid(x: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):
        return 1 / (1 + np.exp(-x))


def relu(x: np.ndarray) -> np.ndarray:
    return np.maximum(x, 0)


def char_cnn(ids: np.ndarray, weights: Weights, options: Options) -> np.ndarray:
    """Character ids [N, C] -> the maximum of every filter over the windows of a token, with bias and activation."""
    cnn, values = options.char_cnn, []
    embedding = next(weights[name] for name in weights if name.endswith("char_embed"))
    table = np.vstack([np.zeros_like(embedding[:1]), embedding])
    for k, (width, _) in enumerate(cnn.filters):
        windows = np.lib.stride_tricks.sliding_window_view(ids, width, axis=1)  # [N, windows, width]
        filters = weights[f"CNN/W_cnn_{k}"].reshape(-1, len(weights[f"CNN/b_cnn_{k}"]))  # [width E, n]
        best = np.max([table[windows[:, at]].reshape(len(ids), -1) @ filters for at in range(windows.shape[1])], axis=0)
        values.append({"relu": relu, "tanh": np.tanh}[cnn.activation](best + weights[f"CNN/b_cnn_{k}"]))
    return np.concatenate(values, axis=1)


def highway(x: np.ndarray, weights: Weights, layer: int) -> np.ndarray:
    """One layer, [N, F] -> [N, F]; the carry weights gate the transformed value."""
    w_carry, b_carry, w_transform, b_transform = (
        weights[f"CNN_high_{layer}/{name}"] for name in ("W_carry", "b_carry", "W_transform", "b_transform"))
    gate = sigmoid(x @ w_carry + b_carry)
    return gate * relu(x @ w_transform + b_transform) + (1 - gate) * x


def token_vectors(ids: np.ndarray, weights: Weights, options: Options) -> np.ndarray:
    """Ids of tokens [N, ...] -> vectors [N, P]."""
    if options.char_cnn is None:
        return weights["embedding"][ids - 1]
    most = options.char_cnn.max_characters_per_token
    x = char_cnn(ids[:, :most], weights, options)
    for layer in range(options.char_cnn.n_highway):
        x = highway(x, weights, layer)
    if ids.shape[1] > most:  # ELMoForManyLangs: the last column is the word's row + 1
        words = next(weights[name] for name in weights if name.endswith("word_embed"))
        x = np.concatenate([words[ids[:, most] - 1], x], axis=1)
    return x @ weights["CNN_proj/W_proj"] + weights["CNN_proj/b_proj"] if "CNN_proj/W_proj" in weights else x


def lstm(inputs: np.ndarray, batch_sizes: np.ndarray, state: State, initial: State | None, starts: np.ndarray,
         weights: Sequence[np.ndarray | None], cell_clip: float, proj_clip: float) -> np.ndarray:
    """One direction of a layer over packed rows [S, I] -> [S, P]; changes `state`, h [slots, P] and c [slots, D].

    `initial` (h [P], c [D]) replaces a slot's state at the packed rows that `starts` [S] marks. `weights` are W
    [I + P, 4 D] and b [4 D], gates i, j, f, o, and W_P [D, P] or None.
    """
    (h, c), (w, b, w_p) = state, weights
    out, row = np.empty((len(inputs), h.shape[1]), inputs.dtype), 0
    z = inputs @ w[: inputs.shape[1]] + b  # [S, 4 D]
    recurrent = w[inputs.shape[1] :]
    for size in batch_sizes:
        if initial is not None:
            begins = np.flatnonzero(starts[row : row + size])
            h[begins], c[begins] = initial
        i, j, f, o = np.split(z[row : row + size] + h[:size] @ recurrent, 4, axis=1)
        c[:size] = np.clip(sigmoid(f + 1) * c[:size] + sigmoid(i) * np.tanh(j), -cell_clip, cell_clip)
        m = sigmoid(o) * np.tanh(c[:size])
        h[:size] = m if w_p is None else np.clip(m @ w_p, -proj_clip, proj_clip)
        out[row : row + size] = h[:size]
        row += size
    return out


class NumpyModel(HostModel):
    """The model in `dtype`, float32 or float64; its token vectors and outputs are float32 in any case."""

    def __init__(self, options: Options, weights: Weights,
                 warm_text: Sequence[Sequence[str]] = WARM_TEXT, dtype: type = np.float32):
        super().__init__(options, weights, warm_text)
        self._weights = {name: np.array(values, dtype) for name, values in weights.items()}

    def _encode(self, ids: np.ndarray) -> np.ndarray:
        return token_vectors(ids, self._weights, self.options).astype(np.float32, copy=False)

    def run(self, vectors: np.ndarray, rows: np.ndarray, schedule: Schedule, state: RunState,
            addresses: np.ndarray) -> RunState:
        sizes, initial, last = self.options.lstm, state.initial, in_schedule_order(state.last, schedule)
        clips = sizes.cell_clip or math.inf, sizes.proj_clip or math.inf
        inputs = [vectors[rows[direction]] for direction in DIRECTIONS]
        for layer in range(sizes.n_layers):
            for direction in DIRECTIONS:
                begin = tuple(values[layer].reshape(len(values[layer]), 2, -1)[:, direction] for values in last)
                first = initial and tuple(values[layer].reshape(2, -1)[direction] for values in initial)
                weights = [self._weights.get(lstm_name(direction, layer, name)) for name in LSTM_DATASETS]
                x = inputs[direction].astype(next(iter(self._weights.values())).dtype, copy=False)
                out = lstm(x, schedule.batch_sizes, begin, first, schedule.sequence_starts, weights, *clips)
                inputs[direction] = out + x if layer and sizes.use_skip_connections else out
                write_rows(inputs[direction], addresses[layer, direction])
        return RunState(in_slot_order(last, schedule), initial)
