"""Weights by dataset name in bilm-tf's layout, HDF5 or safetensors: read and checked, written, initialized.

Both formats have the same names and arrays, so that a value keeps its bits from one to the other.
"""

import contextlib
import dataclasses
import hashlib
import itertools
import json
import math
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from elmo_fast.arguments import check_count, check_file, check_path
from elmo_fast.environment import extra, memory_size
from elmo_fast.errors import ConfigurationError, parsing
from elmo_fast.files import stops
from elmo_fast.files.atomic import check_target, write_bytes
from elmo_fast.files.hdf5 import atomic_hdf5, datasets_of, open_hdf5
from elmo_fast.text.characters import BEGIN_SENTENCE_TOKEN, END_SENTENCE_TOKEN
from elmo_fast.text.vocabulary import Vocabulary
from elmo_fast.weights.families import BILM_TF, FAMILIES, SAFETENSORS
from elmo_fast.weights.options import N_CHARACTERS, NETWORK_KEYS, Options
from elmo_fast.weights.sources import ModelFiles

_MANTISSA = 10  # bits of float16's
_COMPRESSED = {"compression": "gzip", "compression_opts": 9, "shuffle": True}

OPTIONS_FILE, WEIGHTS_FILE, VOCABULARY_FILE = "options.json", "weights.hdf5", "vocab.txt"
SAFETENSORS_FILE = f"model{SAFETENSORS}"  # in place of WEIGHTS_FILE; the name that Hugging Face's hub reads
_UNREAD = ("softmax/", "embedding")  # of bilm-tf's language model and its table of tokens, beside any biLM
Weights = Mapping[str, np.ndarray]
Dataset = h5py.Dataset | np.ndarray  # of HDF5, or of a safetensors file, which is read whole
DIRECTIONS = (0, 1)
LSTM_DATASETS = ("W_0", "B", "W_P_0")


def lstm_name(direction: int, layer: int, dataset: str) -> str:
    """Name of one of `LSTM_DATASETS`: direction 0 forward, 1 backward; layers from 0."""
    return f"RNN_{direction}/RNN/MultiRNNCell/Cell{layer}/LSTMCell/{dataset}"


def expected_shapes(options: Options, held: Collection[str] = ()) -> dict[str, tuple[int, ...]]:
    """Shape of every dataset a model with these options needs, in file order.

    The char embedding has 261 rows, without the row of "no token". If the filters (or the cells) have the projection's
    size, `CNN_proj` (or `W_P_0`) is expected only if `held`, the names of a file's datasets, contains it.
    """
    projection, cnn = options.lstm.projection_dim, options.char_cnn
    if cnn is None:
        shapes: dict[str, tuple[int, ...]] = {"embedding": (options.n_tokens_vocab, projection)}
    else:
        total = cnn.n_filters
        shapes = {"char_embed": (N_CHARACTERS[0], cnn.embedding_dim)}
        for index, (width, count) in enumerate(cnn.filters):
            shapes |= {f"CNN/W_cnn_{index}": (1, width, cnn.embedding_dim, count), f"CNN/b_cnn_{index}": (count,)}
        for layer, gate in itertools.product(range(cnn.n_highway), ("carry", "transform")):
            shapes |= {f"CNN_high_{layer}/W_{gate}": (total, total), f"CNN_high_{layer}/b_{gate}": (total,)}
        if total != projection or "CNN_proj/W_proj" in held:
            shapes |= {"CNN_proj/W_proj": (total, projection), "CNN_proj/b_proj": (projection,)}
    lstm_shapes = (2 * projection, 4 * options.lstm.dim), (4 * options.lstm.dim,), (options.lstm.dim, projection)
    is_projected = options.lstm.is_projected or any(name.endswith("/W_P_0") for name in held)
    for direction, layer in itertools.product(DIRECTIONS, range(options.lstm.n_layers)):
        for dataset, shape in zip(LSTM_DATASETS[: 2 + is_projected], lstm_shapes):
            shapes[lstm_name(direction, layer, dataset)] = shape
    return shapes


def check_is_hdf5(files: ModelFiles) -> None:
    """Raise `ConfigurationError` for a model of another family."""
    if files.family != BILM_TF:
        raise ConfigurationError(f"model {files.weight_file.parent}: expected options.json and *.hdf5, found a model "
                                 f"of {files.family.name}, which {files.family.readers} read")


def read_model(files: ModelFiles, allow_nonfinite: bool = False) -> tuple[Options, dict[str, np.ndarray]]:
    """Options and weights of a model's files; errors are those of `Options.from_file` and `read_weights`.

    For a model of words the options include its vocabulary, with `<S>`, `</S>` and as many words as the embedding.
    """
    check_is_hdf5(files)
    options = with_vocabulary(Options.from_file(files.options_file), files.vocab_file)
    return options, read_weights(files.weight_file, options, allow_nonfinite)


def with_vocabulary(options: Options, vocab_file: str | os.PathLike | None) -> Options:
    """Add the words of a file to the options of a model of words; `ValueError` for a file of other words."""
    if options.char_cnn is not None or vocab_file is None:
        return options
    vocabulary = Vocabulary(vocab_file)
    vocabulary.require(BEGIN_SENTENCE_TOKEN, END_SENTENCE_TOKEN)
    if vocabulary.size != options.n_tokens_vocab:
        raise ConfigurationError(f"vocabulary {os.fspath(vocab_file)}: expected the {options.n_tokens_vocab} words of "
                                 f"the model, got {vocabulary.size}: give the file that it was trained with")
    return dataclasses.replace(options, vocabulary=tuple(vocabulary.words))


def read_weights(path: str | os.PathLike, options: Options, allow_nonfinite: bool = False) -> dict[str, np.ndarray]:
    """Weights of a file, float32, by dataset name.

    Accepts 261 rows of characters or 262 (the first, for "no token", is then dropped), and the names of a one-layer
    bilm-tf dump, which lacks `MultiRNNCell/Cell0`. Raises `ConfigurationError` for a file that is not HDF5 or
    safetensors, is truncated, lacks a dataset, has a dataset of another shape or one that the options do not need, such
    as a further layer, and for NaN and infinities unless `allow_nonfinite`.
    """
    with _datasets(path) as datasets:
        weights = _take(datasets, expected_shapes(options, datasets), path, allow_nonfinite)
        check_all_read(f"weight_file {os.fspath(path)}", [name for name in datasets if not name.startswith(_UNREAD)])
        return weights


def read_datasets(path: str | os.PathLike, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, np.ndarray]:
    """The weights `shapes` of a file, float32, by dataset name; others are ignored. Errors as in `read_weights`."""
    with _datasets(path) as datasets:
        return _take(datasets, shapes, path)


@contextlib.contextmanager
def _datasets(path: str | os.PathLike) -> Iterator[dict[str, Dataset]]:
    """The datasets of an open file by name, those of a one-layer dump by the names of other models."""
    if not check_path("weight_file", path).endswith(SAFETENSORS):
        with open_hdf5(path, "weight_file") as file:
            yield _renamed(datasets_of(file, f"weight_file {os.fspath(path)}"))
        return
    with extra("safetensors"):
        from safetensors.numpy import load_file
    source = check_file("weight_file", path)
    expected = "a safetensors file of NumPy's types, got something else or a file cut short or damaged"
    with parsing(f"weight_file {source}", expected):
        tensors = load_file(source)
    yield _renamed(tensors)


def _renamed(datasets: dict[str, Dataset]) -> dict[str, Dataset]:
    for direction, name in itertools.product(DIRECTIONS, LSTM_DATASETS):
        short = f"RNN_{direction}/RNN/LSTMCell/{name}"
        if short in datasets:
            datasets.setdefault(lstm_name(direction, 0, name), datasets.pop(short))
    return datasets


def _take(datasets: dict[str, Dataset], shapes: Mapping[str, tuple[int, ...]],
          source: str | os.PathLike, allow_nonfinite: bool = False) -> dict[str, np.ndarray]:
    """Read the datasets of `shapes` into memory, and remove them from `datasets`."""
    weights = {}
    for name, shape in shapes.items():
        where, dataset = f"weight_file {os.fspath(source)}: dataset {name}", datasets.pop(name, None)
        extra_row = name == "char_embed" and dataset is not None and dataset.shape == (N_CHARACTERS[1], *shape[1:])
        if dataset is None or not (dataset.shape == shape or extra_row):
            raise ConfigurationError(f"{where}: expected shape {shape}, "
                                     f"found {'none' if dataset is None else dataset.shape}")
        values = read_values(dataset, where, allow_nonfinite)
        weights[name] = np.ascontiguousarray(values[1:]) if extra_row else values
    return weights


def check_all_read(source: str, rest: Collection[str]) -> None:
    """Raise `ConfigurationError` for names that were not read: of a model of other sizes, or of another kind."""
    if rest:
        raise ConfigurationError(f"{source}: expected only the weights of the model's sizes, found {min(rest):.120} "
                                 f"and {len(rest) - 1} more beside them")


def read_values(dataset: Dataset, where: str, allow_nonfinite: bool = False) -> np.ndarray:
    """The numbers of a dataset, float32; errors as in `read_weights`."""
    if dataset.dtype.kind != "f":
        raise ConfigurationError(f"{where}: expected floating-point numbers, found {dataset.dtype!s:.80}")
    with np.errstate(over="ignore"):
        values = dataset[...].astype(np.float32, copy=False)
    if not allow_nonfinite:
        check_finite(where, values)
    return values


def check_finite(name: str, values: np.ndarray) -> None:
    """Raise `ConfigurationError` for NaN and infinities. A finite sum, which is quick to compute, excludes both."""
    with np.errstate(over="ignore", invalid="ignore"):
        if np.isfinite(values.sum()):
            return
    if count := values.size - np.count_nonzero(np.isfinite(values)):
        raise ConfigurationError(f"{name}: expected finite float32 numbers, found {count:,} that are NaN or "
                                 "infinite; allow_nonfinite=True loads them")


def check_shapes(source: str, shapes: Mapping[str, tuple[int, ...]], weights: Weights) -> None:
    """Raise `ConfigurationError` unless `weights` have these names and shapes."""
    for name in sorted(shapes.keys() | weights.keys()):
        expected, found = shapes.get(name), tuple(weights[name].shape) if name in weights else None
        if expected != found:
            raise ConfigurationError(f"{source}: {name}: expected shape {expected}, found {found}")


def write_weights(path: str | os.PathLike, weights: Weights, dtype: type = np.float32,
                  mantissa_bits: int | None = None) -> None:
    """Write weights in bilm-tf's layout, as safetensors if `path` ends so, else HDF5; the file is written atomically.

    `read_weights` returns the same values (261 rows of characters), rounded if `dtype` is float16. `mantissa_bits`
    (1 to 10) stores float16, rounds matrices to mantissas of so many bits, and has HDF5 compress them. Raises
    `ConfigurationError` for a value that float16 does not hold, and for a model whose characters and words are numbered
    only by lexicons of its family.
    """
    if mantissa_bits is not None:
        check_count("mantissa_bits", mantissa_bits, ConfigurationError, most=_MANTISSA)
        dtype = np.float16
    for family in FAMILIES:
        if any(name.startswith(family.lexicons) for name in weights):
            raise ConfigurationError(f"weights: {family.no_hdf5()}")
    check_target(path, "weight file")
    arrays = ((name, _as_stored(name, values, dtype, mantissa_bits)) for name, values in weights.items())
    if os.fspath(path).endswith(SAFETENSORS):
        with extra("safetensors"):
            from safetensors.numpy import save
        write_bytes(path, save(dict(arrays)))
        return
    with atomic_hdf5(path) as (file, _):
        for name, stored in arrays:
            is_short = mantissa_bits is not None and stored.ndim > 1
            file.create_dataset(name, data=stored, **_COMPRESSED if is_short and stored.size else {})
            stops.check()


def _as_stored(name: str, values: np.ndarray, dtype: type, mantissa_bits: int | None) -> np.ndarray:
    """A contiguous array: safetensors writes any other one in the order of its memory."""
    with np.errstate(over="ignore"):
        stored = np.ascontiguousarray(values, dtype=dtype)
    stored = _rounded(stored, mantissa_bits) if mantissa_bits is not None and stored.ndim > 1 else stored
    if (np.isinf(stored) != np.isinf(values)).any():
        raise ConfigurationError(f"{name}: expected values that float16 holds, got {np.abs(values).max():g}")
    return stored


def write_model(folder: Path, content: Mapping[str, Any], weights: Weights, vocabulary: Sequence[str] | None = None,
                weights_file: str = WEIGHTS_FILE, **storage) -> None:
    """Write a model's files into a directory: weights as `write_weights` does with `storage`, `vocab.txt` if words are
    given, and `options.json` with the keys of `content` that describe the network.
    """
    write_weights(folder / weights_file, weights, **storage)
    network = {name: content[name] for name in content if name in NETWORK_KEYS}
    write_bytes(folder / OPTIONS_FILE, (json.dumps(network, indent=1) + "\n").encode())
    if vocabulary is not None:
        write_bytes(folder / VOCABULARY_FILE, "".join(f"{word}\n" for word in vocabulary).encode())


def _rounded(values: np.ndarray, mantissa_bits: int) -> np.ndarray:
    """float16 values whose mantissa has at most so many bits: the nearest, of two the even one."""
    if mantissa_bits == _MANTISSA:
        return values
    unit = 1 << (_MANTISSA - mantissa_bits)
    patterns = values.view(np.uint16).astype(np.uint32)
    even = patterns + unit // 2 - 1 + (patterns // unit & 1)
    rounded = (even - even % unit).astype(np.uint16).view(np.float16)
    return np.where(np.isfinite(values), rounded, values)


def random_weights(options: Options, seed: int = 0) -> dict[str, np.ndarray]:
    """float32 weights by dataset name, determined by the seed, distributed as in bilm-tf's `bilm/training.py`.

    Characters uniform in ±1, words and LSTM uniform by fan-in and fan-out (Glorot); convolutions uniform in ±0.05 for
    relu (Kim et al. 2015), else normal by fan-in; highway and projection normal by fan-in, carry bias -2.
    """
    generator, weights, shapes = np.random.default_rng(seed), {}, expected_shapes(options)
    _check_memory(4 * sum(map(math.prod, shapes.values())))
    for name, shape in shapes.items():
        leaf, limit = name.rsplit("/", 1)[-1], None
        if leaf == "char_embed":
            limit = 1
        elif leaf.startswith("W_cnn_") and options.char_cnn.activation == "relu":
            limit = 0.05
        elif leaf in ("embedding", "W_0", "W_P_0"):
            limit = np.sqrt(6 / sum(shape))
        if len(shape) == 1:
            values = np.full(shape, -2.0 if leaf == "b_carry" else 0.0)
        elif limit:
            values = generator.uniform(-limit, limit, shape)
        else:
            values = generator.normal(0, np.sqrt(1 / np.prod(shape[:-1])), shape)
        weights[name] = values.astype(np.float32)
    return weights


def _check_memory(size: int) -> None:
    """Raise `ConfigurationError` for weights beyond the memory of this process, before it swaps or is killed."""
    available = memory_size()
    if available is not None and size > available:
        raise ConfigurationError(f"options: expected a model whose weights fit into the {available >> 20:,} MB of this "
                                 f"machine or container, got one of {size >> 20:,} MB")


def fingerprint(weights: Weights, options: Options | None = None) -> str:
    """32 hexadecimal digits that identify weights, in any order, and the network's options if they are given.

    Training settings in `options.json` do not count; the vocabulary of a model of words does.
    """
    digest = hashlib.blake2b(digest_size=16)
    if options is not None:
        network = [section and dataclasses.asdict(section) for section in (options.lstm, options.char_cnn)]
        digest.update(json.dumps(network, sort_keys=True).encode())
        digest.update("\n".join(options.vocabulary or ()).encode(errors="surrogatepass"))
    for name in sorted(weights):
        values = np.ascontiguousarray(weights[name], dtype="<f4")
        digest.update(f"{name} {values.shape}\n".encode())
        digest.update(values.data)
    return digest.hexdigest()
