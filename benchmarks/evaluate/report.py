"""What a task prints: figures with their errors, beside baselines and the published figure."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np


def figure(values: np.ndarray, groups: np.ndarray | None = None) -> tuple[float, float]:
    """A mean in % and the half width of its 95 % interval, where texts, not their tokens, are the sample.

    `values` [rows] are results of tokens or texts, `groups` int [rows] the texts of the tokens.
    """
    groups = np.arange(len(values)) if groups is None else groups
    counts, sums = np.bincount(groups), np.bincount(groups, values)
    mean = sums.sum() / max(counts.sum(), 1)
    error = np.sqrt(((sums - mean * counts) ** 2).sum()) / max(counts.sum(), 1)
    return 100 * float(mean), 196 * float(error)


@dataclass(frozen=True)
class Row:
    """Figures of one way to do a task, each a mean and the half width of its 95 % interval, in %."""

    name: str
    figures: tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class Report:
    """The result of a task. `measure` names the unit of the figures, `columns` their columns."""

    title: str
    measure: str
    baselines: list[Row]
    rows: list[Row]
    columns: tuple[str, ...] = ()
    published: str = ""
    notes: list[str] = field(default_factory=list)

    def lines(self) -> Iterator[str]:
        """The lines of the table."""
        yield self.title
        yield f"{self.measure}, ± half of the 95 % interval of the test texts"
        names = [*(f"baseline: {row.name}" for row in self.baselines), *(row.name for row in self.rows)]
        width = max(map(len, names))
        if self.columns:
            yield f"{'':{width}}  " + "  ".join(f"{name:>12}" for name in self.columns)
        for name, row in zip(names, [*self.baselines, *self.rows]):
            yield f"{name:{width}}  " + "  ".join(f"{f'{mean:.1f} ± {error:.1f}':>12}" for mean, error in row.figures)
        yield f"published: {self.published}"
        yield from self.notes
