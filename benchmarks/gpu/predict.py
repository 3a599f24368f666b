"""A predicted time for a step of a layer in the persistent kernel, from exact counts and a chip's documented rates.

    python -m benchmarks.gpu.predict           # the table of docs/gpu.md, from counts.json
    python -m benchmarks.gpu.predict --count   # counts.json anew: the compiled PTX, run by tests/native/ptx (minutes)

The counts are those of both directions and all blocks: runs of three and of two steps, subtracted. The two directions share a
multiprocessor, so the work of one hides the waits of the other:

    work = max(products, shared memory, streamed weights from L2) + exchange through L2 and the cluster + z from HBM
    waits = barriers * barrier + rounds * L2 latency + rounds in the cluster * cluster latency     (of a direction)
    step >= max(work, waits + work / 2)        and at most work + waits, where nothing is hidden
"""

import argparse
import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

COUNTS = Path(__file__).with_name("counts.json")
SLOTS = (1, 8, 16, 32, 64)


@dataclass(frozen=True)
class Chip:
    """Rates in units a second, latencies in seconds. In brackets the section of research/performance.md they are from."""

    name: str
    hbm: float                    # bytes: H100 3.35 TB/s, H200 4.3 TB/s [gpu-review.md: 41.9 MB in 12.5 us; 7]
    l2: float = 5.5e12            # bytes [7]
    mma: float = 0.62 * 790e12    # FLOP: mma.sync reaches 62 % of a ceiling of 790 TFLOP/s [5, 7]
    shared: float = 208e3 / 1e-6  # bytes of one multiprocessor: 208 KB in 1.0 us [5]
    barrier: float = 1.0e-6       # red.release and polls take 0.7 to 1.0 us [5], two cost 2.0 us [7]
    l2_latency: float = 0.2e-6    # 0.15 to 0.25 us [gpu-review.md]
    cluster_latency: float = 0.11e-6  # 180 cycles [5]; bandwidth between multiprocessors is taken to be L2's


CHIPS = (Chip("H100", 3.35e12), Chip("H200", 4.3e12))


@dataclass(frozen=True)
class Counts:
    """Of a step, both directions, all blocks; `rounds` are the SASS lint's, of a direction."""

    blocks: int
    mma: int               # m16n8k16 products of a warp
    wavefronts: int        # passes through shared memory, of 128 bytes
    ideal: int             # what they would be without bank conflicts
    weight_sectors: int    # of 32 bytes, streamed from L2
    exchange_sectors: int  # h, partial sums, outputs: past L1
    input_sectors: int     # z, meta
    cluster_bytes: int     # read from other blocks' shared memory
    barriers: int          # of a direction
    rounds: int
    cluster_rounds: int


@dataclass(frozen=True)
class Prediction:
    """Seconds: the terms, and the step with the directions overlapped and one after the other."""

    products: float
    shared: float
    weights: float
    exchange: float
    inputs: float
    waits: float

    @property
    def work(self) -> float:
        return max(self.products, self.shared, self.weights) + self.exchange + self.inputs

    @property
    def overlapped(self) -> float:
        return max(self.work, self.waits + self.work / 2)

    @property
    def serial(self) -> float:
        return self.work + self.waits


def predict(counts: Counts, chip: Chip) -> Prediction:
    return Prediction(
        products=counts.mma * 2 * 16 * 8 * 16 / chip.mma,
        shared=counts.wavefronts / counts.blocks * 128 / chip.shared,
        weights=counts.weight_sectors * 32 / chip.l2,
        exchange=(counts.exchange_sectors * 32 + counts.cluster_bytes) / chip.l2,
        inputs=counts.input_sectors * 32 / chip.hbm,
        waits=(counts.barriers * chip.barrier + counts.rounds * chip.l2_latency + counts.cluster_rounds * chip.cluster_latency))


def chip_named(gpu: str) -> Chip | None:
    """The chip of a GPU's name, e.g. 'NVIDIA H100 80GB HBM3'."""
    return next((chip for chip in CHIPS if chip.name in gpu), None)


def stored() -> dict[int, Counts]:
    return {int(slots): Counts(**counts) for slots, counts in json.loads(COUNTS.read_text())["slots"].items()}


def predicted(chip: Chip, slots: int) -> float | None:
    """Microseconds of a step of the original model's layer, for so many slots."""
    counts = stored().get(slots) if COUNTS.exists() else None
    return counts and predict(counts, chip).overlapped * 1e6


def table(counts: dict[int, Counts]) -> str:
    lines = ["| slots | chip | products | shared memory | weights | exchange | z | waits | predicted us | nothing hidden |",
             "|---|---|---|---|---|---|---|---|---|---|"]
    for slots, of_step in counts.items():
        for chip in CHIPS:
            found = predict(of_step, chip)
            seconds = (*asdict(found).values(), found.overlapped, found.serial)
            lines.append(f"| {slots} | {chip.name} | " + " | ".join(f"{each * 1e6:.1f}" for each in seconds) + " |")
    return "\n".join(lines)
