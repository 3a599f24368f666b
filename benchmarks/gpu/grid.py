"""Times one implementation at every batch size and length, within a stage's time."""

from dataclasses import dataclass, field

import torch

from benchmarks import common
from benchmarks.gpu import clock
from benchmarks.gpu.stage import Stage

SHAPES = tuple((batch, length) for length in (25, 100, 1000) for batch in (1, 4, 16, 64, 256))
DRY_SHAPES = ((1, 4), (3, 4), (1, 9))
SECONDS = 2.0  # for one case, unless a single call takes longer
SPARE = 1.3  # an estimate may be this far off


def shapes(stage: Stage) -> tuple[tuple[int, int], ...]:
    return DRY_SHAPES if stage.dry_run else SHAPES


def size(stage: Stage) -> str:
    return "tiny" if stage.dry_run else "original"


def fixed_batch(batch: int, length: int) -> list[list[str]]:
    """`batch` sentences of `length` tokens cut out of running text, so that words repeat as in text."""
    sentences, _ = common.running_text(2000)
    stream = [token for sentence in sentences for token in sentence]
    repeats = -(-batch * length // len(stream))
    stream = (stream * repeats)[: batch * length]
    return common.batches(stream, length)


@dataclass
class Grid:
    """One variant over the shapes. `prepare(batch, length)` gives the call to time; it runs unclocked.

    `facts` describe every case beforehand; `notes` are what `prepare` found out about the last one; a case takes about
    `seconds`.
    """

    stage: Stage
    variant: str
    prepare: object
    facts: dict
    notes: dict = field(default_factory=dict)
    seconds: float = SECONDS

    def __post_init__(self):
        self.known: dict[int, tuple[int, float]] = {}  # batch: (length, seconds) of the last call timed

    def run(self, wanted=None) -> None:
        for batch, length in shapes(self.stage) if wanted is None else wanted:
            case = {"variant": self.variant, "batch": batch, "length": length, **self.facts}
            self.stage.attempt(case, lambda: self._case(batch, length))

    def _estimate(self, batch: int, length: int) -> float:
        """Seconds of a call, by proportion to a shorter length of this batch, or else 0."""
        shorter, seconds = self.known.get(batch, (length, 0.0))
        return seconds * length / shorter

    def _case(self, batch: int, length: int) -> dict:
        estimate, left = self._estimate(batch, length), self.stage.left()
        if left < 1 or estimate * SPARE > left:
            return {"skipped": f"one call takes about {estimate:.1f} s, {max(0.0, left):.1f} s are left"}
        call = self.prepare(batch, length)
        with torch.no_grad():
            timing = clock.measure(call, self.stage.device, min(self.seconds, self.stage.left()))
        self.known[batch] = (length, timing.median)
        return {**timing.as_dict(), **rates(batch, length, timing.median), **self.notes}


def rates(batch: int, length: int, seconds: float, layers: int = 2) -> dict:
    """Tokens without boundaries; a layer-step is one time step of one layer in both directions."""
    return {
        "tokens_per_s": batch * length / seconds,
        "us_per_layer_step": seconds * 1e6 / (layers * (length + 2)),
    }
