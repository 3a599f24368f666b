"""The persistent path of the CUDA LSTM on the CPU, with a native module that checks what it is handed."""

import ctypes
import logging

import numpy as np
import pytest
import test_cuda_lstm_graph as graph_tests
import test_projected_lstm as op_tests
import torch
from models import SENTENCES, SHAPES, bilm, options
from ptx_machine import machine
from test_cuda_lstm_graph import FIRING, SLOTS, assert_close, expected_of, run
from tolerances import AGAINST_FLOAT64, relative_error

from elmo_fast.ops.cuda import buffers, choice, lstm, operands, persistent

CPU = torch.device("cpu")
FP16, BF16 = AGAINST_FLOAT64["medium-fp16"], AGAINST_FLOAT64["medium-bf16"]
H100 = persistent.Limits((9, 0), (132, 227 * 1024, 16, 32, 66))
CALL = set("dim projection operand device packed z scale meta places batch_sizes steps slots stride fresh_h fresh_c "
           "h_first c_first h c state_stride output cell_clip proj_clip scratch scratch_size aborts nanoseconds "
           "stream".split())


def at(address, shape, dtype=np.float32):
    """A view of host memory; None for a null pointer."""
    if not address:
        return None
    count = int(np.prod(shape)) * np.dtype(dtype).itemsize
    return np.frombuffer((ctypes.c_char * count).from_address(address), dtype).reshape(shape)


def widened(values, operand):
    """fp16, or bf16 that NumPy does not have, in float64."""
    return (values if operand == 0 else (values.astype(np.uint32) << 16).view(np.float32)).astype(np.float64)


class Native:
    """The native module's CUDA functions over host memory, plainly in NumPy."""

    has_cuda = True

    def __init__(self):
        self.calls, self.packed, self.absent, self.refuses = [], {}, False, False

    def cuda_lstm_plan(self, dim, projection, device, slots):
        assert device == H100.native and dim != projection and 1 <= slots <= 64
        return {"scratch": 1000 * slots, "reason": "a row of cells is too long" if dim > 4096 else None}

    def cuda_lstm_packed_size(self, dim, projection):
        return 100 + dim

    def cuda_lstm_pack(self, dim, projection, operand, weights, biases, projections, packed, packed_size):
        assert packed % 16 == 0 and packed_size == 100 + dim
        shapes = (projection, 4 * dim), (4 * dim,), (dim, projection)
        parts = [[at(each, shape).astype(np.float64) for each in pair]
                 for pair, shape in zip((weights, biases, projections), shapes)]
        self.packed[packed] = dim, projection, operand, parts

    def cuda_lstm_run(self, **call):
        assert call.keys() == CALL and call["device"] == H100.native and call["stream"] == 0
        steps, slots, stride, operand = (call[name] for name in ("steps", "slots", "stride", "operand"))
        dim, projection, packed_for, (weights, biases, projections) = self.packed[call["packed"]]
        assert (dim, projection, packed_for) == (call["dim"], call["projection"], operand) and call["packed"] % 16 == 0
        assert steps >= 1 and 1 <= slots <= min(64, stride) and call["nanoseconds"] == 2 * 10**9
        assert call["scratch"] % 256 == 0 and call["scratch_size"] >= 1000 * slots
        at(call["scratch"], (call["scratch_size"],), np.uint8)[:] = 255
        batch_sizes, places = at(call["batch_sizes"], (steps,), np.int32), at(call["places"], (steps, stride), np.int32)
        meta, runs = at(call["meta"], (steps + 1, 3, stride), np.int32), np.arange(stride) < batch_sizes[:, None]
        assert batch_sizes[0] == slots and batch_sizes[-1] >= 1 and (np.diff(batch_sizes) <= 0).all()
        assert ((places >= 0) == runs).all() and ((meta[:-1, :2] >= 0) == runs[:, None]).all()
        assert (meta[-1, :2] == -1).all() and not meta[-1, 2].any() and np.unique(places[runs]).size == runs.sum()
        self.calls.append(call)
        if self.refuses:
            raise RuntimeError("CUDA: launch: too many blocks in cooperative launch")
        at(call["aborts"], (1,), np.int32)[0] |= self.absent
        count = 1 + meta[:, :2].max()
        z = widened(at(call["z"], (count, 2, 4, dim), np.float16 if operand == 0 else np.uint16), operand)
        scale = at(call["scale"], (count, 2))
        z = z if scale is None else z * scale[..., None, None]
        fresh = [at(call[name], (2, size)) for name, size in (("fresh_h", projection), ("fresh_c", dim))]
        assert (fresh[0] is None) == (fresh[1] is None) and not (fresh[0] is None and meta[:, 2].any())
        out = at(call["output"], (1 + places.max(), 2, projection))
        for d in (0, 1):
            h, c = (at(call[name], (2, slots, size))[d].astype(np.float64)
                    for name, size in (("h_first", projection), ("c_first", dim)))
            for step in range(steps):
                here, rows = slice(batch_sizes[step]), meta[step, d, : batch_sizes[step]]
                start = meta[step, 2, here, None] != 0
                before = [np.where(start, 0 if new is None else new[d], old[here]) for new, old in zip(fresh, (h, c))]
                i, j, f, o = (z[rows, d] + (before[0] @ weights[d] + biases[d]).reshape(-1, 4, dim)).transpose(1, 0, 2)
                c[here] = np.clip(sigmoid(f + 1) * before[1] + sigmoid(i) * np.tanh(j), -call["cell_clip"],
                                  call["cell_clip"])
                m = sigmoid(o) * np.tanh(c[here])
                h[here] = np.clip(m @ projections[d], -call["proj_clip"], call["proj_clip"])
                out[places[step, here], d] = h[here]
            for name, last in (("h", h), ("c", c)):
                size = last.shape[1]
                at(call[name] + 4 * d * call["state_stride"] * size, (slots, size))[:] = last


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


arenas, projected = graph_tests.arenas, graph_tests.projected


@pytest.fixture
def native(monkeypatch):
    """The checking module in the place of the compiled one, and the persistent path forced."""
    module = Native()
    monkeypatch.setattr(persistent, "native_module", lambda: (module, None))
    monkeypatch.setattr(persistent, "limits", lambda device: H100)
    monkeypatch.setenv(choice.VARIABLE, choice.PERSISTENT)
    forget()
    yield module
    forget()


def forget():
    for cached in (persistent.lacks, persistent.plan, persistent._watch):
        cached.cache_clear()


def test_agrees_with_float64(native, projected):
    given = op_tests.draw(FIRING, torch.float32)
    assert_close(run(FIRING, "medium", *given), expected_of(FIRING, *given), FP16)
    assert {(call["operand"], bool(call["scale"]), call["fresh_h"]) for call in native.calls} == {(0, True, 0)}
    given = graph_tests.draw(SHAPES["no clips"], torch.float32)
    assert_close(run(SHAPES["no clips"], "medium", *given), expected_of(SHAPES["no clips"], *given), BF16)
    assert (native.calls[-1]["operand"], native.calls[-1]["scale"], native.calls[-1]["cell_clip"]) == (1, 0, np.inf)


def test_sequences_start_within_slots(native, projected):
    inputs, index, state = op_tests.draw(FIRING, torch.float32)
    more = {"slots": SLOTS, "restart": tuple(torch.linspace(-0.2, 0.2, 2 * size) for size in (11, 37))}
    state = tuple(each[:3] * torch.nan for each in state)
    given = inputs, index, state
    assert_close(run(FIRING, "medium", *given, **more), expected_of(FIRING, *given, **more), FP16)
    assert all(call["fresh_h"] and call["fresh_c"] for call in native.calls)


@pytest.mark.parametrize("slots, blocks", [(1, [1]), (7, [7]), (64, [64]), (65, [64, 1]), (200, [64, 64, 64, 8])])
def test_any_number_of_slots(slots, blocks, native):
    """Ragged, with empty slots among them, which keep their state."""
    inputs, _, _ = op_tests.draw(FIRING, torch.float32)
    state = tuple(torch.randn(slots + 3, 2 * size) / 4 for size in (11, 37))
    lengths = [0, 0, *(9 - number % 3 for number in range(slots)), 0]
    given = inputs, torch.arange(sum(lengths)) % 6, state
    found = run(FIRING, "medium", *given, lengths=lengths)
    assert_close(found, expected_of(FIRING, *given, lengths=lengths), FP16)
    assert [call["slots"] for call in native.calls] == blocks and native.calls[0]["state_stride"] == slots + 3
    assert all(torch.equal(new[row], old[row]) for new, old in zip(found[1], state) for row in (0, 1, -1))


@pytest.mark.parametrize("state", ["carry", "zero", "warm"])
def test_models_over_ragged_batches(state, native, monkeypatch):
    def on_gpu(*given, backend, multiplied, **settings):
        return lstm.projected_lstm(*given, **{**settings, "precision": "medium"})

    truth, found = bilm(FIRING, state=state, backend="reference").double(), bilm(FIRING, state=state)
    batches = [SENTENCES[:4], SENTENCES[1:3], SENTENCES[::-1], [[], []], SENTENCES[2:5]]
    expected = [truth.embed_tokens(batch)[0] for batch in batches]
    monkeypatch.setattr("elmo_fast.model.lstm.projected_lstm", on_gpu)
    for batch, layers in zip(batches, expected):
        assert all(relative_error(one, other) < FP16 for one, other in zip(found.embed_tokens(batch)[0], layers))
    assert len(native.calls) >= 2 * len(batches)


def test_packs_once_for_each_version_of_the_weights(native):
    given, weights = op_tests.draw(FIRING, torch.float32), op_tests.layer(FIRING, torch.float32)
    for _ in range(2):
        run(FIRING, "medium", *given, weights=weights)
    assert len({call["packed"] for call in native.calls}) == 1
    weights[1][2].mul_(0.5)
    double = tuple(tuple(each.double() for each in one) for one in weights)
    assert_close(run(FIRING, "medium", *given, weights=weights), expected_of(FIRING, *given, weights=double), FP16)


def test_scratch_grows_with_the_call(native, arenas):
    inputs, _, _ = op_tests.draw(FIRING, torch.float32)
    weights = op_tests.layer(FIRING, torch.float32)
    for slots in (3, 40, 5):
        state = tuple(torch.zeros(slots, 2 * size) for size in (11, 37))
        run(FIRING, "medium", inputs, torch.arange(slots) % 6, state, lengths=[1] * slots, weights=weights)
    (arena, _), = arenas._kept.values()
    assert [call["scratch_size"] for call in native.calls] == [3000, 40000, 5000] and len(arena._scratch) == 40000


def test_a_refused_launch_runs_the_block_in_graphs(native, caplog, monkeypatch):
    monkeypatch.setattr(buffers, "rows_held", lambda layer: 14)
    monkeypatch.setenv(choice.VARIABLE, "")
    monkeypatch.setattr(choice, "_choices", type("Chosen", (), {"path": lambda self, *key: choice.PERSISTENT})())
    native.refuses = True
    given, weights = op_tests.draw(FIRING, torch.float32), op_tests.layer(FIRING, torch.float32)
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            assert_close(run(FIRING, "medium", *given, weights=weights), expected_of(FIRING, *given), FP16)
    assert len(native.calls) == 1 and caplog.text.count("too many blocks in cooperative launch") == 1
    monkeypatch.setenv(choice.VARIABLE, choice.PERSISTENT)
    with pytest.raises(RuntimeError, match="was asked for and does not run here: a launch was refused on cpu before"):
        run(FIRING, "medium", *given)


def test_a_launch_that_gave_up_is_the_last(native, caplog, monkeypatch):
    given, weights = op_tests.draw(FIRING, torch.float32), op_tests.layer(FIRING, torch.float32)
    native.absent = True
    run(FIRING, "medium", *given, weights=weights)
    launches = len(native.calls)
    monkeypatch.setenv(choice.VARIABLE, "")
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            assert_close(run(FIRING, "medium", *given, weights=weights), expected_of(FIRING, *given), FP16)
    assert len(native.calls) == launches and caplog.text.count("a launch gave up waiting on cpu") == 1


@pytest.fixture(params=[90, 80])
def as_ptx(request, native, monkeypatch):
    """The kernels' PTX, run by the interpreter, in the place of the NumPy module, which collects the calls."""
    kernel = machine(request.param)
    device = (12, 232448, 1, 3, 6) if request.param == 90 else (12, 166912, 0, 0, 0)
    for name in ("cuda_lstm_plan", "cuda_lstm_packed_size", "cuda_lstm_pack"):
        monkeypatch.setattr(native, name, getattr(kernel, name))
    monkeypatch.setattr(native, "cuda_lstm_run", lambda **call: (native.calls.append(call),
                                                                 kernel.cuda_lstm_run(**call)))
    monkeypatch.setattr(persistent, "limits", lambda of: persistent.Limits((8, 0), device))
    return native


def test_calls_run_as_ptx(as_ptx, projected):
    test_sequences_start_within_slots(as_ptx, None)
    given = graph_tests.draw(SHAPES["no clips"], torch.float32)
    assert_close(run(SHAPES["no clips"], "medium", *given), expected_of(SHAPES["no clips"], *given), BF16)


@pytest.mark.parametrize("slots, blocks", [(1, [1]), (64, [64]), (130, [64, 64, 2])])
def test_any_number_of_slots_as_ptx(slots, blocks, as_ptx):
    test_any_number_of_slots(slots, blocks, as_ptx)


def test_a_launch_that_gives_up_is_replayed_as_ptx(as_ptx, monkeypatch, caplog):
    monkeypatch.setattr(persistent, "_NANOSECONDS", 0)
    given = op_tests.draw(FIRING, torch.float32)
    assert_close(run(FIRING, "medium", *given), expected_of(FIRING, *given), FP16)
    assert "a launch gave up waiting on cpu" in persistent._watch(CPU).reason() and len(as_ptx.calls) == 1


@pytest.mark.parametrize("change, reason", [
    ({"precision": "highest"}, "16-bit, which precision 'medium' alone"), ({"dim": 11}, "without a projection"),
    ({"limits": persistent.Limits((7, 5), (68, 65536, 0, 0, 0))}, "capability 8.0, and this device has 7.5"),
    ({"dim": 4100}, "a row of cells is too long"), ({"inference": True}, "made in inference mode"),
    ({"has_cuda": False}, "built without CUDA: nvcc was not found"), ({}, None),
])
def test_reasons(change, reason, native, monkeypatch):
    monkeypatch.setattr(native, "has_cuda", change.get("has_cuda", True), raising=False)
    monkeypatch.setattr(native, "cuda_skipped", "nvcc was not found", raising=False)
    monkeypatch.setattr(persistent, "limits", lambda device: change.get("limits", H100))
    with torch.inference_mode(change.get("inference", False)):
        weights = operands.flat_weights(op_tests.layer(options({"dim": change.get("dim", 37)}), torch.float32))
    layer = operands.operands(weights, change.get("precision", "medium"), 3.0)
    forget()
    found = persistent.why_not(CPU, layer, weights, 200)
    assert found is None if reason is None else reason in found


def test_a_device_without_the_kernel_says_why(monkeypatch):
    monkeypatch.setattr(persistent, "native_module", lambda: (Native(), None))
    forget()
    assert persistent.lacks(CPU) == "it runs on NVIDIA GPUs, and this is a cpu"
    forget()
    monkeypatch.setattr(persistent, "native_module", lambda: (None, "because"))
    assert persistent.lacks(CPU) == "because"
