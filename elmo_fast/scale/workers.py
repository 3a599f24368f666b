"""A model in the processes of Ray's workers: its weights come from the object store."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from elmo_fast.arguments import FREE_STATES, MOST_SENTENCES, check_choice, check_count, shown
from elmo_fast.embed.api import LoadedElmo
from elmo_fast.environment import extra
from elmo_fast.model.bilm import BiLm
from elmo_fast.model.options import Options
from elmo_fast.vectors.layouts.text_vectors import narrow
from elmo_fast.vectors.spec import OutputSpec, Selection

with extra("ray"):
    import pyarrow as pa
    import ray

_TABLE_BYTES = 32 << 20  # of vectors that a worker gives at a time


@dataclass(frozen=True)
class Settings:
    """How a worker embeds, and its threads and GPUs: `state` and `batch_size` are those of `LoadedElmo.embed`."""

    form: OutputSpec
    state: str
    batch_size: int | None
    cpus: int
    gpus: float = 0

    def __post_init__(self):
        if self.state == "carry":
            raise ValueError("state: expected zero or warm, got carry: the texts of a stream have an order in which "
                             "states are carried, those that workers share have none")
        check_choice("state", self.state, FREE_STATES)
        if self.batch_size is not None:
            check_count("batch_size", self.batch_size, most=MOST_SENTENCES)
        check_count("num_cpus", self.cpus)

    @property
    def resources(self) -> dict[str, float]:
        """What a worker takes of the cluster, as Ray names it."""
        return {"num_gpus": self.gpus} if self.gpus else {"num_cpus": self.cpus}


@dataclass(frozen=True)
class SharedModel:
    """A model whose weights are in Ray's object store."""

    kind: type[BiLm]
    options: Options
    arguments: Mapping[str, Any]
    fingerprint: str
    weights: "ray.ObjectRef"

    @classmethod
    def of(cls, elmo: LoadedElmo, settings: Settings) -> "SharedModel":
        """Share a model that `settings` fit; `ValueError` names the one that does not."""
        bilm = elmo.bilm
        settings.form.check(bilm.num_layers)
        if bilm.token_table is not None:
            raise ValueError("model: expected one without a token table, which workers do not have, got one with it")
        arguments = {"state": settings.state, "precision": bilm.precision, "backend": bilm.backend,
                     "warm_text": bilm.warm_text}
        return cls(type(bilm), bilm.options, arguments, bilm.fingerprint(), ray.put(bilm.weights()))

    def load(self, device: str) -> LoadedElmo:
        """The model on a device, from the arrays in the store, which the processes of a machine share."""
        return LoadedElmo(self.kind(self.options, ray.get(self.weights), **self.arguments).to(device))


class Worker:
    """A model in a process of its own."""

    def __init__(self, shared: SharedModel, settings: Settings):
        torch.set_num_threads(settings.cpus)
        self._settings = settings
        self._elmo = shared.load("cuda" if settings.gpus else "cpu")

    def kept(self, texts: Sequence[Sequence[str]]) -> Iterator[Selection]:
        """What the form keeps of the vectors of tokenized texts, in order."""
        every = self._elmo.vectors(texts, self._settings.batch_size)
        return map(self._settings.form.apply, every, texts)


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
        for arrays in _in_tables(kept.vectors for kept in self.kept(texts)):
            rows = table.slice(begin, len(arrays))
            yield rows.append_column(output, self._column(arrays))
            begin += len(arrays)

    def _column(self, arrays: Sequence[np.ndarray]) -> pa.Array:
        """Arrays as an Arrow column; lists of a fixed size but for the tokens."""
        form, bilm = self._settings.form, self._elmo.bilm
        values = np.concatenate([np.zeros(0, np.float32), *(array.ravel() for array in arrays)])
        try:
            values = narrow(values, np.dtype(form.dtype))
        except OverflowError:
            raise ValueError(f"dtype: expected values in the range of {form.dtype}, got {np.nanmax(np.abs(values)):g}"
                             ) from None
        column = pa.FixedSizeListArray.from_arrays(pa.array(values), bilm.get_output_dim())
        layers = bilm.num_layers if form.layers == "all" else 1
        if form.pool is None:
            counts = np.repeat([array.shape[-2] for array in arrays], layers).astype(np.int64)
            offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
            column = pa.ListArray.from_arrays(pa.array(offsets), column)
        return pa.FixedSizeListArray.from_arrays(column, layers) if form.layers == "all" else column


def _in_tables(arrays: Iterable[np.ndarray]) -> Iterator[list[np.ndarray]]:
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
    raise ValueError(f"{column}: expected strings or lists of tokens, got {shown(value)} ({type(value).__name__})")
