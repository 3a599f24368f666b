"""Embedding on many machines, with Ray Data: docs/scaling.md."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Pool:
    """The cluster and its workers: `address` of a cluster, or `local` for one that runs as long as the command."""

    address: str = "local"
    workers: int | None = None
    cpus: int = 1
    gpus: float = 0
