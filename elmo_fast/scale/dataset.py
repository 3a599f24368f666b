"""`embed_dataset`: vectors as a column of a Ray Data dataset, computed by a pool of workers."""

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from elmo_fast.choices import DEFAULT_BATCH_SIZE, check_choice, check_count
from elmo_fast.embed.api import Layers, LoadedElmo, load
from elmo_fast.model.bilm import BiLm
from elmo_fast.model.options import Options
from elmo_fast.model.sources import DEFAULT_MODEL

try:
    import pyarrow as pa
    import ray
    from ray.data import ActorPoolStrategy
except ImportError as error:
    raise ImportError(f"a package is not there ({error}): install elmo-fast[ray]") from error

if TYPE_CHECKING:
    from ray.data import Dataset

STATES = ("zero", "warm")
DTYPES = {"float32": pa.float32(), "float16": pa.float16()}
_TEXTS_PER_SLOT = 16  # of a call of a worker: its slots idle at the end of one alone
_TABLE_BYTES = 32 << 20  # of vectors that a worker gives at a time


def embed_dataset(ds: "Dataset", column: str, *, model: str | os.PathLike | LoadedElmo = DEFAULT_MODEL,
                  layers: Layers = "all", pool: str | None = None, state: str = "warm", precision: str = "highest",
                  backend: str = "auto", dtype: str = "float32", output_column: str = "elmo",
                  concurrency: int | tuple[int, int] | None = None, num_cpus: int = 1, num_gpus: float = 0,
                  batch_size: int = DEFAULT_BATCH_SIZE) -> "Dataset":
    """The dataset with a column of vectors, computed lazily by Ray Data's workers: those of `LoadedElmo.embed`.

    `column` has strings, split at whitespace, or lists of tokens. The new column has lists of fixed-size lists,
    [tokens][2 P] of a text, with `layers="all"` [layers][tokens][2 P]; `pool` drops the tokens. `dtype` is `float32` or
    `float16`, for which values beyond its range are refused. `state` is `zero` or `warm`.

    A worker has `num_cpus` threads, and a GPU with `num_gpus`; `batch_size` texts run at a time in it. At most
    `concurrency` workers run, by default as many as there is room for, or between two numbers of them: a least number
    that leaves no CPU to what feeds the workers waits for ever. The model is read here, once, and put into the object
    store, from which workers take it.
    """
    if not isinstance(ds, ray.data.Dataset):
        raise ValueError(f"ds: expected a ray.data.Dataset, got {type(ds).__name__}")
    schema = ds.schema(fetch_if_missing=False)
    if schema is not None and column not in schema.names:
        raise ValueError(f"column: expected one of {', '.join(schema.names)}, got {column!r}")
    if schema is not None and output_column in schema.names:
        raise ValueError(f"output_column: expected a name that no column has, got {output_column!r}")
    settings = Settings.checked(layers=layers, pool=pool, state=state, dtype=dtype, batch_size=batch_size,
                                threads=num_cpus, is_on_gpu=num_gpus > 0)
    elmo = model if isinstance(model, LoadedElmo) else load(model, device="cpu", precision=precision, backend=backend)
    shared = SharedModel.of(elmo, settings)
    return ds.map_batches(
        AddVectors, fn_constructor_args=(shared, settings, column, output_column), batch_format="pyarrow",
        batch_size=_TEXTS_PER_SLOT * batch_size,
        **workers(concurrency if isinstance(concurrency, tuple) else (1, concurrency), num_cpus, num_gpus))


def workers(concurrency: tuple[int, int | None], num_cpus: int, num_gpus: float) -> dict[str, Any]:
    """Arguments of `map_batches` for a pool of workers; Ray restarts killed ones and gives them their batch again."""
    least, most = concurrency
    for bound in (least, *(() if most is None else (most,))):
        check_count("concurrency", bound)
    resources = {"num_gpus": num_gpus} if num_gpus else {"num_cpus": num_cpus}
    return {"compute": ActorPoolStrategy(min_size=least, max_size=most), **resources}


@dataclass(frozen=True)
class Settings:
    """How a worker embeds; all but the last three are those of `LoadedElmo.embed`."""

    layers: Layers
    pool: str | None
    state: str
    batch_size: int
    dtype: str
    threads: int
    is_on_gpu: bool

    @classmethod
    def checked(cls, **settings) -> "Settings":
        """Settings; `ValueError` for a state, type or number of threads that workers cannot have."""
        if settings["state"] == "carry":
            raise ValueError("state: expected zero or warm, got carry: the texts of a stream have an order in which "
                             "states are carried, those that workers share have none")
        check_choice("state", settings["state"], STATES)
        check_choice("dtype", settings["dtype"], tuple(DTYPES))
        check_count("num_cpus", settings["threads"])
        return cls(**settings)


@dataclass(frozen=True)
class SharedModel:
    """A model whose weights are in Ray's object store."""

    kind: type[BiLm]
    options: Options
    precision: str
    backend: str
    fingerprint: str
    weights: "ray.ObjectRef"

    @classmethod
    def of(cls, elmo: LoadedElmo, settings: Settings) -> "SharedModel":
        """Share a model that `settings` fit; `ValueError` names the one that does not."""
        elmo.embed([], settings.layers, settings.state, settings.pool, settings.batch_size)
        bilm = elmo.bilm
        return cls(type(bilm), bilm.options, bilm.precision, bilm.backend, bilm.fingerprint(),
                   ray.put(bilm.weights()))

    def load(self, state: str) -> LoadedElmo:
        """The model on the CPU; the arrays of the store, which processes of a machine share, are copied from."""
        weights = ray.get(self.weights)
        return LoadedElmo(self.kind(self.options, weights, state=state, precision=self.precision,
                                    backend=self.backend))


class Worker:
    """A model in a process of its own."""

    def __init__(self, shared: SharedModel, settings: Settings):
        torch.set_num_threads(settings.threads)
        self._settings = settings
        self._elmo = shared.load(settings.state)
        self._elmo.bilm.to("cuda" if settings.is_on_gpu else "cpu")

    def vectors(self, texts: Iterable[Sequence[str]]) -> Iterator[np.ndarray]:
        """Vectors of tokenized texts, in order."""
        settings = self._settings
        for vectors in self._elmo._run(list(texts), settings.layers, settings.pool, settings.batch_size):
            yield _as_type(vectors, settings.dtype)

    def column(self, arrays: Sequence[np.ndarray]) -> pa.Array:
        """Arrays of `vectors` as an Arrow column; `FixedSizeList` but for the tokens."""
        settings, bilm = self._settings, self._elmo.bilm
        values = [array.ravel() for array in arrays] or [np.zeros(0, settings.dtype)]
        column = pa.FixedSizeListArray.from_arrays(pa.array(np.concatenate(values)), bilm.get_output_dim())
        layers = bilm.num_layers if settings.layers == "all" else 1
        if settings.pool is None:
            counts = np.repeat([array.shape[-2] for array in arrays], layers).astype(np.int64)
            offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
            column = pa.ListArray.from_arrays(pa.array(offsets), column)
        return pa.FixedSizeListArray.from_arrays(column, layers) if settings.layers == "all" else column


class AddVectors(Worker):
    """Adds the column of vectors to tables."""

    def __init__(self, shared: SharedModel, settings: Settings, column: str, output: str):
        super().__init__(shared, settings)
        self._names = column, output

    def __call__(self, table: pa.Table) -> Iterator[pa.Table]:
        name, output = self._names
        if name not in table.column_names:
            raise ValueError(f"column: expected one of {', '.join(table.column_names)}, got {name!r}")
        texts = [_tokens(name, value) for value in table.column(name).to_pylist()]
        begin = 0
        for arrays in in_tables(self.vectors(texts)):
            rows = table.slice(begin, len(arrays))
            yield rows.append_column(output, self.column(arrays))
            begin += len(arrays)


def in_tables(arrays: Iterable[np.ndarray]) -> Iterator[list[np.ndarray]]:
    """Lists of consecutive arrays of bounded size together, at least one list."""
    some: list[np.ndarray] = []
    size, is_empty = 0, True
    for array in arrays:
        some.append(array)
        size += array.nbytes
        if size >= _TABLE_BYTES:
            yield some
            some, size, is_empty = [], 0, False
    if some or is_empty:
        yield some


def _tokens(column: str, value: Any) -> Sequence[str]:
    if isinstance(value, str):
        return value.split()
    if isinstance(value, (list, np.ndarray)) and all(isinstance(token, str) for token in value):
        return list(value)
    raise ValueError(f"{column}: expected strings or lists of tokens, got {value!r:.60} ({type(value).__name__})")


def _as_type(vectors: np.ndarray, dtype: str) -> np.ndarray:
    with np.errstate(over="ignore"):
        converted = vectors.astype(dtype, copy=False)
    if converted is not vectors and not np.array_equal(np.isfinite(converted), np.isfinite(vectors)):
        raise ValueError(f"dtype: expected values in the range of {dtype}, got {np.abs(vectors).max():g}")
    return converted
