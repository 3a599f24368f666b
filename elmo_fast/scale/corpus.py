"""`elmo-fast embed --ray`: a corpus to a directory of Parquet shards, written by workers on many machines."""

import contextlib
import hashlib
import json
import logging
import os
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import ray
from ray.data import DataContext
from ray.data.block import BlockMetadata
from ray.data.datasource import Datasource, ReadTask
from tqdm import tqdm

from elmo_fast import stops
from elmo_fast.embed.api import LoadedElmo
from elmo_fast.embed.files import read_lines
from elmo_fast.model.atomic_file import atomic_directory
from elmo_fast.model.options import ConfigurationError
from elmo_fast.scale.dataset import Settings, SharedModel, Worker, in_tables, workers

SHARD_TOKENS = 1 << 15  # a shard is what a killed worker computes again
_SHARD_TEXTS = 1 << 14
_MOST_TRIES = 4  # of a shard: a worker that dies of it would else be started again for ever
_QUIET = {"RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0", "RAY_BACKEND_LOG_LEVEL": "fatal", "RAY_USAGE_STATS_ENABLED": "0"}
_JOB = pa.schema([("shard", pa.int64()), ("start", pa.int64()), ("keys", pa.list_(pa.string())),
                  ("texts", pa.list_(pa.string())), ("tokens", pa.list_(pa.list_(pa.string()))),
                  ("error", pa.string())])
_DONE = pa.schema([("shard", pa.int64()), ("start", pa.int64()), ("texts", pa.int64()), ("tokens", pa.int64()),
                   ("bytes", pa.int64()), ("crc32", pa.int64()), ("keys", pa.string()), ("error", pa.string())])


class Text(NamedTuple):
    """A record of the input."""

    key: str
    text: str
    tokens: Sequence[str]


Source = Callable[[], contextlib.AbstractContextManager[Iterable[Text]]]


@dataclass(frozen=True)
class Pool:
    """The cluster and its workers: `address` of a cluster, or `local` for one that runs as long as the command."""

    address: str = "local"
    workers: int | None = None
    cpus: int = 1
    gpus: float = 0


def embed_on_ray(texts: Source, output: str | os.PathLike, elmo: LoadedElmo, pool: Pool, *,
                 progress: bool, layers: str, state: str, batch_size: int, total: int | None = None,
                 shard_tokens: int = SHARD_TOKENS) -> None:
    """Embed the records of `texts`, with `key`, `text` and `tokens`, into Parquet shards at the directory `output`.

    `texts` is called on this machine, in a process of Ray's. Shards are numbered in the order of the texts; workers
    write them beside `output`, on a file system that all machines share. The directory appears when all shards stand
    there, their sizes, texts and keys have been compared with those read, and `manifest.json` is written.
    """
    settings = Settings.checked(layers=layers, pool=None, state=state, dtype="float32", batch_size=batch_size,
                                threads=pool.cpus, is_on_gpu=pool.gpus > 0)
    with _cluster(pool), atomic_directory(output) as part:
        shared = SharedModel.of(elmo, settings)
        jobs = ray.data.read_datasource(_Corpus(texts, shard_tokens), num_cpus=0, override_num_blocks=1)
        count = pool.workers or _room(pool)
        done = jobs.map_batches(WriteShards, fn_constructor_args=(shared, settings, part), batch_format="pyarrow",
                                batch_size=1, **workers((count, count), pool.cpus, pool.gpus))
        shards = _verified(_collected(done, total, progress), part)
        for path in part.iterdir():
            if path.name not in {shard["file"] for shard in shards}:
                path.unlink()  # of a worker that was killed
        write_manifest(part, shards, shared, settings)


@contextlib.contextmanager
def _cluster(pool: Pool) -> Iterator[None]:
    """A connection to the cluster, in which a dataset's blocks are single rows and nothing but errors is logged."""
    if pool.address.startswith("ray://"):
        raise ConfigurationError(f"--ray: expected the address of a cluster that this machine belongs to (HOST:PORT or "
                                 f"auto), got Ray Client's {pool.address}")
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    logging.getLogger("ray.data").setLevel(logging.CRITICAL)  # its errors are raised, too
    local = {"include_dashboard": False} if pool.address == "local" else {}
    try:
        ray.init(pool.address, logging_level="ERROR", log_to_driver=False, **local)
    except (ConnectionError, ValueError) as error:
        raise ConfigurationError(f"--ray: expected the address of a cluster that runs, got {pool.address} "
                                 f"({error})") from error
    context = DataContext.get_current().copy()
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    context.target_max_block_size = 1
    try:
        with DataContext.current(context):
            yield
    finally:
        ray.shutdown()


def _room(pool: Pool) -> int:
    """Workers that the cluster has room for."""
    resources = ray.cluster_resources()
    return max(1, int(resources.get("GPU", 0) // pool.gpus if pool.gpus else resources.get("CPU", 0) // pool.cpus))


class _Corpus(Datasource):
    """Shards of texts to embed, a row each, read by a single task on the driver's machine; the last row has the sums.

    An error ends the rows: it is a row of its own, since Ray would log it and wrap it.
    """

    def __init__(self, texts: Source, shard_tokens: int):
        self._texts, self._shard_tokens = texts, shard_tokens

    @property
    def supports_distributed_reads(self) -> bool:
        return False

    def estimate_inmemory_data_size(self) -> int | None:
        return None

    def get_read_tasks(self, parallelism: int, per_task_row_limit: int | None = None,
                       data_context: DataContext | None = None) -> list[ReadTask]:
        metadata = BlockMetadata(num_rows=None, size_bytes=None, input_files=None, exec_stats=None)
        texts, shard_tokens = self._texts, self._shard_tokens
        return [ReadTask(lambda: _jobs(texts, shard_tokens), metadata, schema=_JOB)]


@contextlib.contextmanager
def open_lines(path: str, allow_blank: bool = False) -> Iterator[Iterator[Text]]:
    """The lines of a file, keyed by their numbers."""
    with open(path, encoding="utf-8") as file:
        yield (Text(str(number), *line) for number, line in enumerate(read_lines(file, allow_blank)))


def _jobs(texts: Source, shard_tokens: int) -> Iterator[pa.Table]:
    shard, start, digest = 0, 0, hashlib.blake2b(digest_size=16)
    try:
        with texts() as opened:
            for records in _shards(opened, shard_tokens):
                keys = [record.key for record in records]
                yield _row(_JOB, shard=shard, start=start, keys=keys, texts=[record.text for record in records],
                           tokens=[list(record.tokens) for record in records])
                digest.update(_digest(keys))
                shard, start = shard + 1, start + len(records)
        yield _row(_JOB, shard=-shard - 1, start=start, keys=[digest.hexdigest()])
    except (ValueError, OSError) as error:
        yield _row(_JOB, error=str(error))


def _shards(records: Iterable, shard_tokens: int) -> Iterator[list]:
    some: list = []
    tokens = 0
    for record in records:
        some.append(record)
        tokens += len(record.tokens)
        if tokens >= shard_tokens or len(some) == _SHARD_TEXTS:
            yield some
            some, tokens = [], 0
    if some:
        yield some


class WriteShards(Worker):
    """Writes shards into a directory; a shard of the same number is replaced, and is the same."""

    def __init__(self, shared: SharedModel, settings: Settings, part: Path):
        super().__init__(shared, settings)
        self._part = part

    def __call__(self, table: pa.Table) -> pa.Table:
        job, = table.to_pylist()
        if job["error"] is not None or job["shard"] < 0:
            return _row(_DONE, shard=job["shard"], start=job["start"], keys=(job["keys"] or [""])[0],
                        error=job["error"])
        try:
            return self._write(**job)
        except (ValueError, OSError) as error:
            return _row(_DONE, shard=job["shard"], error=str(error))

    def _write(self, shard: int, start: int, keys: list[str], texts: list[str], tokens: list[list[str]],
               error: None) -> pa.Table:
        if not self._part.is_dir():
            raise OSError(f"output: expected a directory on a file system that all machines share, found no "
                          f"{self._part} on {ray.util.get_node_ip_address()}")
        tries = self._part / f"{shard:05}.tries"
        with open(tries, "ab") as file:
            file.write(b".")
            if file.tell() > _MOST_TRIES:
                raise OSError(f"shard {shard}, texts {start} to {start + len(texts) - 1}: expected a worker to embed "
                              f"it, {_MOST_TRIES} have died of it (out of memory?)")
        path = self._part / f"{shard:05}.{os.getpid()}.new"
        begin = 0
        try:
            for arrays in in_tables(self.vectors(tokens)):
                rows = slice(begin, begin + len(arrays))
                begin += len(arrays)
                columns = {"key": keys[rows], "text": texts[rows], "tokens": tokens[rows]}
                table = pa.table({"key": pa.array(columns["key"], pa.string()),
                                  "text": pa.array(columns["text"], pa.string()),
                                  "tokens": pa.array(columns["tokens"], pa.list_(pa.string())),
                                  "vectors": self.column(arrays)})
                if rows.start == 0:
                    writer = pq.ParquetWriter(path, table.schema, compression="none")
                writer.write_table(table)
            writer.close()
            crc32 = checksum(path)
            size = path.stat().st_size
            path.replace(self._part / shard_name(shard))
        finally:
            path.unlink(missing_ok=True)
        tries.unlink(missing_ok=True)
        return _row(_DONE, shard=shard, start=start, texts=begin, tokens=sum(map(len, tokens)), bytes=size,
                    crc32=crc32, keys=_digest(keys).hex())


def shard_name(shard: int) -> str:
    return f"{shard:05}.parquet"


def checksum(path: Path) -> int:
    """CRC-32 of a file."""
    crc = 0
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            crc = zlib.crc32(block, crc)
    return crc


def _collected(done: "ray.data.Dataset", total: int | None, progress: bool) -> Iterator[dict[str, Any]]:
    """Rows of `_DONE` as they come, with a bar."""
    with tqdm(total=total, unit=" sentences", disable=None if progress else True) as bar:
        rows = iter(done.iter_rows())
        while row := stops.interruptible(next)(rows, None):
            if row["error"] is not None:
                raise ConfigurationError(row["error"])
            bar.update(row["texts"] or 0)
            yield row


def _verified(rows: Iterable[dict[str, Any]], part: Path) -> list[dict[str, Any]]:
    """Facts of all shards in order; `RuntimeError` unless they are those that were read, once each."""
    by_number: dict[int, dict[str, Any]] = {}
    total = None
    for row in rows:
        if row["shard"] < 0:
            total = row
        elif row["shard"] in by_number:
            raise RuntimeError(f"shard {row['shard']}: expected one, got two")
        else:
            by_number[row["shard"]] = row
    if total is None:
        raise RuntimeError("shards: expected the sums of the texts read, got none")
    count = -total["shard"] - 1
    if sorted(by_number) != list(range(count)):
        raise RuntimeError(f"shards: expected {count}, got {len(by_number)}: {sorted(by_number)[:9]}")
    shards, start, digest = [], 0, hashlib.blake2b(digest_size=16)
    for number in range(count):
        row, path = by_number[number], part / shard_name(number)
        found = (row["start"], pq.read_metadata(path).num_rows, path.stat().st_size)
        if found != (start, row["texts"], row["bytes"]):
            raise RuntimeError(f"{path}: expected texts from {start}, {row['texts']} rows, {row['bytes']} bytes; found "
                               f"{found}")
        digest.update(bytes.fromhex(row["keys"]))
        start += row["texts"]
        shards.append({"file": path.name, "texts": row["texts"], "tokens": row["tokens"], "bytes": row["bytes"],
                       "crc32": row["crc32"]})
    if (start, digest.hexdigest()) != (total["start"], total["keys"]):
        raise RuntimeError(f"shards: expected the keys of {total['start']} texts, got others or another order")
    return shards


def write_manifest(part: Path, shards: list[dict[str, Any]], shared: SharedModel, settings: Settings) -> None:
    manifest = {"format": "elmo-fast shards", "version": 1, "layout": "parquet",
                "form": {"layers": settings.layers, "pool": settings.pool, "dtype": settings.dtype, "targets": None},
                "model": shared.fingerprint, "state": settings.state, "precision": shared.precision,
                "texts": sum(shard["texts"] for shard in shards), "tokens": sum(shard["tokens"] for shard in shards),
                "shards": shards, "complete": True}
    (part / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n")


def _row(schema: pa.Schema, **values) -> pa.Table:
    return pa.table({name: [values.get(name)] for name in schema.names}, schema=schema)


def _digest(keys: list[str]) -> bytes:
    return hashlib.blake2b(json.dumps(keys).encode(), digest_size=16).digest()
