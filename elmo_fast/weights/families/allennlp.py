"""Models in AllenNLP's checkpoints, such as `weights.th` of a `model.tar.gz`: an Elmo's parameters under any prefix.

`find_model` writes such a model as `options.json` and HDF5 into the cache. ELMoForManyLangs' LSTM and highway layers
are AllenNLP's, so that its reader takes tensors by the same functions.
"""

import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from elmo_fast.errors import ConfigurationError
from elmo_fast.files.tensors import described, is_plain, load_tensors
from elmo_fast.weights.datasets import DIRECTIONS, LSTM_DATASETS, check_all_read, check_finite, lstm_name, write_model
from elmo_fast.weights.options import N_CHARACTERS, CharCnnOptions, LstmOptions, Options

_CHARACTERS, _WORDS = "_token_embedder._char_embedding_weights", "_token_embedder.embedding"


def convert(options_file: Path, weight_file: Path, folder: Path, name: str = "model") -> None:
    """Write the model of a checkpoint, which errors call `name`, into a folder, NaN and infinities included."""
    options = Options.from_file(options_file)
    write_model(folder, options.to_dict(), read_state_dict(weight_file, options, name, allow_nonfinite=True))


def read_state_dict(path: str | os.PathLike, options: Options, name: str = "model",
                    allow_nonfinite: bool = False) -> dict[str, np.ndarray]:
    """float32 weights in bilm-tf's layout of the only biLM in a `state_dict`; errors call the file `name`.

    `ConfigurationError` for other tensors than those of the options, and for NaN and infinities unless allowed.
    """
    tensors = Tensors(path, name, allow_nonfinite)
    markers = [key for key in tensors if key.endswith((_CHARACTERS, _WORDS))]
    if len(markers) != 1:
        raise ConfigurationError(f"{name} {path}: expected the state_dict of a module with one biLM in it, found "
                                 f"{len(markers)} among {len(tensors)} tensors")
    prefix = markers[0].removesuffix(_CHARACTERS).removesuffix(_WORDS)
    embedder, cnn, size = f"{prefix}_token_embedder.", options.char_cnn, options.lstm.projection_dim
    if cnn is None:
        weights = {"embedding": tensors.take(prefix + _WORDS, options.n_tokens_vocab, size)}
    else:
        characters = tensors.take(prefix + _CHARACTERS, N_CHARACTERS[1], cnn.embedding_dim)
        weights = {"char_embed": characters[1:]}
        weights |= cnn_weights(tensors, cnn, f"{embedder}char_conv_{{}}", f"{embedder}_highways._layers.{{}}")
        if cnn.n_filters != size or f"{embedder}_projection.weight" in tensors:
            weights |= {"CNN_proj/W_proj": tensors.take(f"{embedder}_projection.weight", size, cnn.n_filters).T,
                        "CNN_proj/b_proj": tensors.take(f"{embedder}_projection.bias", size)}
    weights |= lstm_weights(tensors, options.lstm, f"{prefix}_elmo_lstm.")
    tensors.check_rest(embedder, f"{prefix}_elmo_lstm.")
    return {key: np.ascontiguousarray(values) for key, values in weights.items()}


class Tensors(dict):
    """The tensors of a `state_dict` in a file, read without running code from it; errors call the file `name`."""

    def __init__(self, path: str | os.PathLike, name: str = "model", allow_nonfinite: bool = False):
        self.where, self._allow_nonfinite = f"{name} {path}", allow_nonfinite
        if not os.path.isfile(path):
            raise ConfigurationError(f"{self.where}: expected tensors written by torch.save, found no file")
        content = load_tensors(path, name, "tensors written by torch.save")
        if not isinstance(content, Mapping):
            raise ConfigurationError(f"{self.where}: expected a state_dict, got {type(content).__name__}")
        super().__init__({key: value for key, value in content.items() if isinstance(key, str)})
        self._rest = set(self)

    def take(self, key: str, *shape: int | None) -> np.ndarray:
        """The tensor of a key as float32; a size of None in `shape` accepts any size."""
        tensor, where = self.get(key), f"{self.where}: {key:.120}"
        if not is_plain(tensor):
            raise ConfigurationError(f"{where}: expected shape {shape} of floating-point numbers in memory, found "
                                     f"{described(tensor)}")
        if tensor.dim() != len(shape) or any(expected not in (None, size)
                                             for expected, size in zip(shape, tensor.shape)):
            raise ConfigurationError(f"{where}: expected shape {shape}, found {tuple(tensor.shape)}")
        values = tensor.detach().float().numpy()
        if not self._allow_nonfinite:
            check_finite(where, values)
        self._rest.discard(key)
        return values

    def check_rest(self, *prefixes: str) -> None:
        """Raise `ConfigurationError` for a key with one of the prefixes that was not taken: of another model."""
        check_all_read(self.where, [key for key in self._rest if key.startswith(prefixes)])


def cnn_weights(tensors: Tensors, cnn: CharCnnOptions, convolution: str, highway: str) -> dict[str, np.ndarray]:
    """Convolutions and highway layers in bilm-tf's layout; the last arguments are keys with {} for the number."""
    weights, total = {}, cnn.n_filters
    for i, (width, count) in enumerate(cnn.filters):
        kernel = tensors.take(f"{convolution.format(i)}.weight", count, cnn.embedding_dim, width)
        weights[f"CNN/W_cnn_{i}"] = kernel.transpose(2, 1, 0)[None]  # [1, width, E, n]
        weights[f"CNN/b_cnn_{i}"] = tensors.take(f"{convolution.format(i)}.bias", count)
    for k in range(cnn.n_highway):
        for short, long, shape in (("W", "weight", (2 * total, total)), ("b", "bias", (2 * total,))):
            transform, carry = np.split(tensors.take(f"{highway.format(k)}.{long}", *shape), 2)
            weights[f"CNN_high_{k}/{short}_transform"] = transform.T
            weights[f"CNN_high_{k}/{short}_carry"] = -carry.T
    return weights


def lstm_weights(tensors: Tensors, lstm: LstmOptions, prefix: str = "") -> dict[str, np.ndarray]:
    """All cells in bilm-tf's layout; AllenNLP's gates are i, f, j, o, and its bias of f has the +1."""
    weights, dim, size = {}, lstm.dim, lstm.projection_dim
    is_projected = lstm.is_projected or f"{prefix}forward_layer_0.state_projection.weight" in tensors
    for layer in range(lstm.n_layers):
        for direction, name in zip(DIRECTIONS, ("forward", "backward")):
            cell = f"{prefix}{name}_layer_{layer}"
            parts = [tensors.take(f"{cell}.{part}_linearity.weight", 4 * dim, size) for part in ("input", "state")]
            i, f, j, o = np.split(np.concatenate(parts, axis=1), 4)
            values = [np.concatenate([i, j, f, o]).T]
            i, f, j, o = np.split(tensors.take(f"{cell}.state_linearity.bias", 4 * dim), 4)
            values.append(np.concatenate([i, j, f - 1, o]))
            if is_projected:
                values.append(tensors.take(f"{cell}.state_projection.weight", size, dim).T)
            weights |= {lstm_name(direction, layer, part): value for part, value in zip(LSTM_DATASETS, values)}
    return weights
