"""`elmo-fast embed --ray`: embeds texts into a directory of shards, which workers on many machines write."""

import contextlib
import logging
import os
import secrets
import signal
import sys
import threading
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from elmo_fast.embed.api import LoadedElmo
from elmo_fast.embed.jobs import EmbedJob, summary
from elmo_fast.embed.progress import Progress
from elmo_fast.embed.run import Written
from elmo_fast.environment import extra, version
from elmo_fast.errors import ConfigurationError
from elmo_fast.files import stops
from elmo_fast.files.atomic import atomic_directory
from elmo_fast.files.lock import locked
from elmo_fast.files.manifest import StoredFile
from elmo_fast.model.bilm import BiLm
from elmo_fast.scale import Cluster
from elmo_fast.scale.workers import Settings, SharedModel, Worker
from elmo_fast.text.readers import Text
from elmo_fast.vectors.layouts import segment
from elmo_fast.vectors.layouts.shards import entry_of, file_name, write_manifest
from elmo_fast.vectors.layouts.table import is_directory
from elmo_fast.vectors.layouts.text_vectors import TextVectors
from elmo_fast.vectors.open import open_embeddings
from elmo_fast.vectors.spec import Target

with extra("ray"):
    import ray

SHARD_TOKENS = 1 << 15  # when a worker is killed, its shard is computed again
_SHARD_TEXTS = 1 << 14
_MAX_TRIES = 4  # per shard: a worker that dies is replaced
_POLL_SECONDS = 0.2  # between two checks for a stop
_QUIET = {"RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0", "RAY_BACKEND_LOG_LEVEL": "fatal", "RAY_USAGE_STATS_ENABLED": "0"}


class Shard(NamedTuple):
    """Consecutive texts, with the shard's number and the number of its first text."""

    number: int
    start: int
    texts: list[Text]


def embed_file_on_ray(job: EmbedJob, cluster: Cluster, cpus: int, gpus: int) -> str:
    """As `embed_file`, on workers with `cpus` threads and `gpus` GPUs, into a new directory of shards."""
    target = job.output.target(default_layout="parquet")
    if job.resume:
        raise ConfigurationError("--resume: expected a run without --ray, which replaces killed workers itself")
    if job.model.device != "cpu":
        raise ConfigurationError(f"--device: expected --ray-gpus in its place with --ray, got {job.model.device}")
    settings = Settings(target.form, job.state, job.batch_size, cpus, gpus)
    with locked(target.path) as lock, job.opened(target.form) as (texts, bilm, progress):
        written = embed_on_ray(texts, bilm, target, settings, cluster, progress=progress, lock=lock)
    return summary(target, written, bilm)


def embed_on_ray(texts: Iterable[Text], bilm: BiLm, target: Target, settings: Settings, cluster: Cluster, *,
                 progress: Progress | None = None, shard_tokens: int = SHARD_TOKENS,
                 lock: Path | None = None) -> Written:
    """Embed texts into shards in the new directory of `target`, in the layout packed, parquet or arrow.

    Shards are numbered in the order of the texts; workers write them beside the target, on a file system that all
    machines share. The directory gets its name when it holds all shards, their sizes and keys have been checked
    against the texts, and `_manifest.json` is written. `lock` is the path of a lock on the target that the caller has.
    """
    if not is_directory(target.layout, target.path):
        raise ConfigurationError("output: expected a directory of shards, in the layout packed, parquet or arrow, got "
                                 f"{target.path} for {target.layout}")
    folder = os.fspath(target.path).rstrip(f"/{os.sep}")
    with atomic_directory(folder, lock=lock) as part, _connected(cluster):
        shared = SharedModel.of(LoadedElmo(bilm), settings)
        fingerprint = {"version": version("elmo-fast"), "model": shared.fingerprint, "state": settings.state,
                       "precision": bilm.precision, "backend": bilm.backend,
                       "device": "cuda" if settings.gpus else "cpu"}
        actor = ray.remote(ShardWriter).options(max_restarts=-1, max_task_retries=_MAX_TRIES - 1,
                                                **settings.resources)
        count = cluster.workers or _worker_capacity(settings)
        workers = [actor.remote(shared, settings, target, part, fingerprint) for _ in range(count)]
        entries: dict[int, dict[str, Any]] = {}
        tokens = 0
        with progress or Progress(False) as bar:
            for shard, entry in _write_shards(shards_of(texts, shard_tokens), workers):
                _check(shard, part / entry["file"], entry["bytes"])
                entries[shard.number] = entry
                size = sum(len(text.tokens) for text in shard.texts)
                tokens += size
                bar.update(size, len(shard.texts))
        shards = [entries[number] for number in range(len(entries))]
        for name in {path.name for path in part.iterdir()} - {entry["file"] for entry in shards}:
            (part / name).unlink()  # left by a worker that was killed
        write_manifest(part, target.layout, settings.form.describe(), fingerprint, shards)
    return Written(sum(entry["texts"] for entry in shards), tokens)


@contextlib.contextmanager
def _connected(cluster: Cluster) -> Iterator[None]:
    """Connect to the cluster for the context; Ray logs nothing."""
    if cluster.address.startswith("ray://"):
        raise ConfigurationError("--ray: expected the address of a cluster that this machine belongs to (HOST:PORT or "
                                 f"auto), got Ray Client's {cluster.address}")
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    local = {"include_dashboard": False} if cluster.address == "local" else {}
    try:
        try:
            with _silence(), _restore_handlers():
                ray.init(cluster.address, logging_level=logging.ERROR, log_to_driver=False, **local)
        except (ConnectionError, ValueError) as error:
            raise ConfigurationError(f"--ray: expected the address of a cluster that runs, got {cluster.address} "
                                     f"({error}); one with a token wants RAY_AUTH_MODE=token") from error
        except Exception as error:  # Ray has no specific type for a start that takes too long
            raise OSError(f"--ray: expected Ray to start, or to answer, at {cluster.address} ({error})") from error
        yield
    finally:
        ray.shutdown()


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """Discard what is written to stderr's descriptor: Ray's C++ library prints its log level there."""
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
def _restore_handlers() -> Iterator[None]:
    """Restore the signal handlers after the context: Ray's end the process without removing partial output."""
    is_main = threading.current_thread() is threading.main_thread()
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            if is_main and handler is not None:
                signal.signal(number, handler)


def _worker_capacity(settings: Settings) -> int:
    """Return how many workers the cluster has room for."""
    resources = ray.cluster_resources()
    resource, per_worker = ("GPU", settings.gpus) if settings.gpus else ("CPU", settings.cpus)
    return max(1, int(resources.get(resource, 0) // per_worker))


def shards_of(texts: Iterable[Text], shard_tokens: int = SHARD_TOKENS) -> Iterator[Shard]:
    """Group texts into shards of about `shard_tokens` tokens."""
    number, start, tokens = 0, 0, 0
    group: list[Text] = []
    for text in texts:
        group.append(text)
        tokens += len(text.tokens)
        if tokens >= shard_tokens or len(group) == _SHARD_TEXTS:
            yield Shard(number, start, group)
            number, start, tokens, group = number + 1, start + len(group), 0, []
    if group:
        yield Shard(number, start, group)


class ShardWriter(Worker):
    """Writes shards into a directory. A shard that is written again is identical, and replaces the first file."""

    def __init__(self, shared: SharedModel, settings: Settings, target: Target, part: Path, fingerprint: dict):
        super().__init__(shared, settings)
        self._target, self._part, self._fingerprint = target, part, fingerprint

    def write(self, number: int, texts: list[Text]) -> dict[str, Any]:
        """Write a shard and return its entry in the manifest."""
        if not self._part.is_dir():
            raise OSError("output: expected a directory on a file system that all machines share, found no "
                          f"{self._part} on {ray.util.get_node_ip_address()}")
        layout, path = self._target.layout, self._part / f"{number:05}.{secrets.token_hex(4)}.new"
        with segment(layout, path, self._target.path, self._settings.form, fingerprint=self._fingerprint) as writer:
            for text, kept in zip(texts, self.selections([text.tokens for text in texts])):
                writer.write(TextVectors(*text, kept.positions, kept.vectors))
        stored = replace(StoredFile.of(path), name=file_name(layout, number))
        path.replace(self._part / stored.name)
        return entry_of(stored, len(texts))


def _write_shards(shards: Iterable[Shard], workers: list[Any]) -> Iterator[tuple[Shard, dict[str, Any]]]:
    """Yield shards as workers finish them, with their entries in the manifest. A worker has one shard at a time."""
    running: dict[ray.ObjectRef, tuple[Any, Shard | None]] = {
        worker.__ray_ready__.remote(): (worker, None) for worker in workers}
    for shard in shards:
        worker, done, entry = _next_done(running)
        running[worker.write.remote(shard.number, shard.texts)] = worker, shard
        if done:
            yield done, entry
    while any(shard for _, shard in running.values()):
        _, done, entry = _next_done(running)
        if done:
            yield done, entry


def _next_done(running: dict[Any, tuple[Any, Shard | None]]) -> tuple[Any, Shard | None, dict[str, Any]]:
    """Wait for a worker; return it and the shard that it wrote, with its entry, or None if it has just started."""
    done: list[Any] = []
    while not done:
        stops.check()
        done, _ = ray.wait(list(running), timeout=_POLL_SECONDS)
    worker, shard = running.pop(done[0])
    try:
        return worker, shard, ray.get(done[0])
    except ray.exceptions.RayTaskError as error:
        raise error.cause from error
    except ray.exceptions.RayError as error:
        if shard is None or not isinstance(error, ray.exceptions.RayActorError):
            raise OSError(f"--ray: expected Ray to run the workers ({error}); see Ray's log") from error
        raise OSError(f"shard {shard.number}, from text {shard.start} on: expected a worker to embed it, {_MAX_TRIES} "
                      "have died of it; see Ray's log, and whether there was memory") from error


def _check(shard: Shard, path: Path, size: int) -> None:
    """Raise `RuntimeError` unless a file has `size` bytes and the keys of the shard."""
    with open_embeddings(path) as opened:
        if path.stat().st_size != size or opened.keys != [text.key for text in shard.texts]:
            raise RuntimeError(f"{path}: expected the {len(shard.texts)} texts from {shard.start} on, in {size} bytes, "
                               f"found others, or {path.stat().st_size} bytes")
