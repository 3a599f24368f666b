"""The persistent LSTM path on the CPU: its launches run the PTX that ships, on a GPU of any size."""

import contextlib
import ctypes

import pytest
import torch

from elmo_fast.ops.projected_lstm.cuda import persistent
from tests.support.ptx_machine import DEVICES, machine
from tests.support.ptx_text import parsed

# (processors, shared memory of a block, clusters of 8, 4 and 2 at once); small ones with and without clusters
H100, A100 = (132, 232448, 16, 32, 66), (108, 166912, 0, 0, 0)
SMALL = {90: (12, 232448, 1, 3, 6), 80: (12, 166912, 0, 0, 0)}


class NativeOnPtx:
    """A stand-in for the native module: collects the `calls` of its launches, after `changes` to them.

    Launches may access the memory that the contract gives for a call's pointers, and outputs only after writing them. A
    breach is an `AssertionError`; a launch that CUDA refuses is not.
    """

    def __init__(self, generation: int):
        self.generation, self.machine, self.limits = generation, machine(generation), SMALL[generation]
        self.calls, self.changes = [], {}
        self.machine.use(self.machine.shipped)
        self.machine.set_device(*DEVICES[generation])
        self.cuda_lstm_plan = self.machine.cuda_lstm_plan

    def cuda_lstm_run(self, **call):
        call |= self.changes
        self.calls.append(call)
        memory = memory_of(call, persistent.plan(call["dim"], call["projection"], self.limits, call["slots"]))
        try:
            for name, size in memory.items():
                if call[name]:
                    self.machine.register_memory(call[name], size, name, name not in ("h", "c", "output", "scratch"))
            self.machine.cuda_lstm_run(**call)
        except RuntimeError as error:
            if "cooperative launch" in str(error):
                raise
            raise AssertionError(f"the kernel breaks its contract: {error}") from error
        finally:
            self.machine.forget_memory()

    def replace(self, ptx: str) -> None:
        """From here on launches run the kernels of this text; `kernels` counts the executed instructions."""
        self.kernels = [*map(self.machine.Kernel, parsed(ptx))]
        self.machine.use(self.kernels)

    def device(self, *limits: int) -> None:
        """Simulate another GPU from here on."""
        self.limits = limits


def memory_of(call: dict, plan: dict) -> dict[str, int]:
    """Bytes behind the pointers of a call, as csrc/projected_lstm_cuda.h has them."""
    dim, projection, steps, slots, stride = (call[name] for name in ("dim", "projection", "steps", "slots", "stride"))
    meta, packed_rows = (torch.frombuffer((ctypes.c_int32 * count).from_address(call[name]), dtype=torch.int32)
                         for name, count in (("meta", (steps + 1) * 3 * stride), ("packed_rows", steps * stride)))
    z_rows, rows = int(meta.view(-1, 3, stride)[:-1, :2].max()) + 1, int(packed_rows.max()) + 1
    total = call["state_stride"] + slots
    return {"packed": plan["resident_bytes"] + plan["streamed_bytes"] + 2 * -(-dim // 16) * 256,
            "z": z_rows * 16 * dim, "scale": z_rows * 8, "meta": 4 * len(meta), "packed_rows": 4 * len(packed_rows),
            "batch_sizes": 4 * steps, "initial_h": 8 * projection, "initial_c": 8 * dim,
            "h_in": 8 * slots * projection, "c_in": 8 * slots * dim, "h": 4 * total * projection, "c": 4 * total * dim,
            "output": 8 * rows * projection, "scratch": plan["scratch_bytes"]}


@contextlib.contextmanager
def lstm_on_ptx(kernels: str | None, patch: pytest.MonkeyPatch):
    """From here on the CUDA LSTM takes one path on the CPU; gives the `NativeOnPtx` of the persistent path.

    `kernels` "sm_90" and "sm_80" are those of the persistent path. "triton sm_90" is the graph path with its two
    small kernels as Triton's PTX, None the graph path with PyTorch's operations for them.
    """
    if kernels is None or kernels.startswith("triton"):
        if kernels:
            from tests.support import triton_on_ptx

            triton_on_ptx.on_ptx(patch, int(kernels[-2:]), registers=64)
        yield None
        return
    native = NativeOnPtx(int(kernels[-2:]))
    patch.setattr(persistent, "native_module", lambda: (native, None))
    patch.setattr(persistent, "lacks", lambda device: None)
    patch.setattr(persistent, "limits", lambda device: native.limits)
    native.machine.set()
    native.machine.cuda_device(0)  # allows launches its shared memory
    yield native
