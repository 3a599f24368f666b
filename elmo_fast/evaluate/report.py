"""What a task prints: figures with their errors, beside baselines and the published figure."""

from collections.abc import Iterator
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Row:
    """Figures of one way to do a task, each a mean and the half width of its 95 % interval, in %."""

    name: str
    figures: tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class Report:
    """The result of a task. `measure` says what the figures are, `columns` of what; `published` what others found."""

    title: str
    measure: str
    published: str
    baselines: list[Row]
    rows: list[Row]
    columns: tuple[str, ...] = ("",)
    notes: list[str] = field(default_factory=list)

    def lines(self) -> Iterator[str]:
        """The lines of the table."""
        yield self.title
        yield f"{self.measure}, ± half of the 95 % interval of the test texts"
        names = [*(f"baseline: {row.name}" for row in self.baselines), *(row.name for row in self.rows)]
        width = max(map(len, names))
        if any(self.columns):
            yield f"{'':{width}}  " + "  ".join(f"{name:>12}" for name in self.columns)
        for name, row in zip(names, [*self.baselines, *self.rows]):
            yield f"{name:{width}}  " + "  ".join(f"{f'{mean:.1f} ± {error:.1f}':>12}" for mean, error in row.figures)
        yield f"published: {self.published}"
        yield from self.notes
