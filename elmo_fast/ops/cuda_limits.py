"""What the CUDA tiers need of a device and a layer, and why one cannot run."""

import functools
from dataclasses import dataclass

import torch

from elmo_fast.ops.backend import native_module
from elmo_fast.ops.cuda_layer import operand_number

FEWEST_STEPS = 8  # below, loading a direction's weights into shared memory costs more than it saves


@dataclass(frozen=True)
class Limits:
    """What a device offers: compute capability, multiprocessors, shared memory of a block, blocks of a cluster."""

    capability: tuple[int, int]
    processors: int
    shared: int
    cluster: int

    @property
    def native(self) -> tuple[int, int, int]:
        """As csrc/projected_lstm_cuda.h takes it."""
        return self.processors, self.shared, self.cluster


def not_built() -> str | None:
    """None when the native module has the CUDA kernels, else why not."""
    module, reason = native_module()
    if module is None:
        return reason
    return None if module.has_cuda else "the native module was built without CUDA: nvcc was not found"


@functools.cache
def limits(device: torch.device) -> Limits:
    """What `device` offers these kernels. Raises `RuntimeError` where they cannot be loaded."""
    if device.type != "cuda":
        raise RuntimeError(f"it runs on NVIDIA GPUs, and this is a {device.type}")
    with torch.cuda.device(device):
        return Limits(torch.cuda.get_device_capability(device), *native_module()[0].cuda_device())


def lacks(tier: str, device: torch.device) -> str | None:
    """None when `device` has what tier `B` or `C` needs for some layer, else the reason."""
    if tier not in ("B", "C"):
        raise ValueError(f"tier: expected 'B' or 'C', got {tier!r}")
    reason = not_built()
    if reason:
        return reason
    try:
        of = limits(device)
    except RuntimeError as error:
        return str(error)
    return _too_old(of)


def _too_old(of: Limits) -> str | None:
    if of.capability >= (8, 0):
        return None
    return f"it needs compute capability 8.0, and this device has {'.'.join(map(str, of.capability))}"


def why_not(tier: str, of: Limits, dim: int, projection: int, *, lanes: int, steps: int, precision: str = "medium",
            resident: int | None = None, has_projection: bool | None = None) -> str | None:
    """None when tier `B` or `C` can run a layer of this shape on such a device, else the reason it cannot.

    `resident` is the blocks of tier C that the device holds at once (`resident_blocks`), when known; `has_projection`
    whether there is a W_P, by default when D and P differ.
    """
    if tier not in ("B", "C"):
        raise ValueError(f"tier: expected 'B' or 'C', got {tier!r}")
    reason = not_built()
    if reason:
        return reason
    if precision != "medium":
        return f"its operands are 16-bit, and precision is {precision!r}"
    if reason := _too_old(of):
        return reason
    if has_projection and dim == projection:
        return "it knows no projection to as many values as there are cells"
    if not lanes:
        return "there is no lane to run"
    if tier == "C" and steps < FEWEST_STEPS:
        return f"it pays from {FEWEST_STEPS} steps on, and there are {steps}"
    plan = native_module()[0].cuda_lstm_plan(tier == "C", dim, projection, of.native, lanes)
    if plan["reason"]:
        return f"{plan['reason']} ({of.processors} multiprocessors, {of.shared} bytes of shared memory in each)"
    if tier == "C" and resident is not None and resident < plan["blocks"]:
        return f"its {plan['blocks']} blocks must run at once, and the device holds {resident}"
    return None


@functools.cache
def resident_blocks(of: Limits, device: torch.device, dim: int, projection: int, lanes: int,
                    operand: str = "fp16") -> int:
    """Blocks of tier C that `device` holds at once; 0 when the layer cannot run there."""
    with torch.cuda.device(device):
        return native_module()[0].cuda_lstm_resident_blocks(dim, projection, operand_number(operand), of.native, lanes)
