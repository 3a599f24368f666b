"""The persistent LSTM kernel, executed as PTX through the project's own launcher, against float64."""

import itertools
import re
from collections import defaultdict
from dataclasses import replace

import numpy as np
import pytest

from elmo_fast.testing import AGAINST_FLOAT64
from tests.support.lstm_kernel_case import A100, BF16, FP16, H100, SMALL, TYPES, errors, make, oracle, run
from tests.support.ptx_machine import coverage, machine

LIMIT = {FP16: AGAINST_FLOAT64["medium-fp16"], BF16: AGAINST_FLOAT64["medium-bf16"]}
# A sum in another order may fall on the other side of a rounding to 16 bits, and that is all that is left then.
ROUNDED = {FP16: 3e-4, BF16: 3e-3}
CLUSTERS = {8: (24, 232448, 3, 6, 12), 4: (12, 232448, 0, 3, 6), 2: (8, 232448, 0, 0, 4), 1: SMALL[80]}
SIZES = [(32, 16), (37, 11), (5, 2), (300, 70), (130, 33), (48, 200)]
SCHEDULES = {1: [1] * 9, 2: [2, 2, 1], 7: [7, 7, 6, 6, 1], 16: [16, 9], 32: [32, 31, 2, 2], 64: [64, 50, 33, 9]}
CASES = [*((dim, projection, [9, 9, 4, 1], {"operand": number % 2}) for number, (dim, projection) in enumerate(SIZES)),
         *((150, 40, batch_sizes, {}) for batch_sizes in SCHEDULES.values()),
         *((60, 20, SCHEDULES[slots], {"slots": slots + 3, "scaled": False, "initial": False, "operand": BF16})
           for slots in (1, 16, 32)),
         (80, 24, [10] * 5, {"cell_clip": 0.3, "proj_clip": 0.1, "spread": 0.2})]


@pytest.fixture(params=[90, 80])
def native(request):
    """The machine of an architecture, and a device that has it."""
    module = machine(request.param)
    module.set(seed=0)
    return module, SMALL[request.param]


def check(module, case, least_clipped=0):
    found = run(module, case)
    *expected, clipped = oracle(case)
    assert max(errors(found, expected)) <= ROUNDED[case.operand]
    assert max(errors(found, oracle(case, rounded=False))) <= LIMIT[case.operand]
    assert found[3] == 0
    for clip, fraction in zip((case.cell_clip, case.proj_clip), clipped):
        assert np.isinf(clip) or least_clipped <= fraction < 0.99


def same(one, other) -> bool:
    return all(np.array_equal(a, b, equal_nan=True) for a, b in zip(one[:3], other[:3]))


def drawn(slots, seed):
    """A row of `CASES` with a schedule and clips of its own."""
    rng = np.random.default_rng(seed)
    batch_sizes = np.sort(rng.integers(1, slots + 1, int(rng.integers(1, 41))))[::-1]
    batch_sizes[0] = slots
    clips = {"cell_clip": (np.inf, 0.3)[seed % 2], "proj_clip": (np.inf, 0.1)[seed // 2 % 2]}
    return (*SIZES[seed % len(SIZES)], batch_sizes, {"operand": seed % 2, "initial": seed % 3 > 0, **clips})


LONG = [pytest.param(seed, drawn(slots, seed), 0, marks=pytest.mark.long, id=f"{slots}-{seed}")
        for slots in SCHEDULES for seed in range(10)]  # a size of two outputs rarely reaches its clip


@pytest.mark.parametrize("number, row, least_clipped", [*((*row, 0.1) for row in enumerate(CASES)), *LONG])
def test_agrees_with_float64(number, row, least_clipped, native):
    """Every instance of the kernel, odd sizes, slots that end, slots that never run, no scales, clips that fire."""
    module, device = native
    dim, projection, batch_sizes, options = row
    module.set(seed=number)
    check(module, make(dim, projection, batch_sizes, seed=number, device=device, **options), least_clipped)


@pytest.mark.parametrize("cluster, slots", [(8, 3), (4, 33), (2, 3), (1, 33)])
def test_clusters_and_residency(cluster, slots):
    """Weights in registers, in shared memory and streamed; h at once and in parts; two and three units a block."""
    module, device = machine(90), CLUSTERS[cluster]
    module.set(seed=0)
    dim, plans = 300 if slots <= 32 else 190, []
    for shared in (device[1], 120_000, 70_000, 40_000):
        case = make(dim, 400, [slots, 2], seed=slots, device=(device[0], shared, *device[2:]))
        plan = module.cuda_lstm_plan(dim, 400, case.device, slots)
        if plan["reason"] is None:
            plans.append(plan)
            check(module, case)
    assert {plan["cluster"] for plan in plans} == {cluster}
    assert len({plan["shared_steps"] for plan in plans}) > 1 and any(plan["streamed_bytes"] for plan in plans)


def test_bits_of_a_slot_depend_on_the_slot_alone(native):
    """Not on its batch mates, the order of warps, or where a call ends."""
    module, device = native
    case = make(70, 21, [40, 18, 11, 3], seed=3, device=device, spread=0.3)
    together = run(module, case)
    for slot in (0, 17, 39):
        mine = case.packed_rows[case.batch_sizes > slot, slot]
        expected = together[0][mine], together[1][:, slot : slot + 1], together[2][:, slot : slot + 1]
        assert same(run(module, case.alone(slot)), expected)
    for seed in (1, 2, 3):
        module.set(seed=seed)
        assert same(run(module, case), together)
    case = make(50, 18, [6] * 6, seed=6, device=device)
    first = run(module, case.steps(0, 2))
    # the second call rounds an fp32 h that the first had rounded already: the same operand
    second = run(module, case.steps(2, 6, h=first[1], c=first[2]))
    assert same(run(module, case), (np.concatenate([first[0], second[0]]), *second[1:3]))


@pytest.mark.parametrize("change", [{"aborts": 1}, {"timeout_ns": 0}], ids=["after an abort", "without a timeout"])
def test_a_launch_that_gives_up_is_replayed(change, native):
    module, device = native
    for operand, slots in ((FP16, 19), (BF16, 1)):
        case = make(150, 40, [slots] * 2 + [1] * 4, seed=8, device=device, proj_clip=0.5, operand=operand)
        found = run(module, replace(case, **change))
        assert found[3] == change.get("aborts", 0) + 1
        assert max(errors(found, oracle(case))) <= ROUNDED[operand]


@pytest.mark.parametrize("device", [H100, (132, 232448, 15, 32, 66), (114, 232448, 13, 27, 57), A100])
@pytest.mark.parametrize("dim, projection", [(4096, 512), (2048, 256), (1024, 128)])
def test_plans_of_published_models(device, dim, projection):
    every = {slots: machine(90).cuda_lstm_plan(dim, projection, device, slots) for slots in (1, 16, 32, 64)}
    plans = {slots: plan for slots, plan in every.items() if plan["reason"] is None}
    weights, clusters = 10 * dim * projection * 2, dict(zip((8, 4, 2), device[2:])) | {1: device[0]}
    assert all("above 32 slots" in plan["reason"] for slots, plan in every.items() if slots not in plans)
    assert device[0] < 128 or plans == every
    for plan in plans.values():
        assert plan["shared_bytes"] <= device[1] and plan["blocks"] % plan["cluster"] == 0
        assert plan["blocks"] <= clusters[plan["cluster"]] * plan["cluster"]
        assert plan["blocks"] * plan["units_per_block"] * 16 >= dim
        assert plan["resident_bytes"] + plan["streamed_bytes"] == weights
        assert (plan["cluster"], plan["blocks"]) == (plans[1]["cluster"], plans[1]["blocks"])  # the order of sums
    if device[0] == 132:
        assert plans[1]["streamed_bytes"] == 0 and plans[16]["streamed_bytes"] <= 2**20
        assert plans[64]["resident_bytes"] >= min(weights, 17e6)


@pytest.mark.parametrize("dim, projection, slots, options, message", [
    (4096, 512, 8, {"device": (60, 232448, 0, 0, 0)}, "48 of each direction"),  # a slice of a GPU
    (64, 32, 8, {"device": (4, 3 * 1024, 0, 0, 0)}, "shared memory"), (64, 64, 8, {}, "no projection"),
    (0, 4, 1, {}, "shape"), (4, 2, 0, {}, "slots"), (4, 2, 65, {}, "slots"),
    (4, 2, 1, {"device": (0, 1, 0, 0, 0)}, "device"),
    (80, 24, 2, {"cell_clip": 0.0}, "cell_clip, proj_clip: expected more than 0"),
    (80, 24, 2, {"proj_clip": -1.0}, "cell_clip, proj_clip: expected more than 0"),
    (80, 24, 2, {"timeout_ns": -1}, "timeout_ns: expected 0 or more"),
    (80, 24, 2, {"operand": 2}, "operand: expected 0 or 1")])
def test_plans_and_calls_that_are_refused(dim, projection, slots, options, message, monkeypatch):
    monkeypatch.setitem(TYPES, 2, TYPES[FP16])
    with pytest.raises((AssertionError, ValueError), match=message):  # the first: the reason in a plan
        run(machine(90), make(dim, projection, [slots], **options))


# ---- every line -------------------------------------------------------------------------------

# An arrival that block 0 delays for so long that the polls of the others enter their slow path, on one line.
HELD_BACK = ("{{ .reg .pred %hold; .reg .b32 %left; mov.u32 %left, %ctaid.x; setp.ne.u32 %hold, %left, 0; "
             "@%hold bra GO{0}; mov.u32 %left, 80; HOLD{0}: nanosleep.u32 100; sub.u32 %left, %left, 1; "
             "setp.ne.u32 %hold, %left, 0; @%hold bra HOLD{0}; GO{0}: }} {1}")
ARRIVAL = re.compile(r"(red\.release|st\.release)[^;]*;")
# What stays: jumps that nvcc leaves behind a branch which is always taken, such as that into a loop that always runs.
UNREACHABLE = re.compile(r"bra\.uni \S+$")
UNREACHED = {90: 0, 80: 0.07}  # share of lines that no shape here runs; sm_80's are one branch of each instance
ARRIVALS = 4  # of an instance: before the first step, of the cluster, two in a step


def held_back(text: str, which: int) -> str:
    """The PTX with every arrival delayed whose number within its kernel is `which`."""
    parts = text.split(".entry ")
    for at, part in enumerate(parts):
        for match in [*ARRIVAL.finditer(part)][which:which + 1]:
            parts[at] = part[:match.start()] + HELD_BACK.format(at, match[0]) + part[match.end():]
    return ".entry ".join(parts)


def shapes(module, generation, slots):
    """Cases (dim, projection, device, options) for every instance, residency and remainder of a loop."""
    most = SMALL[generation][1]
    for processors, dim in ((24, 190), (24, 300), (8, 380)):
        clusters = (processors // 8, processors // 4, processors // 2) if generation == 90 else (0, 0, 0)
        plan = module.cuda_lstm_plan(dim, 400, (processors, most, *clusters), slots)
        if plan["reason"]:
            continue
        least = next(size for size in range(4096, most, 2048)
                     if not module.cuda_lstm_plan(dim, 400, (processors, size, *clusters), slots)["reason"])
        for steps in range(4):  # about so many k-steps of weights in shared memory: loops end in every remainder
            yield dim, 400, (processors, least + steps * 4096 * plan["units_per_block"], *clusters), {}
        yield dim, 400, (processors, most, *clusters), {"cell_clip": 0.3}
        yield dim, 41, (processors, most, *clusters), {"initial": False, "scaled": False}
        for projection in (41, 400) if slots == 3 else (41,):
            yield dim, projection, (processors, most, *clusters), {"timeout_ns": 0}
        yield dim, 90, (processors, most, 0, 0, 0), {}
        yield dim, 400, (processors, least, 0, 0, 0), {}


@pytest.mark.long
@pytest.mark.parametrize("slots", [3, 16, 32, 64])
@pytest.mark.parametrize("generation", [90, 80])
def test_the_shapes_reach_the_lines(generation, slots):
    """Of the instances for so many slots; 3 slots reach those of the replay as well."""
    module = machine(generation)
    (source,) = module.embedded()
    text, ran, missed = module.source(source), defaultdict(dict), defaultdict(dict)

    def collect(cases):
        for (dim, projection, device, options), operand in itertools.product(cases, (FP16, BF16)):
            run(module, make(dim, projection, [slots, slots, 2], operand=operand, device=device, **options))
        for name, (reached, others) in coverage(module, source).items():
            ran[name] |= dict(reached)
            missed[name] |= dict(others)

    module.set(seed=0)
    try:
        module.reset(source)
        collect(shapes(module, generation, slots))
        for which in range(ARRIVALS):
            module.replace(source, held_back(text, which))
            collect((*case, {"timeout_ns": 1}) for *case, options in shapes(module, generation, slots)
                    if "scaled" in options and case[0] != 300)
    finally:
        module.replace(source, text)
    names = [name for name in ran if ran[name] and ("persistent" in name or slots == 3)]
    assert len(names) == {3: 6, 64: 2}.get(slots, 4)
    for name in names:
        left = {at: line for at, line in missed[name].items() if at not in ran[name]}
        beyond = {at: line for at, line in left.items() if not UNREACHABLE.match(line)}
        assert len(ran[name]) > 800, (name, len(ran[name]))
        assert len(beyond) <= UNREACHED[generation] * (len(ran[name]) + len(left)), (name, len(left), beyond)
