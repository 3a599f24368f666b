"""The native module whose CUDA launches run on the simulator, in host memory: what tiers B and C are without a GPU."""

import ctypes
from dataclasses import replace

import numpy as np
import pytest
from cuda_simulator import PERSISTENT, SECOND, STEPS, STEPS_LAST_BLOCK, Case, run, simulator

from elmo_fast.ops import cuda_limits, cuda_self_test, cuda_tiers, native_cuda_lstm
from elmo_fast.ops.backend import native_module
from elmo_fast.ops.cuda_limits import Limits

H200 = Limits((9, 0), 132, 227 * 1024, 8)


def at(address, shape, dtype):
    """A view of host memory."""
    if not address:
        return None
    count = int(np.prod(shape)) * np.dtype(dtype).itemsize
    return np.frombuffer((ctypes.c_char * count).from_address(address), dtype).reshape(shape)


class Simulated:
    """The native module with launches that read host memory and run on the simulator."""

    def __init__(self, tmp_path):
        self.tmp_path, self.has_cuda = tmp_path, True
        self.calls: list[dict] = []  # each with its tier
        self.wrong: set[int] = set()  # tiers that come out a little off
        self._packed: dict[int, list] = {}  # address -> weights

    def __getattr__(self, name):
        return getattr(native_module()[0], name)

    def cuda_lstm_pack(self, dim, projection, operand, weights, biases, projections, packed, packed_size):
        shapes = (projection, 4 * dim), (4 * dim,), (dim, projection)
        self._packed[packed] = [[None if not each else at(each, shape, np.float32).copy() for each in pair]
                                for pair, shape in zip((weights, biases, projections), shapes)]
        native_module()[0].cuda_lstm_pack(dim, projection, operand, weights, biases, projections, packed, packed_size)

    def cuda_lstm_steps(self, last_block_sums, **call):
        self.launch(STEPS_LAST_BLOCK if last_block_sums else STEPS, call)

    def cuda_lstm_persistent(self, aborts, nanoseconds, first_count, absent_block, **call):
        found = self.launch(PERSISTENT, call, nanoseconds=nanoseconds, first_count=first_count,
                            absent_block=absent_block)
        at(aborts, (1,), np.int32)[0] += found[3]

    def tiers(self):
        """The tiers called since the last question, each once."""
        found = {"C" if call["tier"] == PERSISTENT else "B" for call in self.calls}
        self.calls.clear()
        return found

    def launch(self, tier, call, **more):
        self.calls.append({**call, "tier": tier})
        dim, projection, lanes, live = call["dim"], call["projection"], call["lanes"], np.array(call["live"])
        size = int(live.sum())
        if tier == PERSISTENT:
            assert (at(call["begin"], (len(live) + 1,), np.int32) == np.concatenate([[0], np.cumsum(live)])).all()
        plan = native_module()[0].cuda_lstm_plan(tier == PERSISTENT, dim, projection, call["device"], lanes)
        assert call["scratch_size"] >= plan["scratch"] and call["scratch"] % 256 == 0
        rows = None if not call["rows"][0] else [at(each, (size,), np.int32) for each in call["rows"]]
        count = size if rows is None else 1 + max(each.max() for each in rows)
        reset = at(call["reset"], (size,), np.uint8)
        fresh = [at(call["reset_h"], (2 * projection,), np.float32), at(call["reset_c"], (2 * dim,), np.float32)]
        case = Case(
            *self._packed[call["packed"]], products=[at(each, (count, 4 * dim), np.float32) for each in call["products"]], rows=rows,
            live=live, h=at(call["h_first"], (lanes, 2 * projection), np.float32),
            c=at(call["c_first"], (lanes, 2 * dim), np.float32), reset=reset,
            reset_state=None if reset is None else fresh, cell_clip=call["cell_clip"], proj_clip=call["proj_clip"],
            operand=call["operand"], tier=tier, **more)
        case = replace(case, processors=call["device"][0], shared=call["device"][1], cluster=call["device"][2])
        (found,) = run([case], self.tmp_path)
        at(call["output"], (size, 2 * projection), np.float32)[:] = found[0] * (1.01 if tier in self.wrong else 1)
        at(call["h"], (lanes, 2 * projection), np.float32)[:] = found[1]
        at(call["c"], (lanes, 2 * dim), np.float32)[:] = found[2]
        return found


@pytest.fixture
def simulated(monkeypatch, tmp_path):
    simulator()
    module = Simulated(tmp_path)
    for where in ("native_cuda_lstm", "cuda_layer", "cuda_limits"):
        monkeypatch.setattr(f"elmo_fast.ops.{where}.native_module", lambda: (module, None))
    for where in (native_cuda_lstm, cuda_limits, cuda_self_test):
        monkeypatch.setattr(where, "limits", lambda device: replace(H200, processors=6))
    for where in (cuda_limits, cuda_self_test):
        monkeypatch.setattr(where, "resident_blocks", lambda *layer: 6)
    monkeypatch.setattr(native_cuda_lstm, "_PATIENCE", 60 * SECOND)  # blocks are threads, on a machine that may be busy
    native_cuda_lstm._watch.cache_clear()
    cuda_self_test.failure.cache_clear()
    return module
