"""Gradients to new weights: averaged over replicas, clipped by one norm, applied by Adagrad or AdamW."""

from typing import Any

import torch

from elmo_fast.train.language_model import LanguageModel, TouchedRows
from elmo_fast.train.options import Learning
from elmo_fast.train.replicas import Replicas


class Updater:
    """Applies one step's gradients to a model.

    Adagrad is TensorFlow's: accumulators begin at 1 and nothing is added to the root. It leaves rows without gradient
    as they are, so a sampled step updates the rows it used and no others. AdamW moves every row in every step.
    """

    INITIAL_ACCUMULATOR = 1.0

    def __init__(self, model: LanguageModel, learning: Learning, replicas: Replicas):
        self._model, self._learning, self._replicas = model, learning, replicas
        self._tables = model.tables()
        parameters = list(model.parameters())
        on_cpu = parameters[0].device.type == "cpu"
        if learning.optimizer == "adagrad":
            self.optimizer = torch.optim.Adagrad(parameters, learning.learning_rate, eps=0.0,
                                                 initial_accumulator_value=self.INITIAL_ACCUMULATOR,
                                                 **({"fused": True} if on_cpu else {"foreach": True}))
        else:
            groups = [{"params": [each for each in parameters if each.dim() > 1]},
                      {"params": [each for each in parameters if each.dim() == 1], "weight_decay": 0.0}]
            self.optimizer = torch.optim.AdamW(groups, learning.learning_rate, weight_decay=learning.weight_decay,
                                               fused=True)
        self._sparse = learning.optimizer == "adagrad"

    def restore(self, state: dict[str, Any]) -> None:
        """Take over what an optimizer has gathered; its settings stay this one's, which follow from plan and device."""
        own = self.optimizer.state_dict()["param_groups"]
        self.optimizer.load_state_dict({"state": state["state"], "param_groups": own})

    @torch.no_grad()
    def step(self, touched: list[TouchedRows], rate: float) -> torch.Tensor:
        """Apply the gradients in `.grad` and in the touched rows, then forget them; returns their norm before the clip.

        Both are sums over this process's batches, already divided by the number of batches of all processes.
        """
        dense = [each for each in self._model.parameters() if each.grad is not None]
        self._replicas.sum_([each.grad for each in dense])
        rows = [self._merged(table, [each for each in touched if each.table is table]) for table in self._tables
                if any(each.table is table for each in touched)]
        rows = [each for each in rows if not self._made_dense(*each)]
        dense = [each for each in self._model.parameters() if each.grad is not None]
        gradients = [each.grad for each in dense] + [values for _, _, values in rows]
        norm = torch.stack(torch._foreach_norm(gradients)).norm()
        limit = self._learning.all_clip_norm_val
        torch._foreach_mul_(gradients, limit / norm.clamp(min=limit))
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()
        # Fused optimizers change weights without counting it, and what is packed from weights goes by that count.
        torch.autograd.graph.increment_version(list(self._model.parameters()))
        for table, numbers, values in rows:
            self._update_rows(table, numbers, values, rate)
        self.optimizer.zero_grad(set_to_none=True)
        return norm

    def _merged(self, table, touched: list[TouchedRows]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Unique rows of a table that any batch of any process used, and the sum of their gradients."""
        rows, values = torch.cat([each.rows for each in touched]), torch.cat([each.values.grad for each in touched])
        rows, values = self._replicas.all_rows(rows, values)
        if len(touched) == 1 and self._replicas.world == 1:
            return table, rows, values
        unique, number = rows.unique(return_inverse=True)
        return table, unique, values.new_zeros(len(unique), *values.shape[1:]).index_put_((number,), values, True)

    def _made_dense(self, table, rows: torch.Tensor, values: torch.Tensor) -> bool:
        """Put the rows into the table's own gradient where it has one, or where every row moves in every step."""
        if self._sparse and table.grad is None:
            return False
        table.grad = torch.zeros_like(table) if table.grad is None else table.grad
        table.grad.index_add_(0, rows, values)
        return True

    def _update_rows(self, table, rows: torch.Tensor, values: torch.Tensor, rate: float) -> None:
        total = self.optimizer.state[table]["sum"]
        sums = total[rows].addcmul_(values, values)
        total[rows] = sums
        table[rows] = table[rows].addcdiv_(values, sums.sqrt_(), value=-rate)
