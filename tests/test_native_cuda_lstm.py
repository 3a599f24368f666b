"""The wrappers of the CUDA tiers: on the CPU through the simulator, whose place the kernels take on a GPU."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from models import SHAPES, options
from simulated_cuda import H200, simulated
from test_projected_lstm import draw, layer
from tolerances import AGAINST_FLOAT64, relative_error

from elmo_fast.ops import cuda_limits, cuda_self_test, native_cuda_lstm, reference
from elmo_fast.ops.backend import native_module
from elmo_fast.ops.cuda_limits import why_not
from elmo_fast.ops.schedule import make_schedule

pytestmark = pytest.mark.skipif(native_module()[0] is None, reason=f"no native module: {native_module()[1]}")
LENGTHS = [3, 1, 0, 7, 4, 1, 5]
RUNS = [native_cuda_lstm.step_kernel, native_cuda_lstm.persistent]


def both(forward, of, lengths=LENGTHS, lanes=None, restart=None, split=False, **more):
    """One forward of a tier and of the reference in float64."""
    inputs, index, state = draw(of, torch.float32)
    schedule = make_schedule(lengths, lanes)
    state = tuple(each[: schedule.lanes.size] for each in state)
    rows = index[torch.from_numpy(schedule.tokens).long()] if len(schedule.starts) else index[:0].expand(2, 0)
    if split:
        inputs, rows = torch.cat([inputs[rows[0]], inputs[rows[1]]], 1), None
    clips = {"cell_clip": of.lstm.cell_clip, "proj_clip": of.lstm.proj_clip}
    wide = [None if each is None else tuple(part.double() for part in each) for each in (state, restart)]
    expected = reference.projected_lstm(inputs.double(), rows, schedule, wide[0], layer(of), restart=wide[1], **clips)
    found = forward(inputs, rows, schedule, state, layer(of, torch.float32), restart=restart, **clips, **more)
    return found, expected


def agree(found, expected, limit=AGAINST_FLOAT64["medium-fp16"]):
    for one, other in zip((found[0], *found[1]), (expected[0], *expected[1])):
        assert one.shape == other.shape and one.dtype == torch.float32
        assert relative_error(one.cpu(), other) < limit


@pytest.mark.parametrize("forward", RUNS)
@pytest.mark.parametrize("shape", ["two layers", "no projection", "clips that fire"])
def test_agrees_with_float64(simulated, forward, shape):
    agree(*both(forward, SHAPES[shape]))
    agree(*both(forward, SHAPES[shape], split=True))
    assert {call["operand"] for call in simulated.calls} == {0}


@pytest.mark.parametrize("forward", RUNS)
def test_lanes_and_restart(simulated, forward):
    restart = tuple(torch.linspace(-1, 1, 2 * size) for size in (11, 37))
    lanes = np.array([0, 1, 1, 0, 2, 1, 0])
    agree(*both(forward, options(), lanes=lanes, restart=restart))
    agree(*both(forward, options(), lanes=lanes))
    assert simulated.calls[0]["reset"] and not simulated.calls[1]["reset"]


def test_without_a_clip_operands_are_bf16(simulated):
    agree(*both(native_cuda_lstm.step_kernel, SHAPES["no clips"]), AGAINST_FLOAT64["medium-bf16"])
    assert simulated.calls[0]["operand"] == 1


def test_large_weights_are_bf16():
    of = options()
    assert native_cuda_lstm.operand_for(layer(of, torch.float32), 3.0) == "fp16"
    large = layer(of, torch.float32)
    with torch.no_grad():
        large[1][0][0, 5] = -7e4
    assert native_cuda_lstm.operand_for(large, 3.0) == "bf16"
    for clip in (7e4, None):
        assert native_cuda_lstm.operand_for(layer(of, torch.float32), clip) == "bf16"


@pytest.mark.parametrize("forward", RUNS)
@pytest.mark.parametrize("split", [False, True])
def test_many_rows_run_in_chunks(simulated, forward, split, monkeypatch):
    restart = tuple(torch.linspace(-1, 1, 2 * size) for size in (11, 37))
    (whole, state), _ = both(forward, options(), restart=restart, split=split)
    monkeypatch.setattr(native_cuda_lstm, "_PRODUCT_BYTES", 32 * 37 * (9 if split else 5))
    (found, found_state), _ = both(forward, options(), restart=restart, split=split)
    assert len(simulated.calls) > 3
    for one, other in zip((whole, *state), (found, *found_state)):
        assert torch.equal(one, other)


def test_products_may_stand_for_inputs(simulated):
    def forward(inputs, rows, schedule, state, weights, **more):
        products = native_cuda_lstm.input_products(inputs, weights, "fp16")
        return native_cuda_lstm.step_kernel(None, rows, schedule, state, weights, products=products, **more)

    agree(*both(forward, options()))
    agree(*both(forward, options(), split=True))


@pytest.mark.parametrize("forward", RUNS)
def test_lanes_in_order_are_not_moved_and_states_are_new(simulated, forward):
    of, lengths = SHAPES["clips that fire"], [7, 6, 4, 1]
    found, expected = both(forward, of, lengths=lengths)
    agree(found, expected)
    inputs, _, state = draw(of, torch.float32)
    rows, weights = torch.empty(2, 0, dtype=torch.int32), layer(of, torch.float32)
    _, final = forward(inputs, rows, make_schedule([0] * 7), state, weights)
    for before, after in zip(state, final):
        assert torch.equal(before, after) and before.data_ptr() != after.data_ptr()


@pytest.mark.parametrize("forward", RUNS)
def test_nothing_to_run(simulated, forward):
    found, expected = both(forward, options(), lengths=[0, 0])
    assert found[0].shape == (0, 22) and not simulated.calls
    assert all(torch.equal(one.double(), other) for one, other in zip(found[1], expected[1]))


def test_edited_weights_are_packed_again(simulated):
    weights = layer(options(), torch.float32)
    first = native_cuda_lstm.prepared(weights, "fp16")
    assert native_cuda_lstm.prepared(weights, "fp16") is first
    with torch.no_grad():
        weights[0][2].mul_(2)
    again = native_cuda_lstm.prepared(weights, "fp16")
    assert not torch.equal(first.packed, again.packed)


def test_a_launch_that_gives_up_warns_once(simulated, monkeypatch, caplog):
    whole, _ = both(native_cuda_lstm.persistent, options())
    device = torch.device("cpu")
    assert not native_cuda_lstm.gave_up(device)
    monkeypatch.setenv("ELMO_FAST_CUDA_ABSENT_BLOCK", "1")
    for _ in range(2):
        found, _ = both(native_cuda_lstm.persistent, options(), nanoseconds=10**7)
        assert torch.equal(found[0], whole[0]) and all(torch.equal(*pair) for pair in zip(found[1], whole[1]))
        assert native_cuda_lstm.gave_up(device)
    assert sum("gave up" in record.message for record in caplog.records) == 1


def test_a_refused_launch_runs_step_by_step(simulated, monkeypatch, caplog):
    def refuse(**call):
        raise RuntimeError("CUDA: launch: too many blocks in cooperative launch")

    monkeypatch.setattr(simulated, "cuda_lstm_persistent", refuse, raising=False)
    monkeypatch.setattr(native_cuda_lstm, "_PRODUCT_BYTES", 32 * 37 * 5)
    for _ in range(2):
        agree(*both(native_cuda_lstm.persistent, options()))
    assert native_cuda_lstm.gave_up(torch.device("cpu"))
    assert sum("too many blocks" in record.message for record in caplog.records) == 1


def a_kernel_run(forward, of, device, seed, lanes, **more):
    """One call on a GPU and the reference on the CPU in float64: ragged lanes, restarts, states carried on."""
    generator = torch.Generator().manual_seed(seed)
    p, d = of.lstm.projection_dim, of.lstm.dim
    clips = {"cell_clip": of.lstm.cell_clip, "proj_clip": of.lstm.proj_clip}
    weights = layer(of, torch.float32)
    lengths = torch.randint(8, 15, (lanes,), generator=generator).tolist()
    schedule = make_schedule(lengths + [3] * lanes, np.tile(np.arange(lanes), 2), lanes)
    inputs = torch.randn(20, p, generator=generator)
    rows = torch.randint(0, 20, schedule.tokens.shape, generator=generator, dtype=torch.int32)
    state = tuple(torch.randn(lanes, 2 * size, generator=generator) / 4 for size in (p, d))
    restart = tuple(torch.randn(2 * size, generator=generator) / 4 for size in (p, d))
    wide = tuple(tuple(None if each is None else each.double() for each in one) for one in weights)
    expected = reference.projected_lstm(
        inputs.double(), rows, schedule, tuple(each.double() for each in state), wide,
        restart=tuple(each.double() for each in restart), **clips)
    there = tuple(tuple(None if each is None else each.to(device) for each in one) for one in weights)
    found = forward(inputs.to(device), rows.to(device), schedule, tuple(each.to(device) for each in state), there,
                    restart=tuple(each.to(device) for each in restart), **clips, **more)
    return found, expected


def gpu_for(tier, of, lanes):
    """A GPU that runs the tier; skips with the reason otherwise."""
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    device = torch.device("cuda", torch.cuda.current_device())
    reason = cuda_limits.lacks(tier, device) or why_not(tier, cuda_limits.limits(device), of.lstm.dim,
                                                        of.lstm.projection_dim, lanes=lanes, steps=11)
    if reason:
        pytest.skip(reason)
    return device


GPU_TIERS = {"B": (native_cuda_lstm.step_kernel, {}),
             "B, last block sums": (native_cuda_lstm.step_kernel, {"last_block_sums": True}),
             "C": (native_cuda_lstm.persistent, {})}
GPU_SHAPES = {**{name: SHAPES[name] for name in ("two layers", "no projection", "no clips", "clips that fire")},
              "medium": options({"dim": 1024, "projection_dim": 128, "cell_clip": 0.3, "proj_clip": 0.3}),
              "original": options({"dim": 4096, "projection_dim": 512, "cell_clip": 0.3, "proj_clip": 0.3})}


@pytest.mark.gpu
@pytest.mark.parametrize("tier", GPU_TIERS)
@pytest.mark.parametrize("shape", GPU_SHAPES)
@pytest.mark.parametrize("lanes", [1, 5, 16, 32, 100])
def test_on_a_gpu_agrees_with_float64(tier, shape, lanes):
    of = GPU_SHAPES[shape]
    forward, more = GPU_TIERS[tier]
    device = gpu_for(tier[0], of, lanes)
    found, expected = a_kernel_run(forward, of, device, lanes, lanes, **more)
    agree(found, expected, AGAINST_FLOAT64["medium-bf16" if shape == "no clips" else "medium-fp16"])
    assert not native_cuda_lstm.gave_up(device)


@pytest.mark.gpu
@pytest.mark.parametrize("tier", GPU_TIERS)
def test_on_a_gpu_a_lane_has_the_same_bits_alone(tier):
    of, lanes = GPU_SHAPES["medium"], 24
    forward, more = GPU_TIERS[tier]
    device = gpu_for(tier[0], of, lanes)
    weights = tuple(tuple(each.to(device) for each in one) for one in layer(of, torch.float32))
    state = tuple(torch.randn(lanes, 2 * size, device=device) / 4 for size in (128, 1024))
    inputs = torch.randn(lanes * 9, 128, device=device)
    schedule, alone = make_schedule([9] * lanes), make_schedule([9])
    rows = torch.from_numpy(schedule.tokens).to(device)
    clips = {"cell_clip": 0.3, "proj_clip": 0.3, **more}
    out, final = forward(inputs, rows, schedule, state, weights, **clips)
    for lane in (0, 7, 23):
        mine = slice(lane * 9, lane * 9 + 9)
        only, end = forward(inputs[mine], torch.from_numpy(alone.tokens).to(device), alone,
                            tuple(each[lane : lane + 1] for each in state), weights, **clips)
        assert torch.equal(only, out[lane::lanes])
        assert all(torch.equal(one[0], other[lane]) for one, other in zip(end, final))


@pytest.mark.gpu
@pytest.mark.parametrize("shape", ["two layers", "original"])
def test_on_a_gpu_a_block_that_never_comes_is_replayed(shape, monkeypatch, caplog):
    of = GPU_SHAPES[shape]
    device = gpu_for("C", of, 9)
    whole, expected = a_kernel_run(native_cuda_lstm.persistent, of, device, 1, 9, first_count=2**32 - 100)
    monkeypatch.setenv("ELMO_FAST_CUDA_ABSENT_BLOCK", "1")
    native_cuda_lstm._watch.cache_clear()
    for _ in range(2):
        found, _ = a_kernel_run(native_cuda_lstm.persistent, of, device, 1, 9, nanoseconds=20_000_000)
        torch.cuda.synchronize(device)
        assert native_cuda_lstm.gave_up(device)
        agree(found, expected)
        assert torch.equal(found[0], whole[0])
    assert sum("gave up" in record.message for record in caplog.records) == 1
    native_cuda_lstm._watch.cache_clear()


@pytest.mark.gpu
def test_on_a_gpu_steps_are_captured():
    of = GPU_SHAPES["clips that fire"]
    device = gpu_for("B", of, 5)
    weights = tuple(tuple(each.to(device) for each in one) for one in layer(of, torch.float32))
    products = tuple(torch.randn(15, 4 * 37, device=device) for _ in range(2))
    state = tuple(torch.randn(5, 2 * size, device=device) for size in (11, 37))
    schedule, clips = make_schedule([3] * 5), {"cell_clip": 0.3, "proj_clip": 0.05}
    expected, _ = native_cuda_lstm.step_kernel(None, None, schedule, state, weights, products=products, **clips)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found, _ = native_cuda_lstm.step_kernel(None, None, schedule, state, weights, products=products, **clips)
    found.zero_()
    graph.replay()
    assert torch.equal(found, expected)


@pytest.mark.gpu
@pytest.mark.parametrize("tier", GPU_TIERS)
@pytest.mark.parametrize("operand", ["fp16", "bf16"])
def test_on_a_gpu_the_self_test_passes(tier, operand):
    device = gpu_for(tier[0], GPU_SHAPES["medium"], 16)
    forward, _ = GPU_TIERS[tier]
    assert cuda_self_test.difference(forward, tier[0], device, 1024, 128, operand) is None


class WithCuda:
    has_cuda = True

    def __getattr__(self, name):
        return getattr(native_module()[0], name)


@pytest.mark.parametrize("tier,change,call,reason", [
    ("B", {}, {"precision": "highest"}, "16-bit, and precision is 'highest'"),
    ("B", {"capability": (7, 5)}, {}, "capability 8.0, and this device has 7.5"),
    ("B", {}, {"lanes": 0}, "no lane"),
    ("C", {}, {"steps": 7}, "from 8 steps on, and there are 7"),
    ("C", {}, {"lanes": 33}, "above 32 lanes"),
    ("C", {"processors": 60}, {}, "do not fit on the device's processors, 64 on each (60 multiprocessors"),
    ("C", {"shared": 99 * 1024}, {}, "shared memory than the device has"),
    ("C", {}, {"resident": 64}, "128 blocks must run at once, and the device holds 64"),
    ("B", {}, {}, None), ("B", {}, {"lanes": 1000, "steps": 1}, None), ("C", {}, {"resident": 132}, None),
    ("B", {"capability": (8, 0), "cluster": 1, "processors": 108, "shared": 163 * 1024}, {}, None),
])
def test_why_not(tier, change, call, reason, monkeypatch):
    monkeypatch.setattr(cuda_limits, "native_module", lambda: (WithCuda(), None))
    found = why_not(tier, replace(H200, **change), 4096, 512, **{"lanes": 32, "steps": 25, **call})
    assert found is None if reason is None else reason in found


def test_a_square_projection_is_refused(monkeypatch):
    monkeypatch.setattr(cuda_limits, "native_module", lambda: (WithCuda(), None))
    assert "as many values" in why_not("B", H200, 64, 64, lanes=1, steps=9, has_projection=True)
    assert why_not("B", H200, 64, 64, lanes=1, steps=9, has_projection=False) is None
    square = tuple((torch.ones(74, 256), torch.ones(256), torch.ones(64, 64)) for _ in range(2))
    with pytest.raises(ValueError, match="W_P exactly when"):
        native_cuda_lstm.step_kernel(torch.ones(1, 10), None, make_schedule([1]), (torch.ones(1, 128),) * 2, square)


def test_why_not_without_cuda(monkeypatch):
    class Without:
        has_cuda = False

    monkeypatch.setattr(cuda_limits, "native_module", lambda: (Without(), None))
    assert "without CUDA" in why_not("B", H200, 64, 16, lanes=1, steps=9)
    monkeypatch.setattr(cuda_limits, "native_module", lambda: (None, "because"))
    assert why_not("C", H200, 64, 16, lanes=1, steps=9) == "because"
    with pytest.raises(ValueError, match="tier"):
        why_not("A", H200, 64, 16, lanes=1, steps=9)
