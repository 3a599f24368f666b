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
    for index, (width, _) in enumerate(options.char_cnn.filters):
        kernel = weights[f"CNN/W_cnn_{index}"][0].astype(np.float64)  # [width, E, count]
        windows = [(characters[at : at + width, :, None] * kernel).sum((0, 1)) for at in range(len(ids) - width + 1)]
        values.append(np.max(windows, axis=0) + weights[f"CNN/b_cnn_{index}"])
    x = np.concatenate(values)
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
    (h, c), outputs = state, []
    cell_clip, proj_clip = (limit or np.inf for limit in (options.lstm.cell_clip, options.lstm.proj_clip))
    for x in sequence:
        i, j, f, o = np.split(np.concatenate([x, h]) @ w + b, 4)
        c = sigmoid(f + 1) * c + sigmoid(i) * np.tanh(j)
        counts.cell += (abs(c) > cell_clip).sum()
        c = np.clip(c, -cell_clip, cell_clip)
        h = sigmoid(o) * np.tanh(c)
        if w_p is not None:
            counts.projection += (abs(h @ w_p) > proj_clip).sum()
            h = np.clip(h @ w_p, -proj_clip, proj_clip)
        outputs.append(h)
    return np.array(outputs).reshape(len(sequence), -1), (h, c)


def layers(ids, weights, options: Options, states=None, counts=None):
    """One sentence, ids int [T, C] with its boundaries -> [L + 1, T, 2 P] and the states of its two directions."""
    tokens = np.array([token_vector(row, weights, options) for row in ids])
    outputs, finals = lstm_layers(tokens, weights, options, states, counts)
    return np.concatenate([np.tile(tokens, 2)[None], outputs]), finals


def lstm_layers(vectors, weights, options: Options, states=None, counts=None):
    """The LSTM layers over vectors [T, I] -> [L, T, 2 P] and the states of the two directions."""
    counts, lstm = counts or Counts(), options.lstm
    zero = [(np.zeros(lstm.projection_dim), np.zeros(lstm.dim))] * lstm.n_layers
    (forward, *ends), (backward, *backward_ends) = (
        run_layers(vectors[::step], states[k] if states else zero, k, weights, options, counts)
        for k, step in enumerate((1, -1)))
    return np.concatenate([forward, backward[:, ::-1]], axis=2), ends + backward_ends


def run_layers(x, states, direction, weights, options: Options, counts: Counts, masks=None):
    """x [T, I] through a direction's layers -> [L, T, P] and the final states; `masks` [T, I] of the layers' inputs."""
    outputs, after = [], []
    for layer, state in enumerate(states):
        x = x if masks is None else x * masks[layer]
        name = f"RNN_{direction}/RNN/MultiRNNCell/Cell{layer}/LSTMCell"
        w, b, w_p = (weights[f"{name}/{part}"].astype(np.float64) if f"{name}/{part}" in weights else None
                     for part in ("W_0", "B", "W_P_0"))
        out, state = run_direction(x, state, w, b, w_p, options, counts)
        x = out + x if layer and options.lstm.use_skip_connections else out
        outputs.append(x)
        after.append(state)
    return np.stack(outputs), after
