"""Weight files in bilm-tf's HDF5 layout, read with every shape checked, and written back value for value."""

import contextlib
import os
from collections.abc import Iterator, Mapping

import h5py
import numpy as np

from elmo_fast.model.options import N_CHARACTERS, ConfigurationError, Options
from elmo_fast.model.atomic_file import check_target
from elmo_fast.model.atomic_hdf5 import atomic_hdf5

Weights = Mapping[str, np.ndarray]
DIRECTIONS = (0, 1)
# What h5py raises on damaged files, beside OSError: it maps HDF5's errors to whichever Python error is nearest.
_DAMAGE = (OSError, RuntimeError, KeyError, ValueError, TypeError)


def lstm_name(direction: int, layer: int, dataset: str) -> str:
    """Name of an LSTM dataset (`W_0`, `B` or `W_P_0`): direction 0 forward, 1 backward; layers from 0."""
    return f"RNN_{direction}/RNN/MultiRNNCell/Cell{layer}/LSTMCell/{dataset}"


def expected_shapes(options: Options) -> dict[str, tuple[int, ...]]:
    """Shape of every dataset a model with these options needs, in file order.

    The char embedding has 261 rows, without the row of "no token". `CNN_proj` is left out where the filters
    already have the projection's size; a file may still hold it.
    """
    projection = options.lstm.projection_dim
    shapes: dict[str, tuple[int, ...]] = {}
    if options.char_cnn is None:
        shapes["embedding"] = (options.n_tokens_vocab, projection)
    else:
        shapes.update(_char_cnn_shapes(options.char_cnn))
        if options.char_cnn.n_filters != projection:
            shapes.update(_projection_shapes(options))
    for direction in DIRECTIONS:
        for layer in range(options.lstm.n_layers):
            shapes[lstm_name(direction, layer, "W_0")] = (2 * projection, 4 * options.lstm.dim)
            shapes[lstm_name(direction, layer, "B")] = (4 * options.lstm.dim,)
            if options.lstm.is_projected:
                shapes[lstm_name(direction, layer, "W_P_0")] = (options.lstm.dim, projection)
    return shapes


def _char_cnn_shapes(char_cnn) -> dict[str, tuple[int, ...]]:
    total = char_cnn.n_filters
    shapes = {"char_embed": (N_CHARACTERS[0], char_cnn.embedding_dim)}
    for index, (width, count) in enumerate(char_cnn.filters):
        shapes[f"CNN/W_cnn_{index}"] = (1, width, char_cnn.embedding_dim, count)
        shapes[f"CNN/b_cnn_{index}"] = (count,)
    for layer in range(char_cnn.n_highway):
        for gate in ("carry", "transform"):
            shapes[f"CNN_high_{layer}/W_{gate}"] = (total, total)
            shapes[f"CNN_high_{layer}/b_{gate}"] = (total,)
    return shapes


def _projection_shapes(options: Options) -> dict[str, tuple[int, ...]]:
    projection = options.lstm.projection_dim
    return {"CNN_proj/W_proj": (options.char_cnn.n_filters, projection), "CNN_proj/b_proj": (projection,)}


def read_weights(path: str | os.PathLike, options: Options) -> dict[str, np.ndarray]:
    """Weights of a file, float32, by dataset name.

    Accepts 261 rows of characters or 262 (the first is then dropped: it stands for "no token"), and the names of
    a one-layer bilm-tf dump, which lacks `MultiRNNCell/Cell0`. Raises `ConfigurationError` for a file that is not
    HDF5, is cut short, lacks a dataset, holds one of another shape, or holds layers the options do not know.
    """
    with _opened(path) as (file, name):
        shapes = expected_shapes(options)
        if options.char_cnn is not None and "CNN_proj" in file:
            shapes.update(_projection_shapes(options))
        found = _datasets(file)
        weights = _take(found, shapes, name)
        _refuse_more(found, name, options)
        return weights


def read_datasets(path: str | os.PathLike, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, np.ndarray]:
    """Some weights of a file, float32, by dataset name, whatever else it holds. Errors are those of `read_weights`."""
    with _opened(path) as (file, name):
        return _take(_datasets(file), shapes, name)


@contextlib.contextmanager
def _opened(path: str | os.PathLike) -> Iterator[tuple[h5py.File, str]]:
    """A weight file to read, and its name; damage found while it is read is a `ConfigurationError`."""
    name = os.fspath(path)
    if os.path.isdir(name):
        raise IsADirectoryError(f"weight_file: expected an HDF5 file, got the directory {name}")
    if not os.path.exists(name):
        raise FileNotFoundError(f"weight_file: expected an HDF5 file, found nothing at {name}")
    if not os.access(name, os.R_OK):
        raise PermissionError(f"weight_file: expected a file that can be read, got {name}")
    try:
        with h5py.File(name, "r") as file:
            yield file, name
    except ConfigurationError:
        raise
    except _DAMAGE as error:
        raise ConfigurationError(f"weight_file {name}: expected an HDF5 file, got something else or a file cut short "
                                 f"or damaged ({error})") from error


def _take(found: dict[str, h5py.Dataset], shapes: Mapping[str, tuple[int, ...]],
          source: str) -> dict[str, np.ndarray]:
    """Move the datasets of `shapes` out of `found` and into memory."""
    weights = {}
    for name, shape in shapes.items():
        dataset = found.pop(name, None)
        if dataset is None:
            raise ConfigurationError(f"weight_file {source}: dataset {name}: expected shape {shape}, found none")
        weights[name] = _checked(dataset, name, shape, source)
    return weights


def _datasets(file: h5py.File) -> dict[str, h5py.Dataset]:
    found: dict[str, h5py.Dataset] = {}
    file.visititems(lambda name, item: found.__setitem__(name, item) if isinstance(item, h5py.Dataset) else None)
    for direction in DIRECTIONS:
        for dataset in ("W_0", "B", "W_P_0"):
            short = f"RNN_{direction}/RNN/LSTMCell/{dataset}"
            if short in found:
                found.setdefault(lstm_name(direction, 0, dataset), found.pop(short))
    return found


def _checked(dataset: h5py.Dataset, name: str, shape: tuple[int, ...], source: str) -> np.ndarray:
    extra_row = name == "char_embed" and dataset.shape == (N_CHARACTERS[1], *shape[1:])
    if dataset.shape != shape and not extra_row:
        raise ConfigurationError(f"weight_file {source}: dataset {name}: expected shape {shape}, "
                                 f"found {dataset.shape}")
    if dataset.dtype.kind != "f":
        raise ConfigurationError(f"weight_file {source}: dataset {name}: expected floating-point numbers, "
                                 f"found {dataset.dtype}")
    values = dataset[...].astype(np.float32, copy=False)
    return np.ascontiguousarray(values[1:]) if extra_row else values


def _refuse_more(left: Mapping[str, h5py.Dataset], source: str, options: Options) -> None:
    """Datasets of the network that the options do not mention mean a file of another model."""
    known = ("CNN/", "CNN_high_", "CNN_proj/", "RNN_")
    surplus = sorted(name for name in left if name.startswith(known))
    if surplus:
        raise ConfigurationError(f"weight_file {source}: expected the weights of the options ({options.lstm.n_layers} "
                                 f"LSTM layers), found {surplus[0]} and {len(surplus) - 1} more beside them")


def check_weights(weights: Weights, options: Options) -> None:
    """Raise `ConfigurationError` unless `weights` are float32 arrays with the names and shapes of `options`."""
    shapes = expected_shapes(options)
    if options.char_cnn is not None and "CNN_proj/W_proj" in weights:
        shapes.update(_projection_shapes(options))
    for name in sorted(shapes.keys() | weights.keys()):
        expected, found = shapes.get(name), weights.get(name)
        if expected is None or found is None or tuple(found.shape) != expected:
            raise ConfigurationError(f"weights: {name}: expected shape {expected}, "
                                     f"found {None if found is None else tuple(found.shape)}")


def write_weights(path: str | os.PathLike, weights: Weights, dtype: type = np.float32) -> None:
    """Write weights in bilm-tf's layout; the file takes its name only when it is whole.

    The values of `read_weights` come back byte for byte (261 rows of characters), in float16 rounded.
    """
    check_target(path, "weight file")
    with atomic_hdf5(path) as (file, _):
        for dataset, values in weights.items():
            file.create_dataset(dataset, data=np.asarray(values, dtype=dtype))
