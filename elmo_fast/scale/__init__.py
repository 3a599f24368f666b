"""Embedding on many machines, with Ray: docs/scaling.md."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Cluster:
    """A Ray cluster and the number of its workers; the address `local` starts one that runs as long as the command."""

    address: str = "local"
    workers: int | None = None
