"""A predicted time for a step of a layer in the persistent kernel, from exact counts and a chip's documented rates.

    python -m benchmarks.gpu.predict           # the table of docs/notes/gpu-prediction.md, from counts.json
    python -m benchmarks.gpu.predict --count   # counts and both pages anew: runs the compiled PTX (a few minutes)
    python -m benchmarks.gpu.predict --times   # the table of docs/gpu.md: microseconds of a step by slots
    python -m benchmarks.gpu.predict --fits    # the table of docs/gpu.md: the most slots of a launch by chip

Counts are of both directions and all blocks: runs of three and of two steps, subtracted. The directions share a
multiprocessor. If they run in antiphase, which nothing enforces, the work of one hides the waits of the other: with
`work` of both and `waits` of one direction, a step takes max(work, waits + work / 2). In phase nothing is hidden, and
it takes waits + work. Of products, shared memory and streamed weights the largest counts, since they overlap;
exchange, z and special functions are added to it.
"""

import dataclasses
import json
import re
import sys
from pathlib import Path

from benchmarks import common
from benchmarks.gpu import read_sass
from elmo_fast.arguments import SIZES
from elmo_fast.ops.projected_lstm.cuda import persistent

COUNTS = Path(__file__).with_name("counts.json")
SLOTS = (1, 8, 16, 32, 64)
# Clusters of 8, 4 and 2 blocks that run at once: all that an H100's multiprocessors could form; 15 of 8, as others
# measured (accel-sim/gpu-app-collection#87); and as few of 4 as send the plan to clusters of 2.
CLUSTERS = {8: (16, 32, 66), 4: (15, 32, 66), 2: (15, 31, 66)}
CASES = {**{f"{slots}": (slots, 8) for slots in SLOTS},
         **{f"{slots}, clusters of {size}": (slots, size) for size in (4, 2) for slots in (1, 64)}}
# Microseconds of an H100 by a review of revision 0544f65: the persistent path, the graph path, and the least that the
# persistent path's exchanges allow.
REVIEW = {1: ("5 to 6", "19 to 23", "3"), 8: ("5 to 6", "20 to 24", "3"), 16: ("6 to 8", "20 to 25", "3.5"),
          32: ("9 to 12", "24 to 28", "4"), 64: ("16 to 20", "27 to 40", "5.5 to 6.5")}


@dataclasses.dataclass(frozen=True)
class Chip:
    """Rates in units a second, latencies in seconds; [n] is section n of research/performance.md, [r] gpu-review.md."""

    name: str
    hbm: float                        # bytes
    l2: float = 5.5e12                # bytes [7]; also taken for what a cluster exchanges
    mma: float = 0.62 * 790e12        # FLOP: mma.sync reaches 62 % of 790 TFLOP/s [5, 7]
    shared: float = 208e3 / 1e-6      # bytes of one multiprocessor: 208 KB in 1.0 us [5]
    barrier: float = 1.0e-6           # 0.7 to 1.0 us [5], two cost 2.0 us [7]
    special: float = 16 * 1.755e9     # ex2 and rcp of one multiprocessor: 16 a cycle, at 1.755 GHz [r]
    l2_latency: float = 0.2e-6        # 0.15 to 0.25 us [r]
    cluster_latency: float = 0.11e-6  # 180 cycles [5]


CHIPS = (Chip("H100", 41.9e6 / 12.5e-6), Chip("H200", 4.3e12))  # 41.9 MB in 12.5 us [r]; [7]


# Of a step of both directions in all blocks:
#   mma                products m16n8k16 of a warp
#   wavefronts, ideal  passes of 128 bytes through shared memory, and without bank conflicts
#   weight_sectors     of 32 bytes, streamed from L2
#   exchange_sectors   h, which is read once for a cluster; partial sums, outputs
#   input_sectors      z and what says where it lies; z_bytes of it come from HBM
#   cluster_bytes      stored in the shared memory of the cluster's blocks
#   special            ex2 and rcp of a warp, 10 for a cell of each slot
# and of one direction: barriers, rounds of loads that a warp waits for (read_sass counts them; the copy of h is one, as
# the products hide that of its later parts), and cluster_rounds, in which h and m reach other blocks.
Counts = dict[str, int]


def predict(counts: Counts, chip: Chip) -> dict[str, float]:
    """Seconds by term, and the `work` and the steps `in_antiphase` and `in_phase` that they add up to."""
    terms = {"products": counts["mma"] * 2 * 16 * 8 * 16 / chip.mma,
             "shared": counts["wavefronts"] / counts["blocks"] * 128 / chip.shared,
             "weights": counts["weight_sectors"] * 32 / chip.l2,
             "exchange": (counts["exchange_sectors"] * 32 + counts["cluster_bytes"]) / chip.l2,
             "inputs": max(counts["input_sectors"] * 32 / chip.l2, counts["z_bytes"] / chip.hbm),
             "special": counts["special"] / counts["blocks"] * 32 / chip.special,
             "waits": counts["barriers"] * chip.barrier + counts["rounds"] * chip.l2_latency
             + counts["cluster_rounds"] * chip.cluster_latency}
    work = sum(terms[name] for name in ("exchange", "inputs", "special"))
    work += max(terms[name] for name in ("products", "shared", "weights"))
    return {**terms, "work": work, "in_antiphase": max(work, terms["waits"] + work / 2),
            "in_phase": terms["waits"] + work}


def stored() -> dict[str, Counts]:
    """By case."""
    return json.loads(COUNTS.read_text())["slots"]


def predicted_us(gpu: str, slots: int) -> list[float] | None:
    """In antiphase and in phase, of the original model's layer on a GPU of that name ('NVIDIA H100 80GB HBM3').

    None for other chips and slots.
    """
    chip, counts = next((chip for chip in CHIPS if chip.name in gpu), None), stored().get(str(slots))
    if chip is None or counts is None:
        return None
    return [predict(counts, chip)[phase] * 1e6 for phase in ("in_antiphase", "in_phase")]


def table(counts: dict[str, Counts]) -> str:
    """Markdown, microseconds; the terms are the first chip's."""
    lines = ["| slots | products | shared memory | weights | exchange | z | special functions | waits | "
             + " | ".join(f"**{chip.name}**" for chip in CHIPS) + " |", "|---" * (8 + len(CHIPS)) + "|"]
    for case, of_step in counts.items():
        first, *others = (predict(of_step, chip) for chip in CHIPS)
        steps = [f"**{of['in_antiphase'] * 1e6:.1f} to {of['in_phase'] * 1e6:.1f}**" for of in (first, *others)]
        lines.append(f"| {case} | {' | '.join([*(f'{term * 1e6:.1f}' for term in [*first.values()][:7]), *steps])} |")
    return "\n".join(lines)


def times_table() -> str:
    """Markdown: microseconds of a step by slots, ours and the review's."""
    lines = ["| slots | persistent path, from counts | persistent path, review | graph path, review | floor, review |",
             "|---" * 5 + "|"]
    for slots, of_review in REVIEW.items():
        ours = " to ".join(f"{us:.1f}" for us in predicted_us(CHIPS[0].name, slots))
        lines.append(f"| {' | '.join([str(slots), ours, *of_review])} |")
    return "\n".join(lines)


# Multiprocessors and shared memory of a block, by NVIDIA's data sheets and programming guide. How many blocks form a
# cluster does not change what fits.
DEVICES = {"H100 SXM, H200": (132, 232448), "H100 PCIe": (114, 232448), "H20": (78, 232448), "B200": (148, 232448),
           "A100": (108, 166912), "A10": (72, 101376), "L4": (58, 101376), "L40S": (142, 101376),
           "RTX 3090": (82, 101376), "RTX 4090": (128, 101376), "RTX 5090": (170, 101376)}


def fits_table() -> str:
    """Markdown: the most slots of a launch by chip and size. Needs a native module that was built with CUDA."""
    lines = ["| chip | multiprocessors | " + " | ".join(SIZES) + " |", "|---" * (2 + len(SIZES)) + "|"]
    for name, (processors, shared) in DEVICES.items():
        device = processors, shared, 0, 0, 0
        most = [max((slots for slots in SLOTS if not persistent.plan(dim, projection, device, slots)["reason"]),
                    default="-") for dim, projection, _ in SIZES.values()]
        lines.append(f"| {name} | {processors} | {' | '.join(map(str, most))} |")
    return "\n".join(lines)


def classified(opcodes: dict[str, dict[str, int]], **known: int) -> Counts:
    """Of {PTX opcode: {field: count}} and the fields that it does not say. Polls run as often as chance has it."""
    def total(field: str, pattern: str) -> int:
        return sum(fields[field] for opcode, fields in opcodes.items() if re.match(pattern, opcode))

    local = r"(?!st\.async|ld\.acquire)"
    found = {"mma": total("executed", r"mma\.sync"), "wavefronts": total("wavefronts", local),
             "ideal": total("ideal", local), "weight_sectors": total("sectors", r"ld\.global\.nc\..*v4\.u32"),
             "input_sectors": total("sectors", r"ld\.global\.(nc\.)?(v4\.u16|[a-z]+\d+)$"),
             "cluster_bytes": total("bytes", r"st\.async"),
             "special": total("executed", r"(ex2|rcp)\.approx"),
             "barriers": total("executed", r"red\.release") // (2 * known["blocks"])}
    sectors = total("sectors", r"(?!.*\.(acquire|relaxed)\.)")
    return {**known, **found, "exchange_sectors": sectors - found["weight_sectors"] - found["input_sectors"]}


def count(slots: int, cluster: int, rounds: int) -> Counts:
    """A step of the original size in fp16, on an H100's plan with so large clusters; the run's numbers are checked."""
    import pytest
    import torch

    from tests.support import gpu_lstm, lstm_on_ptx, op_cases, ptx_machine

    (dim, projection, _), runs = common.SIZES["original"], []
    with pytest.MonkeyPatch.context() as patch, lstm_on_ptx.lstm_on_ptx("sm_90", patch) as native:
        native.device(*lstm_on_ptx.H100[:2], *CLUSTERS[cluster])
        native.machine.set(traffic=True)
        for steps in (2, 3):
            native.replace(native.machine.ptx)
            case = gpu_lstm.ragged([slots] * steps, dim, projection, op_cases.LOOSE, starts=False, gathered=False)
            rows = case.operands["inputs"][:, :projection]  # one for each token
            gpu_lstm.check(dataclasses.replace(case, operands=case.operands | {"inputs": rows},
                                               index=torch.arange(len(rows))), "medium")
            runs += [opcodes for kernel, opcodes in ptx_machine.counters(native.kernels).items()
                     if "persistent_kernel" in kernel]
        plan = native.cuda_lstm_plan(dim, projection, native.limits, slots)
    step = {opcode: counts - runs[0][opcode] for opcode, counts in runs[1].items()}
    assert plan["cluster"] == cluster, plan
    found = classified(step, blocks=plan["blocks"], z_bytes=slots * 2 * 4 * dim * 2, rounds=rounds,
                       cluster_rounds=2)
    assert found["weight_sectors"] * 32 == plan["streamed_bytes"], (found, plan)
    return found


def count_all() -> None:
    """With the rounds of the kernel that the plan takes for so many slots."""
    rounds = {}
    for kernel in read_sass.kernels(read_sass.disassembled(read_sass.SOURCES[0])):
        if instance := re.search(r"17persistent_kernelI\w+Fp16ELi(\d+)E\w+ELi256E", kernel.name):
            copies = [found.copies for found in kernel.rounds(kernel.time_loop)]
            rounds[8 * int(instance[1])] = copies.count(False) + 1
    lines = ",\n".join(f'"{case}": {json.dumps(count(slots, cluster, rounds[max(8, slots)]))}'
                       for case, (slots, cluster) in CASES.items())
    COUNTS.write_text(f'{{"revision": "{common.revision()}", "slots": {{\n{lines}}}}}\n', encoding="utf-8")
    for page, rows in (("notes/gpu-prediction.md", table(stored())), ("gpu.md", times_table())):
        page, head = common.ROOT / "docs" / page, re.escape(rows.partition("\n")[0])
        text = re.sub(rf"{head}\n(\|.*\n)*", lambda _: rows + "\n", page.read_text(encoding="utf-8"))
        page.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    if sys.argv[1:] == ["--count"]:
        count_all()
    tables = {"--fits": fits_table, "--times": times_table}
    print(tables.get(" ".join(sys.argv[1:]), lambda: table(stored()))())
