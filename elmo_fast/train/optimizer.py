"""Gradients to new weights: averaged over replicas, clipped by their common norm, applied by Adagrad or AdamW."""

from typing import Any

import torch

from elmo_fast.train.config import OptimizerConfig
from elmo_fast.train.model import LanguageModel, UsedRows
from elmo_fast.train.replicas import Replicas


class Updater:
    """Applies the gradients of a step to a model.

    Adagrad is TensorFlow's: accumulators begin at 1 and nothing is added to the root. It leaves rows without gradient
    unchanged, so a sampled step updates only the rows it used. AdamW changes every row in every step.
    """

    INITIAL_ACCUMULATOR = 1.0

    def __init__(self, model: LanguageModel, config: OptimizerConfig, replicas: Replicas):
        self._model, self._config, self._replicas = model, config, replicas
        self._tables = model.tables()
        parameters = list(model.parameters())
        on_cpu = parameters[0].device.type == "cpu"
        if config.optimizer == "adagrad":
            self.optimizer = torch.optim.Adagrad(parameters, config.learning_rate, eps=0.0,
                                                 initial_accumulator_value=self.INITIAL_ACCUMULATOR,
                                                 **({"fused": True} if on_cpu else {"foreach": True}))
        else:
            groups = [{"params": [parameter for parameter in parameters if parameter.dim() > 1]},
                      {"params": [parameter for parameter in parameters if parameter.dim() == 1], "weight_decay": 0.0}]
            self.optimizer = torch.optim.AdamW(groups, config.learning_rate, weight_decay=config.weight_decay,
                                               fused=True)

    def restore(self, state: dict[str, Any]) -> None:
        """Load an optimizer's accumulators. The settings stay this optimizer's: they follow from config and device."""
        own = self.optimizer.state_dict()["param_groups"]
        self.optimizer.load_state_dict({"state": state["state"], "param_groups": own})

    @torch.no_grad()
    def step(self, used: list[UsedRows], rate: float) -> torch.Tensor:
        """Apply the gradients in `.grad` and in the used rows, then clear them; returns their norm before the clip.

        Both are sums over this process's batches, already divided by the number of batches of all processes.
        """
        self._replicas.sum_([parameter.grad for parameter in self._with_gradient()])
        tables = [table for table in self._tables if any(rows.table is table for rows in used)]
        sums = [(table, *self._sum_rows([rows for rows in used if rows.table is table])) for table in tables]
        sparse = [table_sum for table_sum in sums if not self._add_to_dense(*table_sum)]
        gradients = [parameter.grad for parameter in self._with_gradient()] + [values for _, _, values in sparse]
        norm = torch.stack(torch._foreach_norm(gradients)).norm()
        limit = self._config.all_clip_norm_val
        torch._foreach_mul_(gradients, limit / norm.clamp(min=limit))
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()
        # Fused optimizers do not count their changes of a weight, but packed weights are cached by that count.
        torch.autograd.graph.increment_version(list(self._model.parameters()))
        for table, rows, values in sparse:
            self._update_rows(table, rows, values, rate)
        self.optimizer.zero_grad(set_to_none=True)
        return norm

    def _with_gradient(self) -> list[torch.nn.Parameter]:
        return [parameter for parameter in self._model.parameters() if parameter.grad is not None]

    def _sum_rows(self, used: list[UsedRows]) -> tuple[torch.Tensor, torch.Tensor]:
        """Unique rows of a table that any batch of any process used, and the sum of their gradients."""
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

    def _update_rows(self, table, rows: torch.Tensor, values: torch.Tensor, rate: float) -> None:
        total = self.optimizer.state[table]["sum"]
        sums = total[rows].addcmul_(values, values)
        total[rows] = sums
        table[rows] = table[rows].addcdiv_(values, sums.sqrt_(), value=-rate)
