"""The options that a model is opened with. Imports no torch."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from elmo_fast.arguments import Precision, StateName

# The text whose final state, run from zeros, is the initial state of `warm`.
WARM_TEXT: tuple[tuple[str, ...], ...] = tuple(tuple(line.split()) for line in (
    "The committee will meet again on Tuesday to discuss the report .",
    "She opened the window and looked out over the quiet street .",
    "Prices rose by about two per cent in the last quarter , the bank said .",
    "\" I do not think so , \" he answered , \" but we shall see . \"",
))


@dataclass(frozen=True)
class ModelOptions:
    """How a model is opened; functions that open one take these fields as keyword arguments.

    `state` says where a sentence starts. `carry`: row k of a batch starts where row k of the last batch ended, as
    in bilm-tf and AllenNLP. `zero`: from zeros. `warm`: from the final state of `warm_text` run from zeros, computed
    once, and again after weights change. With `zero` and `warm` results do not depend on order or batch mates.

    `precision` is `highest` (IEEE fp32), `high`, `medium`, or `low`, which has no gradients; `backend` is `auto`,
    `reference`, `torch` or `native`. With `requires_grad` the weights are trained. `token_table` is a `TokenTable`, or
    a table's file, which the vectors of tokens come from. NaN and infinities in the weights are refused unless
    `allow_nonfinite`.
    """

    state: StateName = "carry"
    precision: Precision = "highest"
    backend: str = "auto"
    requires_grad: bool = False
    warm_text: Sequence[Sequence[str]] = WARM_TEXT
    token_table: Any = None
    allow_nonfinite: bool = False
