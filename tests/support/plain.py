"""The model in NumPy and float64, one token and one step at a time, which the reference is checked against."""

import numpy as np

from elmo_fast import Options


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def token_vector(ids, weights, options: Options):
    """ids int [C] of one token, 0 to 261 -> [P]."""
    table = np.vstack([np.zeros_like(weights["char_embed"][:1]), weights["char_embed"]]).astype(np.float64)
    characters = table[ids]  # [C, E]
    values = []
    for index, (width, count) in enumerate(options.char_cnn.filters):
        kernel, bias = weights[f"CNN/W_cnn_{index}"][0].astype(np.float64), weights[f"CNN/b_cnn_{index}"]
        for number in range(count):
            windows = [(characters[at : at + width] * kernel[:, :, number]).sum()
                       for at in range(len(ids) - width + 1)]
            values.append(max(windows) + bias[number])
    x = np.array(values)
    x = np.maximum(x, 0) if options.char_cnn.activation == "relu" else np.tanh(x)
    for layer in range(options.char_cnn.n_highway):
        part = {name: weights[f"CNN_high_{layer}/{name}"].astype(np.float64)
                for name in ("W_carry", "b_carry", "W_transform", "b_transform")}
        gate = sigmoid(x @ part["W_carry"] + part["b_carry"])
        x = gate * np.maximum(x @ part["W_transform"] + part["b_transform"], 0) + (1 - gate) * x
    if "CNN_proj/W_proj" in weights:
        x = x @ weights["CNN_proj/W_proj"].astype(np.float64) + weights["CNN_proj/b_proj"]
    return x


class Counts:
    """How many values each clip changed."""

    cell = 0
    projection = 0


def run_direction(sequence, state, w, b, w_p, options: Options, counts: Counts):
    """sequence [T, I], state (h [P], c [D]) -> outputs [T, P] and the final state."""
    h, c = state
    lstm = options.lstm
    outputs = []
    for x in sequence:
        i, j, f, o = np.split(np.concatenate([x, h]) @ w + b, 4)
        c = sigmoid(f + 1) * c + sigmoid(i) * np.tanh(j)
        if lstm.cell_clip is not None:
            counts.cell += (abs(c) > lstm.cell_clip).sum()
            c = np.clip(c, -lstm.cell_clip, lstm.cell_clip)
        h = sigmoid(o) * np.tanh(c)
        if w_p is not None:
            h = h @ w_p
            if lstm.proj_clip is not None:
                counts.projection += (abs(h) > lstm.proj_clip).sum()
                h = np.clip(h, -lstm.proj_clip, lstm.proj_clip)
        outputs.append(h)
    return np.array(outputs).reshape(len(sequence), -1), (h, c)


def layers(ids, weights, options: Options, states=None, counts=None):
    """One sentence, ids int [T, C] with its boundaries -> [L + 1, T, 2 P] and the states of its two directions."""
    tokens = np.array([token_vector(row, weights, options) for row in ids])
    outputs, finals = lstm_layers(tokens, weights, options, states, counts)
    return np.concatenate([np.tile(tokens, 2)[None], outputs]), finals


def lstm_layers(vectors, weights, options: Options, states=None, counts=None):
    """The LSTM layers over vectors [T, I] -> [L, T, 2 P] and the states of the two directions."""
    counts = counts or Counts()
    lstm = options.lstm
    halves, finals = [], []
    for direction in (0, 1):
        x = vectors if direction == 0 else vectors[::-1]
        half, final = [], []
        for layer in range(lstm.n_layers):
            name = f"RNN_{direction}/RNN/MultiRNNCell/Cell{layer}/LSTMCell"
            w, b, w_p = (weights[f"{name}/{part}"].astype(np.float64) if f"{name}/{part}" in weights else None
                         for part in ("W_0", "B", "W_P_0"))
            start = states[direction][layer] if states else (np.zeros(lstm.projection_dim), np.zeros(lstm.dim))
            out, end = run_direction(x, start, w, b, w_p, options, counts)
            x = out + x if layer and lstm.use_skip_connections else out
            half.append(x if direction == 0 else x[::-1])
            final.append(end)
        halves.append(half)
        finals.append(final)
    return np.stack([np.concatenate(pair, axis=1) for pair in zip(*halves)]), finals
