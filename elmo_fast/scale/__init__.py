"""Embedding on many machines, with Ray: docs/scaling.md."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Pool:
    """The workers of a cluster: its address, or `local` for a cluster that runs as long as the command."""

    address: str = "local"
    workers: int | None = None
