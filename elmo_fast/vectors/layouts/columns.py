"""Parquet and Arrow: one row per text, with its vectors in a list column that data frame libraries read."""

import contextlib
import json
import os
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from elmo_fast.arguments import MOST_CELLS
from elmo_fast.environment import extra
from elmo_fast.errors import ConfigurationError
from elmo_fast.files import stops
from elmo_fast.files.atomic import DeferredErrorFile
from elmo_fast.files.json import parse_json
from elmo_fast.vectors.layouts.embeddings import Embeddings
from elmo_fast.vectors.layouts.text_vectors import TextVectors, narrow, narrowed
from elmo_fast.vectors.spec import OutputSpec

with extra("parquet"):
    import pyarrow as pa
    import pyarrow.ipc
    import pyarrow.parquet as pq

FORMAT_VERSION = 1
_ABOUT = b"elmo_fast"  # schema metadata: JSON of the form, the fingerprint and the shape of a row
_BATCH = 8 << 20  # bytes of float32 in a row group or record batch
_PAGE = 1 << 16  # bytes; larger pages of nested lists take longer to write and to read
_MOST_TEXTS = 1 << 14
_CACHED_BATCHES = 4


class ColumnsWriter:
    """Writes texts in batches."""

    def __init__(self, disk: DeferredErrorFile, layout: str, form: OutputSpec, fingerprint: dict | None):
        self._disk, self._layout, self._form, self._fingerprint = disk, layout, form, fingerprint
        self._items: list[TextVectors] = []
        self._bytes = 0
        self._writer = None

    def write(self, item: TextVectors) -> None:
        if self._writer is None:
            shape = np.delete(item.vectors.shape, [] if self._form.pool else -2).tolist()
            self._schema = _schema(self._form, self._fingerprint, shape)
            self._writer = _writer(self._disk, self._layout, self._schema)
        self._items.append(item)
        self._bytes += 4 * item.vectors.size
        if self._bytes >= _BATCH or len(self._items) >= _MOST_TEXTS:
            self._flush()

    def finish(self) -> None:
        """Write the last batch and the end of the file."""
        self._flush()
        writer = self._writer or _writer(self._disk, self._layout, _schema(self._form, self._fingerprint, None))
        writer.close()

    def _flush(self) -> None:
        items, self._items, self._bytes = self._items, [], 0
        if items:
            try:
                self._writer.write_batch(self._batch(items))
            except UnicodeEncodeError as error:
                raise ConfigurationError(f"output: expected texts in UTF-8 for {self._layout}, got {error}; allennlp "
                                         "stores any text") from error
        self._disk.check()
        stops.check()

    def _batch(self, items: list[TextVectors]) -> "pa.RecordBatch":
        tokens = pa.array([token for item in items for token in item.tokens], pa.string())
        columns = [pa.array([item.key for item in items], pa.string()),
                   pa.array([item.text for item in items], pa.string()),
                   _list_array_of([len(item.tokens) for item in items], tokens)]
        if self._form.targets is not None:
            positions = np.concatenate([item.positions for item in items])
            columns.append(_list_array_of([len(item.positions) for item in items], pa.array(positions, pa.int64())))
        return pa.RecordBatch.from_arrays([*columns, self._vectors(items)], schema=self._schema)

    def _vectors(self, items: list[TextVectors]) -> "pa.Array":
        arrays, dtype = [item.vectors for item in items], np.dtype(self._form.dtype)
        if self._form.pool:
            rows = np.stack(arrays)
        else:
            rows = np.concatenate([np.moveaxis(values, -2, 0) for values in arrays])
        try:
            values = narrow(rows, dtype)
        except OverflowError:
            for item in items:
                narrowed(item, dtype)
            raise
        column = pa.array(values.reshape(-1))
        for size in reversed(rows.shape[1:]):
            column = _list_array(np.arange(0, len(column) + 1, size), column)
        return column if self._form.pool else _list_array_of([array.shape[-2] for array in arrays], column)


@contextlib.contextmanager
def segment(path: Path, target, form: OutputSpec, *, layout: str, fingerprint: dict | None = None,
            **_) -> Iterator[ColumnsWriter]:
    """A writer of a file at `path`; its errors name `target`."""
    with DeferredErrorFile(path, target) as disk:
        writer = ColumnsWriter(disk, layout, form, fingerprint)
        yield writer
        writer.finish()


def join(segments: Sequence[Path], part: Path, target, form: OutputSpec, *, layout: str, **_) -> None:
    """Join segments batch by batch. Memory-mapped segments would stay in memory until the last is read."""
    sources = [ColumnsSource(path, mapped=False) for path in segments]
    with contextlib.ExitStack() as stack, DeferredErrorFile(part, target) as disk:
        for source in sources:
            stack.callback(source.close)
        schemas = [source.schema for source in sources if len(source)] or [sources[0].schema]
        with _writer(disk, layout, schemas[0]) as writer:
            for source in sources:
                for number in range(source.batches):
                    writer.write_batch(source.batch(number))
                    disk.check()
                    stops.check()


def _list_array(offsets: np.ndarray, values: "pa.Array") -> "pa.Array":
    """A list array whose list k is `values[offsets[k] : offsets[k + 1]]`."""
    return pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), values)


def _list_array_of(lengths: list[int], values: "pa.Array") -> "pa.Array":
    return _list_array(np.cumsum([0, *lengths]), values)


def _schema(form: OutputSpec, fingerprint: dict | None, shape: list[int] | None) -> "pa.Schema":
    """The schema of a file. `shape` is that of a token's vectors, or of a pooled text's; None without texts."""
    vectors = pa.float16() if form.dtype == "float16" else pa.float32()
    for _ in range((form.layers == "all") + 1 + (not form.pool)):
        vectors = pa.list_(vectors)
    fields = [("key", pa.string()), ("text", pa.string()), ("tokens", pa.list_(pa.string()))]
    if form.targets is not None:
        fields.append(("positions", pa.list_(pa.int64())))
    about = {"format_version": FORMAT_VERSION, "form": form.describe(), "fingerprint": fingerprint, "shape": shape}
    return pa.schema([*fields, ("vectors", vectors)], metadata={_ABOUT: json.dumps(about).encode()})


def _writer(disk: DeferredErrorFile, layout: str, schema: "pa.Schema"):
    if layout == "arrow":
        return pa.ipc.new_file(disk, schema)
    return pq.ParquetWriter(disk, schema, compression="none", use_dictionary=False, write_statistics=False,
                            write_page_checksum=True, data_page_size=_PAGE)


class ColumnsSource(Embeddings):
    """A Parquet or Arrow file; the last batches read are cached. Checksums of Parquet's pages are verified."""

    _expected = "a file of columns, got a file cut short or damaged"

    def __init__(self, path: str | os.PathLike, mapped: bool = True):
        self._name = os.fspath(path)
        with self._reading():
            with open(path, "rb") as file:
                self.layout = "arrow" if file.read(6) == b"ARROW1" else "parquet"
            self._source = pa.memory_map(self._name) if mapped else pa.OSFile(self._name)
            if self.layout == "arrow":
                self._file = pa.ipc.open_file(self._source)
                self.schema, self.batches = self._file.schema, self._file.num_record_batches
                lengths = [self._file.get_batch(number).num_rows for number in range(self.batches)]
            else:
                self._file = pq.ParquetFile(self._source, page_checksum_verification=True)
                self.schema, self.batches = self._file.schema_arrow, self._file.num_row_groups
                lengths = [self._file.metadata.row_group(number).num_rows for number in range(self.batches)]
            about = (self.schema.metadata or {}).get(_ABOUT)
            if about is None or "vectors" not in self.schema.names:
                raise ConfigurationError(f"embeddings {self._name}: expected vectors that elmo-fast wrote, found "
                                         f"another file with the columns {', '.join(self.schema.names)}")
        about = parse_json(about, f"embeddings {self._name}: metadata elmo_fast")
        self._describe(about)
        version = about.get("format_version")
        if not isinstance(version, int) or version > FORMAT_VERSION:
            raise ConfigurationError(f"embeddings {self._name}: expected format version {FORMAT_VERSION}, found "
                                     f"{version!r:.80}; a newer elmo-fast may read it")
        self._shape = about.get("shape")
        if not _is_shape(self._shape, len(lengths) and sum(lengths), self.form["layers"] == "all"):
            raise ConfigurationError(f"embeddings {self._name}: metadata elmo_fast: expected the shape of a row, "
                                     f"found {self._shape!r:.80}")
        self._check_columns()
        self._starts = np.cumsum([0, *lengths])
        self._cached: dict[int, tuple[dict, np.ndarray, np.ndarray]] = {}

    def _check_columns(self) -> None:
        """Raise `ConfigurationError` unless all columns exist with the types that elmo-fast writes."""
        form = OutputSpec("all" if self.form["layers"] == "all" else "top", self.form["pool"], self.form["dtype"],
                          frozenset([""]) if self.form["targets"] else None)
        for field in _schema(form, None, None):
            number = self.schema.get_field_index(field.name)
            if number < 0 or self.schema.field(number).type != field.type:
                column_type = f"{self.schema.field(number).type!s:.80}" if number >= 0 else "none"
                raise ConfigurationError(f"embeddings {self._name}: column {field.name}: expected {field.type}, found "
                                         f"{column_type}")

    @cached_property
    def keys(self) -> list[str]:
        with self._reading():
            if self.layout == "parquet":
                columns = [self._file.read(["key"]).column(0)]
            else:
                columns = [self.batch(number).column("key") for number in range(self.batches)]
            return [key for column in columns for key in _without_nulls("key", column).to_pylist()]

    def __len__(self) -> int:
        return int(self._starts[-1])

    def _vectors(self, number: int) -> np.ndarray:
        (_, ends, rows), row = self._batch_of(number)
        return self._restore_shape(rows[ends[row] : ends[row + 1]])

    def _text(self, number: int) -> str:
        return self._value("text", number)

    def _tokens(self, number: int) -> list[str]:
        return self._value("tokens", number)

    def _positions(self, number: int) -> np.ndarray | None:
        if not self.form["targets"]:
            return None
        return np.array(self._value("positions", number), dtype=np.int64)

    def batch(self, number: int) -> "pa.RecordBatch":
        """Read a row group or record batch. A batch of Arrow is validated, since pyarrow maps it without checks."""
        if self.layout == "parquet":
            return self._file.read_row_group(number).combine_chunks().to_batches()[0]
        batch = self._file.get_batch(number)
        batch.validate(full=True)
        return batch

    def close(self) -> None:
        super().close()
        self._cached, self._file = {}, None
        self._source.close()

    def _value(self, name: str, number: int):
        (columns, _, _), row = self._batch_of(number)
        return columns[name][row].as_py()

    def _batch_of(self, number: int) -> tuple[tuple[dict, np.ndarray, np.ndarray], int]:
        """The columns, row offsets and rows of vectors of a text's batch, and the text's row in it."""
        batch = int(np.searchsorted(self._starts, number, side="right")) - 1
        if batch not in self._cached:
            with self._reading():
                if len(self._cached) >= _CACHED_BATCHES:
                    del self._cached[next(iter(self._cached))]
                self._cached[batch] = self._arrays(self.batch(batch))
        return self._cached[batch], number - int(self._starts[batch])

    def _arrays(self, batch: "pa.RecordBatch") -> tuple[dict, np.ndarray, np.ndarray]:
        columns = {name: _without_nulls(name, batch.column(name)) for name in batch.schema.names}
        values = vectors = columns.pop("vectors")
        while isinstance(values, pa.ListArray):
            values = values.values
        rows = values.to_numpy(zero_copy_only=False).reshape(-1, *self._shape)
        ends = np.arange(len(rows) + 1) if self.form["pool"] else vectors.offsets.to_numpy()
        if len(ends) != len(batch) + 1 or ends[0] or ends[-1] != len(rows) or (ends[1:] < ends[:-1]).any():
            raise ValueError("the numbers of vectors do not match")
        return columns, ends, rows


def _without_nulls(name: str, column: Any) -> Any:
    """The column; `ValueError` for nulls in it or in its lists, which would be read as empty lists or as NaN."""
    values = column
    while values.null_count == 0 and isinstance(values, pa.ListArray):
        values = values.flatten()
    if values.null_count:
        raise ValueError(f"column {name}: {values.null_count} nulls, where elmo-fast writes none")
    return column


def _is_shape(value: Any, texts: int, has_layers: bool) -> bool:
    """Whether `value` can be the shape of a row of vectors; None only for a file without texts."""
    if value is None:
        return not texts
    return (isinstance(value, list) and len(value) == (2 if has_layers else 1)
            and all(type(size) is int and 0 < size <= MOST_CELLS for size in value))

