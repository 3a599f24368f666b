"""A predicted time for a step of a layer in the persistent kernel, from exact counts and a chip's documented rates.

    python -m benchmarks.gpu.predict           # the table of docs/gpu.md, from counts.json
    python -m benchmarks.gpu.predict --count   # counts.json anew: the compiled PTX, run by tests/native/ptx (minutes)

The counts are those of both directions and all blocks: runs of three and of two steps, subtracted. The two directions share a
multiprocessor, so the work of one hides the waits of the other:

    work = max(products, shared memory, streamed weights from L2) + exchange through L2 and the cluster + z (L2 or HBM)
    waits = barriers * barrier + rounds * L2 latency + rounds in the cluster * cluster latency     (of a direction)
    step >= max(work, waits + work / 2)        and at most work + waits, where nothing is hidden
"""

import argparse
import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks import common

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
    z_bytes: int           # of them what must come from HBM
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
        inputs=max(counts.input_sectors * 32 / chip.l2, counts.z_bytes / chip.hbm),
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
    """Markdown; the terms are those of the first chip."""
    lines = ["| slots | products | shared memory | weights | exchange | z | waits |"
             + "".join(f" **{chip.name}** | nothing hidden |" for chip in CHIPS), "|---" * (7 + 2 * len(CHIPS)) + "|"]
    for slots, of_step in counts.items():
        found = [predict(of_step, chip) for chip in CHIPS]
        columns = [f"{each * 1e6:.1f}" for each in asdict(found[0]).values()]
        columns += [f"**{each.overlapped * 1e6:.1f}** | {each.serial * 1e6:.1f}" for each in found]
        lines.append(f"| {slots} | " + " | ".join(columns) + " |")
    return "\n".join(lines)


# ---- counting ------------------------------------------------------------------------------


def classified(opcodes: dict[str, dict[str, int]], blocks: int, z_bytes: int, rounds: int, cluster_rounds: int) -> Counts:
    """Of {PTX opcode: {field: count}}: read-only 128-bit loads are weights, other plain loads z and meta, the rest exchange."""
    def total(field: str, wanted) -> int:
        return sum(fields[field] for opcode, fields in opcodes.items() if wanted(opcode))

    def is_weight(opcode):
        return opcode.startswith("ld.global.nc") and ".v4" in opcode

    def is_input(opcode):
        return opcode.startswith("ld.global") and not is_weight(opcode) and ".cg" not in opcode

    def is_remote(opcode):
        return opcode.startswith("ld.shared::cluster")

    def is_poll(opcode):  # as often as chance has it
        return ".acquire" in opcode or ".relaxed" in opcode

    sectors = total("sectors", lambda opcode: not is_poll(opcode))
    weights, inputs = total("sectors", is_weight), total("sectors", is_input)
    return Counts(blocks=blocks, mma=total("executed", lambda opcode: opcode.startswith("mma.sync")),
                  wavefronts=total("wavefronts", lambda opcode: not is_remote(opcode)),
                  ideal=total("ideal", lambda opcode: not is_remote(opcode)), weight_sectors=weights, input_sectors=inputs, z_bytes=z_bytes,
                  exchange_sectors=sectors - weights - inputs, cluster_bytes=total("bytes", is_remote),
                  barriers=round(total("executed", lambda opcode: opcode.startswith("red.release")) / blocks / 2),
                  rounds=rounds, cluster_rounds=cluster_rounds)


def count(slots: int, rounds: int, cluster_rounds: int) -> tuple[Counts, dict]:
    """A step of the original size, in fp16 on an H100's plan, and that plan."""
    sys.path.insert(0, str(common.ROOT / "tests"))
    import lstm_kernel_case
    import ptx_machine

    module, totals = ptx_machine.machine(90), []
    module.set(checks=False, traffic=True, seed=0)
    (source,) = module.embedded()
    for steps in (2, 3):
        module.reset(source)
        case = lstm_kernel_case.make(*common.SIZES["original"][:2], [slots] * steps, starts=0.0, rows=2 * slots * steps,
                                     cell_clip=3.0, proj_clip=3.0, device=lstm_kernel_case.H100)
        found = lstm_kernel_case.errors(lstm_kernel_case.run(module, case), lstm_kernel_case.oracle(case))
        assert max(found) < 3e-3, found
        totals.append(next(opcodes for kernel, opcodes in ptx_machine.counters(module, source).items()
                           if "persistent_kernel" in kernel))
    step = {opcode: {field: fields[field] - totals[0].get(opcode, {}).get(field, 0) for field in fields}
            for opcode, fields in totals[1].items()}
    plan = module.cuda_lstm_plan(*common.SIZES["original"][:2], lstm_kernel_case.H100, slots)
    return classified(step, plan["blocks"], slots * case.z[0].size * 2, rounds, cluster_rounds), plan


def count_all() -> None:
    """`rounds` are those of the 64-slot kernel, the one that the lint holds to a limit; all instances have its steps."""
    from benchmarks.gpu import read_sass

    (linted,) = [kernel for kernel in read_sass.kernels(read_sass.disassembled(read_sass.SOURCES[0]))
                 if "persistent_kernel" in kernel.name and "Fp16ELi8E" in kernel.name]
    remote = [each.remote for each in linted.rounds(linted.time_loops[0])]
    lines = []
    for slots in SLOTS:
        counts, plan = count(slots, remote.count(False), remote.count(True))
        assert counts.weight_sectors * 32 == plan["streamed_bytes"], (counts, plan)
        lines.append(f'"{slots}": {json.dumps(asdict(counts))}')
    COUNTS.write_text(f'{{"revision": "{common.revision()}", "slots": {{\n' + ",\n".join(lines) + "}}\n", encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", action="store_true", help="count anew; needs nvcc and a C++ compiler")
    if parser.parse_args().count:
        count_all()
    print(table(stored()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
