"""The persistent LSTM kernel, executed as PTX through the project's own launcher, against float64."""

import itertools
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.support.lstm_kernel_case import A100, BF16, FP16, H100, TYPES, aligned, errors, make, oracle, run
from tests.support.ptx_machine import coverage, machine
from elmo_fast.testing.tolerances import AGAINST_FLOAT64

native_module = pytest.importorskip("elmo_fast._native")
LIMIT = {FP16: AGAINST_FLOAT64["medium-fp16"], BF16: AGAINST_FLOAT64["medium-bf16"]}
# A sum in another order may fall on the other side of a rounding to 16 bits, and that is all that is left then.
ROUNDED = {FP16: 3e-4, BF16: 3e-3}
CLUSTERS = {"8": (12, 232448, 1, 3, 6), "4": (12, 232448, 0, 3, 6), "2": (8, 232448, 0, 0, 4),
            "none": (12, 166912, 0, 0, 0)}
SIZES = [(32, 16), (37, 11), (5, 2), (300, 70), (130, 33), (48, 200)]
SCHEDULES = {1: [1] * 9, 2: [2, 2, 1], 7: [7, 7, 6, 6, 1], 16: [16, 9], 32: [32, 31, 2, 2], 64: [64, 50, 33, 9]}


@pytest.fixture(params=[90, 80])
def native(request):
    """The machine of an architecture, and a device that has it."""
    module = machine(request.param)
    module.set(seed=0)
    return module, CLUSTERS["8" if request.param == 90 else "none"]


def check(module, case):
    found = run(module, case)
    *expected, clipped = oracle(case)
    assert max(errors(found, expected)) <= ROUNDED[case.operand]
    assert max(errors(found, oracle(case, rounded=False))) <= LIMIT[case.operand]
    assert found[3] == 0
    return found, clipped


def same(one, other) -> bool:
    return all(np.array_equal(a, b, equal_nan=True) for a, b in zip(one[:3], other[:3]))


@pytest.mark.parametrize("dim,projection", SIZES)
def test_sizes_and_operands(dim, projection, native):
    module, device = native
    for operand in (FP16, BF16):
        check(module, make(dim, projection, [9, 9, 4, 1], seed=dim, operand=operand, device=device))


@pytest.mark.parametrize("slots", SCHEDULES)
def test_slots_and_steps(slots, native):
    """Every instance of the kernel, slots that end, slots that never run, without scales and initial states."""
    module, device = native
    check(module, make(150, 40, SCHEDULES[slots], seed=slots, device=device))
    check(module, make(60, 20, SCHEDULES[slots], seed=slots, device=device, slots=min(slots + 3, 64), scaled=False,
                       fresh=False))


@pytest.mark.parametrize("slots", [3, 33])
@pytest.mark.parametrize("clusters", CLUSTERS)
def test_clusters_and_residency(clusters, slots):
    """Weights in registers, in shared memory and streamed; h at once and in parts; two and three units a block."""
    module, device = machine(90), CLUSTERS[clusters]
    module.set(seed=0)
    dim, projection, plans = 300 if slots <= 32 else 190, 400, []
    for shared in (device[1], 120_000, 70_000):
        case = make(dim, projection, [slots, 2], seed=slots, device=(device[0], shared, *device[2:]))
        plan = module.cuda_lstm_plan(dim, projection, case.device, slots)
        if plan["reason"] is None:
            plans.append(plan)
            check(module, case)
    assert len({each["shared_steps"] for each in plans}) > 1 and any(each["streamed_bytes"] for each in plans)


def test_clips_fire(native):
    module, device = native
    case = make(80, 24, [10] * 5, seed=2, device=device, cell_clip=0.3, proj_clip=0.1, spread=0.2)
    found, clipped = check(module, case)
    assert (clipped > 0.1).all() and (clipped < 0.99).all()
    assert np.nanmax(abs(found[2])) <= np.float32(0.3) and np.nanmax(abs(found[0])) <= np.float32(0.1)


def test_a_slot_has_the_same_bits_alone(native):
    module, device = native
    case = make(70, 21, [40, 18, 11, 3], seed=3, device=device, spread=0.3)
    together = run(module, case)
    for slot in (0, 3, 17, 39):
        alone = run(module, case.only(slot))
        mine = case.places[case.sizes > slot, slot]
        assert same(alone, (together[0][mine], together[1][:, slot : slot + 1], together[2][:, slot : slot + 1]))


def test_the_order_of_warps_does_not_matter(native):
    module, device = native
    case = make(150, 40, [20, 20, 7], seed=4, device=device)
    expected = run(module, case)
    for seed in range(1, 4):
        module.set(seed=seed)
        assert same(run(module, case), expected)


def test_two_calls_are_one_long_call(native):
    module, device = native
    case = make(50, 18, [6] * 6, seed=6, device=device)
    half = replace(case, rows=case.rows[:2], sequence_starts=case.sequence_starts[:2], sizes=case.sizes[:2])
    first = run(module, half)
    rest = replace(case, rows=case.rows[2:], sequence_starts=case.sequence_starts[2:], sizes=case.sizes[2:], h=first[1], c=first[2])
    # the second call rounds an fp32 h that the first had rounded already: the same operand
    second = run(module, rest)
    assert same(run(module, case), (np.concatenate([first[0], second[0]]), *second[1:3]))


def test_what_is_no_number_stays_in_its_slot(native):
    module, device = native
    case = make(40, 12, [10] * 4, seed=7, device=device, starts=0, cell_clip=3.0, proj_clip=3.0)
    poisoned = replace(case, z=np.concatenate([case.z, np.full_like(case.z[:1], np.nan)]), h=case.h.copy(),
                       scale=np.concatenate([case.scale, case.scale[:1]]), rows=case.rows.copy())
    poisoned.rows[1, 0, 3] = len(case.z)  # slot 3 of step 1, forward
    poisoned.h[1, 5] = np.inf             # slot 5, backward
    clean, found = run(module, case), run(module, poisoned)
    rows, width = case.places, case.h.shape[2]
    assert np.isnan(found[0][rows[1:, 3], :width]).all() and np.isnan(found[0][rows[:, 5], width:]).any()
    others = np.delete(rows, (3, 5), axis=1).ravel()
    assert (found[0][others] == clean[0][others]).all()
    assert (found[0][rows[:, 3], width:] == clean[0][rows[:, 3], width:]).all()


@pytest.mark.parametrize("case", [{"aborts": 1}, {"nanoseconds": 0}], ids=["after an abort", "without patience"])
def test_a_launch_that_gives_up_is_replayed(case, native):
    module, device = native
    for operand, slots in ((FP16, 19), (BF16, 1)):
        given = make(150, 40, [slots] * 2 + [1] * 4, seed=8, device=device, proj_clip=0.5, operand=operand)
        found = run(module, replace(given, **case))
        assert found[3] == case.get("aborts", 0) + 1
        assert max(errors(found, oracle(given))) <= ROUNDED[operand]


@pytest.mark.parametrize("change,message", [
    ({"cell_clip": 0.0}, "cell_clip, proj_clip: expected more than 0"),
    ({"nanoseconds": -1}, "nanoseconds: expected 0 or more"),
    ({"device": (1, 232448, 0, 0, 0)}, "plan: the cells do not fit")])
def test_calls_that_do_not_fit_together(change, message, native):
    module, _ = native
    case = make(80, 24, [2], device=native[1])
    pointers = "packed z scale meta places batch_sizes fresh_h fresh_c h_first c_first h c output aborts stream"
    arguments = dict.fromkeys(pointers.split(), 256)
    arguments |= {"dim": 80, "projection": 24, "operand": 0, "device": case.device, "steps": 1, "slots": 2, "stride": 2,
                  "state_stride": 2, "cell_clip": 1.0, "proj_clip": 1.0, "scratch": aligned(1).data_ptr(),
                  "scratch_size": 1 << 20, "nanoseconds": 1}
    with pytest.raises(ValueError, match=message):
        module.cuda_lstm_run(**arguments | change)


@pytest.mark.parametrize("device", [H100, (132, 232448, 15, 32, 66), (114, 232448, 13, 27, 57), A100])
@pytest.mark.parametrize("dim,projection", [(4096, 512), (2048, 256), (1024, 128)])
def test_plans_of_published_models(device, dim, projection):
    plans = [native_module.cuda_lstm_plan(dim, projection, device, slots) for slots in (1, 16, 32, 64)]
    weights = 2 * 2 * (projection * 4 * dim + dim * projection)
    assert all("above 32 slots" in each["reason"] for each in plans if each["reason"])
    assert device[0] < 128 or not any(each["reason"] for each in plans)
    for plan in plans:
        if plan["reason"]:
            continue
        assert plan["shared"] <= device[1] and plan["blocks"] % plan["cluster"] == 0
        clusters = dict(zip((8, 4, 2), device[2:])) | {1: device[0]}
        assert plan["blocks"] <= clusters[plan["cluster"]] * plan["cluster"]
        assert plan["blocks"] * plan["units_per_block"] * 16 >= dim
        assert plan["resident_bytes"] + plan["streamed_bytes"] == weights
        assert (plan["cluster"], plan["blocks"]) == (plans[0]["cluster"], plans[0]["blocks"])  # the order of sums
    if device[0] == 132:
        assert plans[0]["streamed_bytes"] == 0 and plans[1]["streamed_bytes"] <= 2**20
        assert plans[3]["resident_bytes"] >= min(weights, 17e6)


def test_what_does_not_fit_is_said():
    def reason(dim, projection, device, slots=8):
        return native_module.cuda_lstm_plan(dim, projection, device, slots)["reason"]

    assert "48 of each direction" in reason(4096, 512, (60, 232448, 0, 0, 0))  # a slice of a GPU
    assert "shared memory" in reason(64, 32, (4, 3 * 1024, 0, 0, 0))
    assert "no projection" in reason(64, 64, H100)
    for bad, message in (((0, 4, H100, 1), "shape"), ((4, 2, H100, 0), "slots"), ((4, 2, H100, 65), "slots"),
                         ((4, 2, (0, 1, 0, 0, 0), 1), "device")):
        with pytest.raises(ValueError, match=message):
            native_module.cuda_lstm_plan(*bad)
    with pytest.raises(ValueError, match="packed"):
        native_module.cuda_lstm_pack(4, 2, FP16, [0, 0], [0, 0], [0, 0], 0, 7)


def test_packing_rounds_to_nearest_even():
    """Ties, overflow, denormals and NaN: every packed value is PyTorch's own rounding of the weight."""
    chosen = torch.tensor([0, 1, 65504, 65519.9, 65520, 1e30, 6.1e-5, 6e-8, 2.98e-8, 2.99e-8, 1e-12, 1.00048828125,
                           1.00146484375, torch.inf, 3.39e38])
    bits = torch.randint(-2**31, 2**31, (4000,), generator=torch.Generator().manual_seed(0), dtype=torch.int64)
    values = torch.cat([chosen, -chosen, chosen / 3, bits.to(torch.int32).view(torch.float32)])
    weights = values.repeat(2)[: 64 * 64].reshape(64, 64).contiguous()
    zeros, packed = torch.zeros(16 * 64), aligned(native_module.cuda_lstm_packed_size(16, 64))
    for operand, dtype in TYPES.items():
        native_module.cuda_lstm_pack(16, 64, operand, [weights.data_ptr()] * 2, [zeros.data_ptr()] * 2,
                                     [zeros.data_ptr()] * 2, packed.data_ptr(), packed.numel())
        found = packed[: 2 * 64 * 64].view(dtype).float().sort().values  # NaN last
        assert torch.equal(found.nan_to_num(7.0), weights.to(dtype).flatten().float().sort().values.nan_to_num(7.0))


@pytest.mark.long
@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("slots", SCHEDULES)
def test_grid(slots, seed, native):
    module, device = native
    module.set(seed=seed)
    rng = np.random.default_rng(seed)
    sizes = np.sort(rng.integers(1, slots + 1, int(rng.integers(1, 41))))[::-1]
    sizes[0] = slots
    dim, projection = SIZES[seed % len(SIZES)]
    check(module, make(dim, projection, sizes, seed=seed, device=device, operand=seed % 2, fresh=seed % 3 > 0,
                       cell_clip=(np.inf, 0.3)[seed % 2], proj_clip=(np.inf, 0.1)[seed // 2 % 2]))


@pytest.mark.long
@pytest.mark.parametrize("slots", [1, 32, 64])
@pytest.mark.parametrize("generation,device", [(90, H100), (80, A100)])
def test_the_original_size(generation, device, slots):
    module = machine(generation)
    if module.cuda_lstm_plan(4096, 512, device, slots)["reason"]:
        pytest.skip("not on this device")
    module.set(seed=slots)
    check(module, make(4096, 512, [slots, slots], device=device, spread=0.02, rows=slots))


@pytest.mark.long
@pytest.mark.parametrize("generation", [90, 80])
def test_the_shapes_reach_the_lines(generation):
    """Every kind of access and product of every instance runs; some remainders of unrolled loops no plan reaches."""
    module = machine(generation)
    (source,) = module.embedded()
    module.set(seed=0)
    module.reset(source)

    def runs(dim, projection, slots, device, **options):
        if native_module.cuda_lstm_plan(dim, projection, device, slots)["reason"]:
            return False
        for operand in (FP16, BF16):
            run(module, make(dim, projection, [slots, slots, 2], operand=operand, device=device, **options))
        return True

    for slots, (processors, dim) in itertools.product((3, 16, 32, 64), ((24, 190), (12, 190), (8, 300))):
        most, clusters = 166912, (0, 0, 0)
        if generation == 90:
            most, clusters = 232448, (processors // 8, processors // 4, processors // 2)
        for options in ({"cell_clip": 0.3}, {"nanoseconds": 0}, {"nanoseconds": 1}):
            runs(dim, 400, slots, (processors, most, *clusters), **options)
        runs(dim, 41, slots, (processors, most, *clusters), fresh=False, scaled=False)
        # the least shared memory that does, and more
        fits = (each for each in range(4096, most, 2048) if runs(dim, 400, slots, (processors, each, *clusters)))
        least = next(fits, 0)
        runs(dim, 400, slots, (processors, min(least + 40_000, most), *clusters))
    gathers = {"st.shared.v4.u32", "st.shared.u64"} if generation == 80 else set()  # m over a cluster
    moves = re.compile(r"(?:mma|ld|st|cp|bar|barrier|red|mapa)\.\S+")  # data, or the order of what others see
    for name, (ran, missed) in coverage(module, source).items():
        least = 0.97 if "replay" in name else 0.87 if generation == 90 else 0.84
        assert len(ran) >= least * (len(ran) + len(missed)), (name, len(ran), len(missed))
        ran, missed = (set(moves.findall("\n".join(text for _, text in lines))) for lines in (ran, missed))
        assert missed - ran <= gathers and len(ran) > 5, (name, missed - ran)
