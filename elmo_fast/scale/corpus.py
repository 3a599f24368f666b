"""`elmo-fast embed --ray`: texts to a directory of shards, which workers on many machines write."""

import contextlib
import hashlib
import json
import logging
import os
import secrets
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from elmo_fast import stops
from elmo_fast.choices import extra
from elmo_fast.embed.api import LoadedElmo
from elmo_fast.embed.corpus import Target
from elmo_fast.embed.layouts import Item, is_directory, segment
from elmo_fast.embed.layouts.shards import SUFFIXES, checksum, write_manifest
from elmo_fast.embed.opened import open_embeddings
from elmo_fast.embed.readers import Text
from elmo_fast.embed.writer import Progress
from elmo_fast.model.atomic_file import atomic_directory
from elmo_fast.model.bilm import BiLm
from elmo_fast.model.options import ConfigurationError
from elmo_fast.ops.cuda.choice import version
from elmo_fast.scale import Pool
from elmo_fast.scale.workers import Settings, SharedModel, Worker, actors

with extra("ray"):
    import pyarrow as pa
    import ray
    from ray.data import DataContext
    from ray.data.block import BlockMetadata
    from ray.data.datasource import Datasource, ReadTask

SHARD_TOKENS = 1 << 15  # a shard is what is computed again when a worker is killed
_SHARD_TEXTS = 1 << 14
_MOST_TRIES = 4  # of a shard: Ray starts a worker again however often it dies
_QUIET = {"RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0", "RAY_BACKEND_LOG_LEVEL": "fatal", "RAY_USAGE_STATS_ENABLED": "0"}
_STRINGS = pa.list_(pa.string())
_JOB = pa.schema([("shard", pa.int64()), ("start", pa.int64()), ("keys", _STRINGS), ("texts", _STRINGS),
                  ("tokens", pa.list_(_STRINGS)), ("error", pa.string()), ("is_refusal", pa.bool_())])
_DONE = pa.schema([("shard", pa.int64()), ("start", pa.int64()), ("texts", pa.int64()), ("tokens", pa.int64()),
                   ("bytes", pa.int64()), ("crc32", pa.int64()), ("digest", pa.string()), ("error", pa.string()),
                   ("is_refusal", pa.bool_())])
Source = Callable[[], contextlib.AbstractContextManager[Iterable[Text]]]


def embed_on_ray(texts: Source, bilm: BiLm, target: Target, settings: Settings, pool: Pool, *,
                 progress: Progress | None = None, shard_tokens: int = SHARD_TOKENS) -> None:
    """Embed texts into shards in the new directory of `target`, in the layout packed, parquet or arrow.

    `texts` opens them, in a process of Ray's on this machine. Shards are numbered in the order of the texts; workers
    write them beside the target, on a file system that all machines share. The directory gets its name when all shards
    stand there, their sizes, texts and keys have been compared with those read, and `manifest.json` is written.
    """
    if not is_directory(target.layout, target.path):
        raise ConfigurationError("output: expected a directory of shards, in the layout packed, parquet or arrow, got "
                                 f"{target.path} for {target.layout}")
    with atomic_directory(os.fspath(target.path).rstrip("/")) as part, _cluster(pool):
        shared = SharedModel.of(LoadedElmo(bilm), settings)
        fingerprint = {"version": version("elmo-fast"), "model": shared.fingerprint, "state": settings.state,
                       "precision": bilm.precision, "backend": bilm.backend, "device": "cuda" if pool.gpus else "cpu"}
        jobs = ray.data.read_datasource(_Corpus(texts, shard_tokens), num_cpus=0, override_num_blocks=1)
        count = pool.workers or _room(pool)
        done = jobs.map_batches(WriteShards, batch_format="pyarrow", batch_size=1,
                                fn_constructor_args=(shared, settings, target, part, fingerprint),
                                **actors((count, count), pool.cpus, pool.gpus))
        with progress or Progress(False) as bar:
            shards = _verified(_collected(done, bar), target.layout, part)
        for name in {path.name for path in part.iterdir()} - {shard["file"] for shard in shards}:
            (part / name).unlink()  # of a worker that was killed
        write_manifest(part, target.layout, settings.form.describe(), fingerprint, shards)


@contextlib.contextmanager
def _cluster(pool: Pool) -> Iterator[None]:
    """A connection to the cluster, in which a block of a dataset is a single row, and Ray is silent."""
    if pool.address.startswith("ray://"):
        raise ConfigurationError("--ray: expected the address of a cluster that this machine belongs to (HOST:PORT or "
                                 f"auto), got Ray Client's {pool.address}")
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    logging.getLogger("ray.data").setLevel(logging.CRITICAL)  # its errors are raised, too
    local = {"include_dashboard": False} if pool.address == "local" else {}
    try:
        try:
            with _silence(), _handlers_kept():
                ray.init(pool.address, logging_level=logging.ERROR, log_to_driver=False, **local)
        except (ConnectionError, ValueError) as error:
            raise ConfigurationError(f"--ray: expected the address of a cluster that runs, got {pool.address} "
                                     f"({error}); one with a token wants RAY_AUTH_MODE=token") from error
        except Exception as error:  # Ray has no type of its own for a machine that starts it too slowly
            raise OSError(f"--ray: expected Ray to start, or to answer, at {pool.address} ({error})") from error
        context = DataContext.get_current().copy()
        context.enable_progress_bars = False
        context.target_max_block_size = 1
        with DataContext.current(context):
            yield
    finally:
        ray.shutdown()


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """Nothing on the descriptor of stderr: Ray's library in C++ prints there which log level it was given."""
    sys.stderr.flush()
    stderr = os.dup(2)
    try:
        with open(os.devnull, "wb") as nothing:
            os.dup2(nothing.fileno(), 2)
        yield
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)


@contextlib.contextmanager
def _handlers_kept() -> Iterator[None]:
    """After the body a stop is handled as before: Ray's own handlers end the process, and leave what was written."""
    is_main = threading.current_thread() is threading.main_thread()
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            if is_main and handler is not None:
                signal.signal(number, handler)


def _room(pool: Pool) -> int:
    """Workers that the cluster has room for."""
    resources = ray.cluster_resources()
    return max(1, int(resources.get("GPU", 0) // pool.gpus if pool.gpus else resources.get("CPU", 0) // pool.cpus))


class _Corpus(Datasource):
    """Shards of texts, a row each, which a single task reads on the driver's machine; the last row has the sums.

    An error is a row of its own, the last one: Ray would log it, and wrap it in others.
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
        texts, shard_tokens = self._texts, self._shard_tokens
        metadata = BlockMetadata(num_rows=None, size_bytes=None, input_files=None, exec_stats=None)
        return [ReadTask(lambda: read_jobs(texts, shard_tokens), metadata, schema=_JOB)]


def read_jobs(texts: Source, shard_tokens: int = SHARD_TOKENS) -> Iterator[pa.Table]:
    """Rows of `_JOB` for texts; that of the sums has the number before 0 that counts the shards, and their keys."""
    shard, start, digest = 0, 0, hashlib.blake2b(digest_size=16)
    try:
        with texts() as opened:
            for some in _shards(opened, shard_tokens):
                keys = [text.key for text in some]
                yield _row(_JOB, shard=shard, start=start, keys=keys, texts=[text.text for text in some],
                           tokens=[list(text.tokens) for text in some])
                digest.update(_digest(keys))
                shard, start = shard + 1, start + len(some)
        yield _row(_JOB, shard=-shard - 1, start=start, keys=[digest.hexdigest()])
    except (ValueError, OSError) as error:
        yield _row(_JOB, **_failure(error))


def _shards(texts: Iterable[Text], shard_tokens: int) -> Iterator[list[Text]]:
    some: list[Text] = []
    tokens = 0
    for text in texts:
        some.append(text)
        tokens += len(text.tokens)
        if tokens >= shard_tokens or len(some) == _SHARD_TEXTS:
            yield some
            some, tokens = [], 0
    if some:
        yield some


class WriteShards(Worker):
    """Writes shards into a directory. A shard that is written again is the same, and takes the place of the first."""

    def __init__(self, shared: SharedModel, settings: Settings, target: Target, part: Path, fingerprint: dict):
        super().__init__(shared, settings)
        self._target, self._part, self._fingerprint = target, part, fingerprint

    def __call__(self, table: pa.Table) -> pa.Table:
        job, = table.to_pylist()
        try:
            if job["error"] is not None:
                return _row(_DONE, **job)
            if job["shard"] < 0:
                return _row(_DONE, digest=job["keys"][0], **job)
            return self._write(job)
        except (ValueError, OSError) as error:
            return _row(_DONE, **_failure(error))

    def _write(self, job: dict[str, Any]) -> pa.Table:
        path = self._part / f"{job['shard']:05}.{secrets.token_hex(4)}.new"
        with self._counted(job):
            writes = segment(self._target.layout, path, self._target.path, self._settings.form,
                             fingerprint=self._fingerprint)
            texts = list(zip(job["keys"], job["texts"], job["tokens"]))
            with writes as writer:
                for text, kept in zip(texts, self.kept(job["tokens"])):
                    writer.write(Item(*text, kept.positions, kept.vectors))
            done = _row(_DONE, shard=job["shard"], start=job["start"], texts=len(texts),
                        tokens=sum(map(len, job["tokens"])), bytes=path.stat().st_size, crc32=checksum(path),
                        digest=_digest(job["keys"]).hex())
            path.replace(self._part / _name(job["shard"], self._target.layout))
        return done

    @contextlib.contextmanager
    def _counted(self, job: dict[str, Any]) -> Iterator[None]:
        """Count the tries of a shard in a file, since the worker may die in the body."""
        if not self._part.is_dir():
            raise OSError("output: expected a directory on a file system that all machines share, found no "
                          f"{self._part} on {ray.util.get_node_ip_address()}")
        tries = self._part / f"{job['shard']:05}.tries"
        with open(tries, "ab") as file:
            file.write(b".")
        if tries.stat().st_size > _MOST_TRIES:
            raise OSError(f"shard {job['shard']}, from text {job['start']} on: expected a worker to embed it, "
                          f"{_MOST_TRIES} have died of it; see Ray's log, and whether there was memory")
        yield
        tries.unlink(missing_ok=True)


def _collected(done: "ray.data.Dataset", bar: Progress) -> Iterator[dict[str, Any]]:
    """Rows of `_DONE` as they come."""
    rows = iter(done.iter_rows())
    while row := _next(rows):
        if row["error"] is not None:
            raise (ConfigurationError if row["is_refusal"] else OSError)(row["error"])
        if row["shard"] >= 0:
            bar.update(row["tokens"], row["texts"])
        yield row


def _next(rows: Iterator[dict[str, Any]]) -> dict[str, Any] | None:
    try:
        return stops.interruptible(next)(rows, None)
    except ray.exceptions.RayError as error:
        raise OSError(f"--ray: expected Ray to run the workers ({error}); see Ray's log") from error


def _verified(rows: Iterable[dict[str, Any]], layout: str, part: Path) -> list[dict[str, Any]]:
    """What the manifest says of all shards, in order; `RuntimeError` unless they are those that were read, once."""
    ordered = sorted(rows, key=lambda row: row["shard"])
    numbers = [row["shard"] for row in ordered]
    if not numbers or numbers != [-len(numbers), *range(len(numbers) - 1)]:
        raise RuntimeError(f"shards: expected the sums, and every number once, got {numbers[:9]} of {len(numbers)}")
    sums, *written = ordered
    shards, start, digest = [], 0, hashlib.blake2b(digest_size=16)
    for row in written:
        path = part / _name(row["shard"], layout)
        with open_embeddings(path) as opened:
            found = row["start"], len(opened), path.stat().st_size
        if found != (start, row["texts"], row["bytes"]):
            raise RuntimeError(f"{path}: expected texts from {start}, {row['texts']} of them, in {row['bytes']} bytes, "
                               f"found {found}")
        start += row["texts"]
        digest.update(bytes.fromhex(row["digest"]))
        shards.append({"file": path.name, **{name: row[name] for name in ("texts", "bytes", "crc32")}})
    if (start, digest.hexdigest()) != (sums["start"], sums["digest"]):
        raise RuntimeError(f"shards: expected the keys of the {sums['start']} texts that were read, found those of "
                           f"{start}, or others")
    return shards


def _name(shard: int, layout: str) -> str:
    return f"{shard:05}{SUFFIXES[layout]}"


def _digest(keys: list[str]) -> bytes:
    return hashlib.blake2b(json.dumps(keys).encode(), digest_size=16).digest()


def _failure(error: ValueError | OSError) -> dict[str, Any]:
    return {"error": str(error), "is_refusal": isinstance(error, ValueError)}


def _row(schema: pa.Schema, **values: Any) -> pa.Table:
    return pa.table({name: [values.get(name)] for name in schema.names}, schema=schema)
