"""The processes that train a model together: sums of their gradients and losses, exchange of their states."""

import os
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist


class Replicas:
    """This process, number `rank` of `world`; the only process unless `torchrun` started it. Rank 0 writes files."""

    def __init__(self, device: torch.device):
        self.device = device
        self.rank, self.world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
        self._objects = None
        if self.world > 1:
            dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
            self._objects = dist.new_group(backend="gloo")

    @property
    def is_first(self) -> bool:
        """Whether this process writes the files."""
        return self.rank == 0

    def sum_(self, tensors: Sequence[torch.Tensor]) -> None:
        """Replace every tensor by its sum over the processes, in a single exchange."""
        if self.world == 1 or not tensors:
            return
        flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
        dist.all_reduce(flat)
        for tensor, part in zip(tensors, flat.split([tensor.numel() for tensor in tensors])):
            tensor.copy_(part.view_as(tensor))

    def all_rows(self, rows: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Rows int64 [R] and values [R, ...] of every process, in the order of ranks."""
        if self.world == 1:
            return rows, values
        counts = torch.zeros(self.world, dtype=torch.int64, device=rows.device)
        counts[self.rank] = len(rows)
        dist.all_reduce(counts)
        return self._all_gather(rows, counts), self._all_gather(values, counts)

    def _all_gather(self, own: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        sizes = counts.tolist()
        padded = own.new_zeros(max(sizes), *own.shape[1:])
        padded[: len(own)] = own
        parts = [torch.empty_like(padded) for _ in sizes]
        dist.all_gather(parts, padded)
        return torch.cat([part[:size] for part, size in zip(parts, sizes)])

    def gather(self, value: Any) -> list[Any] | None:
        """The picklable values of all processes, in the order of ranks, on rank 0; None on other ranks."""
        if self.world == 1:
            return [value]
        found = [None] * self.world if self.is_first else None
        dist.gather_object(value, found, group=self._objects)
        return found

    def share(self, value: Any) -> Any:
        """Rank 0's picklable value, on every process."""
        if self.world == 1:
            return value
        box = [value]
        dist.broadcast_object_list(box, group=self._objects)
        return box[0]

    def close(self) -> None:
        """Leave the group."""
        if self.world > 1:
            dist.destroy_process_group()
