"""Ray workers that run a model whose weights are in Ray's object store."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from elmo_fast.arguments import FREE_STATES, MOST_SENTENCES, check_choice, check_count, shown
from elmo_fast.embed.api import LoadedElmo
from elmo_fast.embed.opening import embedder_of
from elmo_fast.engine.native import set_threads
from elmo_fast.environment import extra
from elmo_fast.text.tokenizers import Tokenizer, find_tokenizer
from elmo_fast.vectors.layouts.text_vectors import narrow
from elmo_fast.vectors.spec import OutputSpec
from elmo_fast.weights.opening import ModelOptions
from elmo_fast.weights.options import Options

with extra("ray"):
    import pyarrow as pa
    import ray

_TABLE_BYTES = 32 << 20  # a worker yields a table when its vectors reach this size


@dataclass(frozen=True)
class Settings:
    """How a worker embeds, with its CPU threads and GPUs. `state` and `batch_size` are those of `LoadedElmo.embed`."""

    form: OutputSpec
    state: str
    batch_size: int
    cpus: int
    gpus: float = 0

    def __post_init__(self):
        if self.state == "carry":
            raise ValueError("state: expected zero or warm, got carry: states are carried from text to text in the "
                             "order of a stream, and workers process texts in no fixed order")
        check_choice("state", self.state, FREE_STATES)
        check_count("batch_size", self.batch_size, most=MOST_SENTENCES)
        check_count("num_cpus", self.cpus)

    @property
    def resources(self) -> dict[str, float]:
        """The resources that Ray reserves for a worker, named as by Ray."""
        return {"num_gpus": self.gpus} if self.gpus else {"num_cpus": self.cpus}


@dataclass(frozen=True)
class SharedModel:
    """A model whose weights are in Ray's object store."""

    options: Options
    opening: ModelOptions
    weights: "ray.ObjectRef"

    @classmethod
    def of(cls, elmo: LoadedElmo, settings: Settings) -> "SharedModel":
        """Put a model into the object store; `ValueError`, naming the argument, if `settings` do not fit the model."""
        model = elmo.model
        settings.form.check(model.num_layers)
        if model.token_table is not None:
            raise ValueError("model: expected a model without a token table, since workers have none, got one with it")
        opening = ModelOptions(settings.state, model.precision, model.backend, warm_text=model.warm_text)
        _, options, weights = elmo.read_weights()
        return cls(options, opening, ray.put(weights))

    def load(self, device: str) -> LoadedElmo:
        """Load the model on a device; the processes of a machine share the arrays in the store."""
        return LoadedElmo(embedder_of(self.options, ray.get(self.weights), self.opening, device))


class AddVectors:
    """Adds a column of vectors to Arrow tables, in a process with its own model."""

    def __init__(self, shared: SharedModel, settings: Settings, column: str, output: str, tokenizer: str | Tokenizer):
        set_threads(settings.cpus)
        self._settings, self._elmo = settings, shared.load("cuda" if settings.gpus else "cpu")
        self._names, self._split = (column, output), find_tokenizer(tokenizer)

    def __call__(self, table: pa.Table) -> Iterator[pa.Table]:
        name, output = self._names
        if name not in table.column_names:
            raise ValueError(f"column: expected one of {', '.join(table.column_names)}, got {name!r}")
        texts = [_tokens(name, value, self._split) for value in table.column(name).to_pylist()]
        begin = 0
        selections = map(self._settings.form.apply, self._elmo.vectors(texts, self._settings.batch_size), texts)
        for arrays in _group_by_size(selection.vectors for selection in selections):
            rows = table.slice(begin, len(arrays))
            yield rows.append_column(output, self._column(arrays))
            begin += len(arrays)

    def _column(self, arrays: Sequence[np.ndarray]) -> pa.Array:
        """Arrays as an Arrow column of nested lists, all of fixed size except the lists of tokens."""
        form, elmo = self._settings.form, self._elmo
        values = np.concatenate([np.zeros(0, np.float32), *(array.ravel() for array in arrays)])
        try:
            values = narrow(values, np.dtype(form.dtype))
        except OverflowError:
            raise ValueError(f"dtype: expected values in the range of {form.dtype}, got {np.nanmax(np.abs(values)):g}"
                             ) from None
        column = pa.FixedSizeListArray.from_arrays(pa.array(values), elmo.dim)
        layers = elmo.num_layers if form.layers == "all" else 1
        if form.pool is None:
            counts = np.repeat([array.shape[-2] for array in arrays], layers).astype(np.int64)
            offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
            column = pa.ListArray.from_arrays(pa.array(offsets), column)
        return pa.FixedSizeListArray.from_arrays(column, layers) if form.layers == "all" else column


def _group_by_size(arrays: Iterable[np.ndarray]) -> Iterator[list[np.ndarray]]:
    """Group consecutive arrays into lists of at least `_TABLE_BYTES`, except the last; no arrays give an empty list."""
    group: list[np.ndarray] = []
    size, is_first = 0, True
    for array in arrays:
        group.append(array)
        size += array.nbytes
        if size >= _TABLE_BYTES:
            yield group
            group, size, is_first = [], 0, False
    if group or is_first:
        yield group


def _tokens(column: str, value: Any, split: Tokenizer) -> Sequence[str]:
    if isinstance(value, str):
        return split(value)
    if isinstance(value, (list, np.ndarray)) and all(isinstance(token, str) for token in value):
        return list(value)
    raise ValueError(f"{column}: expected strings or lists of tokens, got {shown(value)} ({type(value).__name__})")
