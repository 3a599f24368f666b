"""The model in torch and float64, one token and one step at a time, with its states; autograd gives the gradients."""

import numpy as np
import torch

from elmo_fast import Options
from elmo_fast.weights.datasets import lstm_name

MARKS = {"<S>": 256, "</S>": 257}


def character_ids(token, count):
    """A token as the model reads it, 1 to 261: int64 [count]."""
    inner = [MARKS[token]] if token in MARKS else list(token.encode("utf-8", "ignore")[: count - 2])
    return torch.tensor([258, *inner, 259, *[260] * (count - 2 - len(inner))]) + 1


class Counts:
    """How many values each clip changed."""

    cell = 0
    projection = 0


class PlainElmo:
    """A biLM that runs a sentence after the other. `state` is `carry`, `zero` or `warm`, with a `warm_text`.

    `weights` are leaves, by dataset name. `rows` are the carried states, (h [P], c [D]) of each row, direction and
    layer. `cached` has the vectors [P] of tokens that are not read off their characters.
    """

    boundaries = tuple(MARKS)

    def __init__(self, options: Options, weights: dict[str, np.ndarray], state="carry", warm_text=(), trained=False):
        self.options, self.counts, self.cached, self.rows = options, Counts(), {}, []
        self.weights = {name: torch.from_numpy(values).double().requires_grad_(trained)
                        for name, values in weights.items()}
        zeros = torch.zeros(options.lstm.projection_dim).double(), torch.zeros(options.lstm.dim).double()
        self.initial = [[zeros] * options.lstm.n_layers] * 2
        self.state = "carry"
        for sentence in warm_text if state == "warm" else ():
            self.batch([sentence])
        self.initial = self.rows[0] if self.rows else self.initial
        self.state, self.rows = state, []

    def batch(self, sentences):
        """Layers [L + 1, T + 2, 2 P] of each tokenized sentence; None, a row without tokens, has none."""
        vectors = {token: self.token_vector(token) for token in {*self.boundaries}.union(*filter(None, sentences))}
        (first, last), layers = self.boundaries, []
        for row, sentence in enumerate(sentences):
            if row == len(self.rows):
                self.rows.append(self.initial)
            if sentence is not None:
                start = self.rows[row] if self.state == "carry" else self.initial
                tokens = torch.stack([vectors[token] for token in (first, *sentence, last)])
                outputs, self.rows[row] = self.run(tokens, start)
                layers.append(torch.cat([tokens.repeat(1, 2)[None], outputs]))
            else:
                layers.append(None)
        return layers

    def states(self):
        """As `_states`: h [L, rows, 2 P] and c [L, rows, 2 D]."""
        return tuple(torch.stack([torch.stack([torch.cat([ends[layer][part] for ends in row]) for row in self.rows])
                                  for layer in range(self.options.lstm.n_layers)]) for part in (0, 1))

    def token_vector(self, token):
        """The vector of a token, [P]."""
        if token in self.cached:
            return self.cached[token]
        return self.encode(character_ids(token, self.options.char_cnn.max_characters_per_token))

    def encode(self, ids):
        """ids of a token's characters [C] -> [P]: convolution, maximum, bias, activation, highways, projection.

        For a model of words, the id of a word.
        """
        weights, cnn, pooled = self.weights, self.options.char_cnn, []
        if cnn is None:
            return weights["embedding"][ids - 1]
        characters = weights["char_embed"][ids - 1]  # [C, E]
        for index, (width, _) in enumerate(cnn.filters):
            windows = characters.unfold(0, width, 1).transpose(1, 2).flatten(1)  # [C - width + 1, width * E]
            kernel = weights[f"CNN/W_cnn_{index}"].flatten(0, 2)  # [width * E, n]
            pooled.append((windows @ kernel).amax(0) + weights[f"CNN/b_cnn_{index}"])
        x = getattr(torch, cnn.activation)(torch.cat(pooled))
        for layer in range(cnn.n_highway):
            w_carry, b_carry, w_transform, b_transform = (
                weights[f"CNN_high_{layer}/{name}"] for name in ("W_carry", "b_carry", "W_transform", "b_transform"))
            gate = torch.sigmoid(x @ w_carry + b_carry)
            x = gate * torch.relu(x @ w_transform + b_transform) + (1 - gate) * x
        return x @ weights["CNN_proj/W_proj"] + weights["CNN_proj/b_proj"] if "CNN_proj/W_proj" in weights else x

    def run(self, vectors, state):
        """vectors [T, P], (h, c) of each direction and layer -> [L, T, 2 P] and the states after it, detached."""
        forward, ends = self.run_direction(vectors, state[0], 0)
        backward, backward_ends = self.run_direction(vectors.flip(0), state[1], 1)
        return torch.cat([forward, backward.flip(1)], dim=2), [ends, backward_ends]

    def run_direction(self, x, states, direction, masks=None):
        """x [T, P], (h, c) of each layer -> [L, T, P] and the states after it; `masks` [T, P] of the layers' inputs."""
        outputs, ends = [], []
        for layer, (h, c) in enumerate(states):
            x, out = x if masks is None else x * masks[layer], []
            for value in x:
                h, c = self.step(value, h, c, direction, layer)
                out.append(h + value if layer and self.options.lstm.use_skip_connections else h)
            x = torch.stack(out)
            outputs.append(x)
            ends.append((h.detach(), c.detach()))
        return torch.stack(outputs), ends

    def step(self, x, h, c, direction, layer):
        """The next h and c of a cell."""
        w, b, w_p = (self.weights.get(lstm_name(direction, layer, name)) for name in ("W_0", "B", "W_P_0"))
        i, j, f, o = (torch.cat([x, h]) @ w + b).chunk(4)
        c = torch.sigmoid(f + 1) * c + torch.sigmoid(i) * torch.tanh(j)
        c = self.clip("cell", c, self.options.lstm.cell_clip)
        m = torch.sigmoid(o) * torch.tanh(c)
        return (m if w_p is None else self.clip("projection", m @ w_p, self.options.lstm.proj_clip)), c

    def clip(self, name, x, limit):
        if limit is None:
            return x
        setattr(self.counts, name, getattr(self.counts, name) + int((x.detach().abs() > limit).sum()))
        return x.clamp(-limit, limit)


def mixture(sentences, scalars, gamma, norm):
    """`gamma * sum_k softmax(scalars)_k h_k` of each sentence's layers; the norm's mean and variance are over all."""
    layers = [torch.cat(layer) for layer in zip(*sentences)]  # [N, 2 P]
    if norm:
        layers = [(layer - layer.mean()) / torch.sqrt(layer.var(unbiased=False) + 1e-12) for layer in layers]
    mixed = gamma * sum(share * layer for share, layer in zip(torch.softmax(scalars, 0), layers))
    return mixed.split([sentence.shape[1] for sentence in sentences])


def padded(sentences, length):
    """[T, ...] of each sentence, zeros behind its end: [B, length, ...]."""
    shape = next(values.shape[1:] for values in sentences if values is not None)
    batch = torch.zeros(len(sentences), length, *shape).double()
    return torch.stack([row if values is None else torch.cat([values, row[len(values) :]])
                        for row, values in zip(batch, sentences)])
