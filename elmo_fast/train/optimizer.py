"""Averages gradients over replicas, clips them by their common norm, and applies them by Adagrad or AdamW."""

import os
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from elmo_fast.errors import ConfigurationError
from elmo_fast.train.config import OptimizerConfig
from elmo_fast.train.model import LanguageModel, UsedRows

_ACCUMULATORS = {"adagrad": ["sum"], "adamw": ["exp_avg", "exp_avg_sq"]}  # state tensors in the parameter's shape


class Replicas:
    """This process, number `rank` of `world`; the only process unless `torchrun` started it. Rank 0 writes files."""

    def __init__(self, device: torch.device):
        self.device = device
        self.rank, self.world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
        self.is_first = self.rank == 0
        self._objects = None
        if self.world > 1:
            dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
            self._objects = dist.new_group(backend="gloo")

    def sum_(self, tensors: Sequence[torch.Tensor]) -> None:
        """Replace every tensor by its sum over the processes, in a single exchange."""
        if self.world == 1 or not tensors:
            return
        flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
        dist.all_reduce(flat)
        for tensor, part in zip(tensors, flat.split([tensor.numel() for tensor in tensors])):
            tensor.copy_(part.view_as(tensor))

    def all_rows(self, rows: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Concatenate the rows int64 [R] and values [R, ...] of every process, in the order of ranks."""
        if self.world == 1:
            return rows, values
        counts = torch.zeros(self.world, dtype=torch.int64, device=rows.device)
        counts[self.rank] = len(rows)
        dist.all_reduce(counts)
        sizes, results = counts.tolist(), []
        for tensor in (rows, values):
            padded = tensor.new_zeros(max(sizes), *tensor.shape[1:])
            padded[: len(tensor)] = tensor
            parts = [torch.empty_like(padded) for _ in sizes]
            dist.all_gather(parts, padded)
            results.append(torch.cat([part[:size] for part, size in zip(parts, sizes)]))
        return tuple(results)

    def gather(self, value: Any) -> list[Any] | None:
        """Return the picklable values of all processes, in the order of ranks, on rank 0; None on other ranks."""
        if self.world == 1:
            return [value]
        values = [None] * self.world if self.is_first else None
        dist.gather_object(value, values, group=self._objects)
        return values

    def share(self, value: Any) -> Any:
        """Return rank 0's picklable value in every process."""
        if self.world == 1:
            return value
        box = [value]
        dist.broadcast_object_list(box, group=self._objects)
        return box[0]

    def close(self) -> None:
        """Leave the group."""
        if self.world > 1:
            dist.destroy_process_group()


class Updater:
    """Applies the gradients of a step to a model.

    Adagrad is TensorFlow's: accumulators begin at 1 and nothing is added to the root. It leaves rows without gradient
    unchanged, so a sampled step updates only the rows it used. AdamW changes every row in every step.
    """

    INITIAL_ACCUMULATOR = 1.0

    def __init__(self, model: LanguageModel, config: OptimizerConfig, replicas: Replicas):
        self._model, self._config, self._replicas = model, config, replicas
        parameters = list(model.parameters())
        if config.optimizer == "adagrad":
            implementation = "fused" if parameters[0].device.type == "cpu" else "foreach"
            self.optimizer = torch.optim.Adagrad(parameters, config.learning_rate, eps=0.0, **{implementation: True},
                                                 initial_accumulator_value=self.INITIAL_ACCUMULATOR)
        else:
            groups = [{"params": [parameter for parameter in parameters if parameter.dim() > 1]},
                      {"params": [parameter for parameter in parameters if parameter.dim() == 1], "weight_decay": 0.0}]
            self.optimizer = torch.optim.AdamW(groups, weight_decay=config.weight_decay, fused=True)

    def restore(self, state: dict[str, Any]) -> None:
        """Load an optimizer's accumulators. The settings stay this optimizer's: they follow from config and device.

        `ConfigurationError` for accumulators of another optimizer or model.
        """
        groups = self.optimizer.state_dict()["param_groups"]
        shapes = [part.shape for group in self.optimizer.param_groups for part in group["params"]]
        expected = {number: {"step": torch.Size(), **dict.fromkeys(_ACCUMULATORS[self._config.optimizer], shape)}
                    for number, shape in enumerate(shapes)}
        shapes_found = {number: {name: getattr(value, "shape", None) for name, value in entry.items()}
                        for number, entry in state["state"].items() if isinstance(entry, dict)}
        if shapes_found != expected:
            raise ConfigurationError(f"checkpoint: expected the accumulators of {self._config.optimizer} for "
                                     f"{len(shapes)} parameters, got others")
        self.optimizer.load_state_dict({"state": state["state"], "param_groups": groups})

    @torch.no_grad()
    def step(self, used: list[UsedRows], rate: float) -> torch.Tensor:
        """Apply the gradients in `.grad` and in the used rows, then clear them; returns their norm before the clip.

        These gradients are sums over this process's batches, already divided by the number of batches of all processes.
        """
        self._replicas.sum_([parameter.grad for parameter in self._with_gradient()])
        sums = [(table, *self._sum_rows([part for part in used if part.table is table]))
                for table in dict.fromkeys(part.table for part in used)]
        sparse = [table_sum for table_sum in sums if not self._add_to_dense(*table_sum)]
        gradients = [parameter.grad for parameter in self._with_gradient()] + [values for _, _, values in sparse]
        norm = torch.stack(torch._foreach_norm(gradients)).norm()
        limit = self._config.all_clip_norm_val
        torch._foreach_mul_(gradients, limit / norm.clamp(min=limit))
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()
        for table, rows, values in sparse:
            total = self.optimizer.state[table]["sum"]
            total[rows] = sums = total[rows].addcmul_(values, values)
            table[rows] = table[rows].addcdiv_(values, sums.sqrt_(), value=-rate)
        self.optimizer.zero_grad(set_to_none=True)
        return norm

    def _with_gradient(self) -> list[torch.nn.Parameter]:
        return [parameter for parameter in self._model.parameters() if parameter.grad is not None]

    def _sum_rows(self, used: list[UsedRows]) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the unique rows of a table that any batch of any process used, and the sums of their gradients."""
        rows, values = torch.cat([part.rows for part in used]), torch.cat([part.values.grad for part in used])
        rows, values = self._replicas.all_rows(rows, values)
        if len(used) == 1 and self._replicas.world == 1:
            return rows, values
        unique, number = rows.unique(return_inverse=True)
        return unique, values.new_zeros(len(unique), *values.shape[1:]).index_put_((number,), values, True)

    def _add_to_dense(self, table, rows: torch.Tensor, values: torch.Tensor) -> bool:
        """Add the rows to the table's own gradient if it has one, or if every row changes in every step."""
        if self._config.optimizer == "adagrad" and table.grad is None:
            return False
        table.grad = torch.zeros_like(table) if table.grad is None else table.grad
        table.grad.index_add_(0, rows, values)
        return True
