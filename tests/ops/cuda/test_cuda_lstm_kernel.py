"""The persistent LSTM kernel, executed as PTX, against float64 and the graph path."""

import dataclasses
import re

import numpy as np
import pytest
import torch

from elmo_fast.ops.projected_lstm.cuda import blocks, choice, lstm, persistent
from elmo_fast.testing import SIZES as SIZES_OF_MODELS
from tests.support import gpu_lstm
from tests.support.gpu_lstm import ragged, run
from tests.support.grid import mostly_long
from tests.support.lstm_on_ptx import A100, H100
from tests.support.op_cases import TIGHT
from tests.support.ptx_machine import DEVICES, machine

pytestmark = pytest.mark.long  # building the PTX interpreter takes minutes
CPU = torch.device("cpu")
# The paths may differ only where sums in another order round to another fp16 number.
ROUNDED = 3e-4
SIZES = [(32, 16), (37, 11), (5, 2), (300, 70), (130, 33), (48, 200)]
SLOTS = (1, 2, 7, 16, 32, 50, 64)
CASES = mostly_long([*((SLOTS[seed % 7], 5, seed) for seed in range(14)), *(
    (slots, 40, seed) for slots in SLOTS for seed in range(10))], quick=7)
H100_OF_15 = 132, 232448, 15, 32, 66
# Weights in registers, in shared memory and streamed; h at once and in parts; one to three units per block. Generation,
# cells, projected values, slots, cluster, and devices with decreasing shared memory.
PLANS = mostly_long([
    ("sm_90", 300, 400, 3, 8, [(24, shared, 3, 6, 12) for shared in (232448, 70000, 40000)]),
    ("sm_90", 190, 400, 33, 4, [(12, shared, 0, 3, 6) for shared in (232448, 120000)]),
    ("sm_90", 300, 400, 3, 2, [(8, shared, 0, 0, 4) for shared in (232448, 120000, 70000)]),
    ("sm_90", 190, 400, 33, 1, [(12, shared, 0, 0, 0) for shared in (166912, 120000)]),
    *((chip, *SIZES_OF_MODELS[size][:2], slots, cluster, [device])
      for chip, slots, cluster, device in (("sm_90", 1, 8, H100), ("sm_90", 64, 8, H100), ("sm_80", 16, 1, A100))
      for size in ("small", "original")),
    # An H100 that runs 15 clusters of 8 at once, and one that runs fewer clusters of 4.
    *(("sm_90", *SIZES_OF_MODELS["original"][:2], slots, cluster, [device])
      for slots, cluster, device in ((64, 4, H100_OF_15), (1, 2, (132, 232448, 15, 30, 64))))])


def check(case, least_clipped=0.0):
    """Check the persistent path against float64 and, with a smaller limit, against the graph path."""
    actual = gpu_lstm.check(case, "medium", path=choice.PERSISTENT)
    on_graphs = run(case, "medium", path=choice.GRAPH)  # rounds at the same places as the kernel
    assert gpu_lstm.error_of(actual, on_graphs) < ROUNDED
    for values, name in zip(actual[1:], ("proj_clip", "cell_clip")):
        clip = case.clips[name]
        assert not clip or least_clipped <= (values.abs() >= clip - 1e-6).float().mean() < 0.99


@pytest.mark.parametrize("slots, most_steps, seed", CASES)
def test_agrees_with_float64(slots, most_steps, seed, native):
    """Every instance, odd sizes, slots that end and empty slots, no scales, clips that fire, random orders of warps."""
    rng = np.random.default_rng(seed)
    batch_sizes = np.sort(rng.integers(1, slots + 1, int(rng.integers(1, most_steps))))[::-1].tolist()
    clips = TIGHT | {"cell_clip": (TIGHT["cell_clip"], None)[seed % 2]}  # without proj_clip the graph path runs
    (dim, projection), starts = SIZES[seed % len(SIZES)], seed % 3 > 0
    case = ragged([slots, *batch_sizes], dim, projection, clips, seed, starts)
    native.machine.set(seed=seed)
    check(case, least_clipped=0.02 * (projection > 2))
    common = {"state_stride": slots + 3, "packed": native.calls[0]["packed"]}
    assert all(call | common == call for call in native.calls) and native.calls[0]["slots"] == min(slots, 64)


@pytest.mark.parametrize("native, dim, projection, slots, cluster, devices", PLANS, indirect=["native"])
def test_plans_agree_with_float64(native, dim, projection, slots, cluster, devices):
    plans = []
    for device in devices:
        native.device(*device)
        plans.append(persistent.plan(dim, projection, native.limits, slots))
        check(ragged([slots, slots, slots // 2 + 1], dim, projection, TIGHT, seed=slots), least_clipped=0.02)
    assert {plan["cluster"] for plan in plans} == {cluster}
    assert len({plan["shared_steps"] for plan in plans}) == len(devices)
    assert len(devices) == 1 or plans[-1]["streamed_bytes"] > 0


@pytest.mark.parametrize("starts", mostly_long([True, False]))
def test_bits_of_a_slot_depend_only_on_the_slot(starts, native, monkeypatch):
    """Bits do not depend on batch mates, the order of warps, or where a launch ends."""
    case = ragged([40, 18, 11, 11, 3], 70, 21, starts=starts)
    together = out, h, c = run(case, "medium")
    for slot in (2, 18, 41):
        numbers = np.flatnonzero(case.slots == slot)
        alone, tokens = case.part(numbers, [case.operands[name][[slot]] for name in "hc"])
        alone = dataclasses.replace(alone, slots=numbers * 0)
        assert all(map(torch.equal, run(alone, "medium"), (out[tokens], h[[slot]], c[[slot]])))
    for seed in (1, 2, 3):
        native.machine.set(seed=seed)
        assert all(map(torch.equal, run(case, "medium"), together))
    monkeypatch.setattr(blocks, "rows_held", lambda layer: 41)
    monkeypatch.setattr(lstm, "_arenas", blocks.Arenas())
    native.calls.clear()
    assert all(map(torch.equal, run(case, "medium"), together)) and len(native.calls) == 3


# Instructions that end a wait at the grid barrier or in the cluster.
LOST = {"an arrival at the grid barrier": r"red\.release[^;]*;", "a copy of h": r"cp\.async\.bulk.*multicast[^;]*;",
        "m of another block": r"st\.async[^;]*;", "the end of a read": r"mbarrier\.arrive\.shared::cluster[^;]*;"}


@pytest.mark.parametrize("native", ["sm_90"], indirect=True)
@pytest.mark.parametrize("lost", LOST)
def test_an_endless_wait_traps(lost, native):
    native.replace(re.sub(LOST[lost], "", native.machine.ptx))
    with pytest.raises(AssertionError, match="the kernel breaks its contract: .*a wait of 10 s"):
        run(ragged([40, 40, 4], 190, 400), "medium")


# Places in the protocol of the blocks: the barriers between steps and within them, and in a cluster the waits for h,
# for the ends of reads and for m, and the copies. The start of a PTX instruction after so many arrivals at the barrier.
PLACES = [*(("ld.acquire", arrivals) for arrivals in (1, 2, 3)), *(("red.release", arrivals) for arrivals in (0, 2, 3)),
          ("mbarrier.try_wait", 1), ("mbarrier.try_wait", 3), ("mbarrier.arrive.shared", 1), ("cp.async.bulk", 2),
          ("st.async", 1), ("mbarrier.init", 0)]
TIMES = {"50 polls": 50_000, "9 s": 9_000_000_000, "for ever": 10**18}  # ns
# A warp of a direction of a block is late, or all of the block.
LATE = [(5, 0, False, "50 polls"), (1, 1, False, "9 s"), (6, 0, True, "50 polls"), (0, 1, True, "for ever")]


@pytest.mark.parametrize("native", ["sm_90"], indirect=True)
@pytest.mark.parametrize("at, arrivals", PLACES)
@pytest.mark.parametrize("block, direction, whole, late", LATE)
def test_a_late_warp_or_block(at, arrivals, block, direction, whole, late, native):
    """A launch has the right result or traps, and never waits for ever."""
    case = ragged([40, 40, 4], 190, 400)
    on_time = run(case, "medium")
    warps = 2 * persistent.plan(190, 400, native.limits, 40)["units_per_block"]  # of a direction
    native.machine.set(hold=(block, direction * warps, whole, arrivals, at, TIMES[late]))
    if late == "for ever":
        with pytest.raises(AssertionError, match="a wait of 10 s"):
            run(case, "medium")
    else:
        assert all(map(torch.equal, run(case, "medium"), on_time))


@pytest.mark.parametrize("native", ["sm_90"], indirect=True)
def test_a_block_that_leaves_alone_is_noticed(native):
    native.replace(re.sub(r"\btrap;", "ret;", native.machine.ptx))
    native.machine.set(hold=(5, 0, True, 2, "ld.acquire", TIMES["for ever"]))
    with pytest.raises(AssertionError, match="the kernel breaks its contract: .*(deadlock|leave|never written)"):
        run(ragged([40, 40, 4], 190, 400), "medium")


# Fences and uses that order h before the copies of it and over it.
UNORDERED = {"what was written with no fence": r"fence\.proxy\.async\.global;",
             "what was (read|written) with no fence": r"fence\.proxy\.async\.shared::cta;",
             "a wait of block scope": r"\.acquire\.cluster(?=\.shared::cta)"}


@pytest.mark.parametrize("native", ["sm_90"], indirect=True)
@pytest.mark.parametrize("message", UNORDERED)
def test_the_order_of_copies_is_proved(message, native):
    native.replace(re.sub(UNORDERED[message], "", native.machine.ptx))
    with pytest.raises(AssertionError, match=f"the kernel breaks its contract: .*{message}"):
        run(ragged([40, 40, 4], 190, 400), "medium")


def test_limits_of_a_device(native):
    assert tuple(native.machine.cuda_device(0)) == {90: H100, 80: A100}[native.generation]


@pytest.mark.parametrize("native", ["sm_90"], indirect=True)
@pytest.mark.parametrize("change, message", [
    ({"capability": (12, 0)}, "compute capability 12 needs an installation that nvcc 12.9 or newer has built"),
    *(({"mps": told}, "the processes of MPS share the device") for told in (1, -1)), ({"index": 1}, "no device 1")])
def test_devices_that_are_refused(change, message, native, tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path))  # asked where the driver does not tell of MPS
    *sizes, capability, parts = DEVICES[90]
    native.machine.set_device(*sizes, change.get("capability", capability), parts, change.get("mps", 0))
    with pytest.raises(RuntimeError, match=message):
        native.machine.cuda_device(change.get("index", 0))
    tmp_path.rmdir()
    assert change.get("mps") != -1 or native.machine.cuda_device(0)


def test_a_launch_is_on_its_own_device(native):
    native.changes = {"device_index": 1}
    with pytest.raises(AssertionError, match="device: no device 1"):
        run(ragged([3]), "medium", path=choice.PERSISTENT)


@pytest.mark.parametrize("device", [H100, H100_OF_15, (114, 232448, 13, 27, 57), A100])
@pytest.mark.parametrize("size", [(4096, 512), (2048, 256), (1024, 128)])
def test_plans_of_published_models(device, size):
    all_plans = {slots: machine(90).cuda_lstm_plan(*size, device, slots) for slots in (1, 16, 32, 64)}
    plans = {slots: plan for slots, plan in all_plans.items() if plan["reason"] is None}
    weights, clusters = 20 * size[0] * size[1], dict(zip((8, 4, 2), device[2:])) | {1: device[0]}
    assert all("above 32 slots" in plan["reason"] for slots, plan in all_plans.items() if slots not in plans)
    assert device[0] < 128 or plans == all_plans
    for plan in plans.values():
        assert plan["shared_bytes"] <= device[1] and plan["blocks"] % plan["cluster"] == 0
        assert plan["blocks"] <= clusters[plan["cluster"]] * plan["cluster"]
        assert plan["blocks"] * plan["units_per_block"] * 16 >= size[0]
        assert plan["resident_bytes"] + plan["streamed_bytes"] == weights
        assert (plan["cluster"], plan["blocks"]) == (plans[1]["cluster"], plans[1]["blocks"])  # the same order of sums
    if device[0] == 132:
        assert plans[1]["streamed_bytes"] == 0 and plans[16]["streamed_bytes"] <= 2**20
        assert plans[64]["resident_bytes"] >= min(weights, 17e6)


@pytest.mark.parametrize("dim, projection, device, slots, message", [
    (4096, 512, (60, 232448, 0, 0, 0), 8, "48 of each direction"),  # a slice of a GPU
    (64, 32, (4, 3 * 1024, 0, 0, 0), 8, "shared memory"), (64, 64, H100, 8, "no projection"),
    (0, 4, H100, 1, "shape"), (4, 2, H100, 0, "slots"), (4, 2, H100, 65, "slots"),
    (4, 2, (0, 1, 0, 0, 0), 1, "device")])
def test_plans_that_are_refused(dim, projection, device, slots, message):
    with pytest.raises((AssertionError, ValueError), match=message):
        reason = machine(90).cuda_lstm_plan(dim, projection, device, slots)["reason"]
        assert reason is None, reason
