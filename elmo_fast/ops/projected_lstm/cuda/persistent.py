"""The persistent kernel (csrc/projected_lstm_cuda.h): a cooperative launch for a block of steps of both directions."""

import functools
import logging
from collections.abc import Sequence

import torch
from torch.nn.functional import pad

from elmo_fast.engine.backend import native_module
from elmo_fast.ops import trial
from elmo_fast.ops.device import current_stream, on
from elmo_fast.ops.projected_lstm.cuda.blocks import Arena, Block, Operands
from elmo_fast.ops.projected_lstm.reference import State
from elmo_fast.ops.weight_cache import cached

MOST_SLOTS = 64  # most slots of a launch

_ALIGNMENT = 256  # bytes; alignment of scratch memory

_warn_once = functools.cache(logging.getLogger(__name__).warning)


@functools.cache
def limits(device: torch.device) -> tuple[int, int, int, int, int]:
    """Multiprocessors, shared memory per block, and most concurrent clusters of 8, 4 and 2 (`Device` in plan.h).

    Raises `RuntimeError` if the kernel cannot run there.
    """
    module, (major, minor) = native_module()[0], torch.cuda.get_device_capability(device)
    if not module.cuda_has_code_for(major):
        _warn_once("the CUDA driver translates the LSTM's kernels for compute capability %d.%d, which takes some 15 s "
                   "and is kept on disk", major, minor)
    with on(device):
        return tuple(module.cuda_device(device.index))


def lacks(device: torch.device) -> str | None:
    """None if `device` can run the kernel, else the reason against it, which the next call looks for again."""
    module, reason = native_module()
    if module is None:
        return reason
    if not module.has_cuda:
        return f"the native module was built without CUDA: {module.cuda_skipped}"
    if device.type != "cuda":
        return f"it runs on NVIDIA GPUs, and this is a {device.type}"
    capability = torch.cuda.get_device_capability(device)
    if capability < (8, 0):
        return f"it needs compute capability 8.0, and this device has {'.'.join(map(str, capability))}"
    try:
        limits(device)
    except RuntimeError as error:
        return str(error)
    return None


def does_not_fit(device: torch.device, dim: int, projection: int, slots: int) -> str | None:
    """None if a layer of D cells and P projected values fits on `device`, else the reason."""
    return plan(dim, projection, limits(device), min(slots, MOST_SLOTS))["reason"]


def why_not(device: torch.device, layer: Operands, slots: int) -> str | None:
    """None if the kernel can run `slots` slots of a layer on `device`, else the reason against it."""
    if layer.dtype != torch.float16:
        return "its operands are fp16, which 'medium' has where weights and clips bound them"
    if layer.for_one_call:
        return "its packed weights cannot be cached between calls: the model was made in inference mode"
    return (lacks(device) or does_not_fit(device, layer.dim, layer.projection, slots)
            or trial.trials.why_not(device, family_of(layer.dim, layer.projection)))


def family_of(dim: int, projection: int) -> str:
    """The name of a size's kernels in the trial."""
    return f"persistent {dim} {projection}"


@functools.cache
def plan(dim: int, projection: int, native: tuple[int, ...], slots: int) -> dict:
    """The kernel's plan for a layer on a device; its `reason` is None, or says why the layer cannot run."""
    return native_module()[0].cuda_lstm_plan(dim, projection, native, slots)


def pack(layer: Operands) -> torch.Tensor:
    """Pack w_h, B and W_P of both directions in the layout of plan.h, in fp16: uint8 [2, bytes]."""
    units, tiles = -(-layer.dim // 16), -(-layer.projection // 16)
    more_cells, more_values = 16 * units - layer.dim, 16 * tiles - layer.projection
    # In a tile, a register of a thread holds row 8 low + thread / 4, columns 4 (thread % 4) + 2 high and the next.
    gates = pad(layer.w_h.unflatten(2, (4, -1)), (0, more_cells, 0, 0, 0, more_values))
    gates = gates.view(2, tiles, 4, 2, 2, 2, 2, units, 2, 8).permute(0, 7, 8, 1, 5, 9, 2, 3, 6, 4)
    bias = pad(layer.bias.unflatten(1, (4, -1)), (0, more_cells)).view(2, 4, units, 2, 8).permute(0, 2, 3, 1, 4)
    values = pad(layer.w_p, (0, more_values, 0, more_cells))
    values = values.view(2, units, 4, 2, 2, tiles, 2, 8).permute(0, 5, 1, 7, 2, 3, 6, 4)
    gates, bias, values = (part.contiguous().view(torch.uint8) for part in (gates, bias, values))
    unit_records = torch.cat([gates.view(2, units, -1), bias.view(2, units, -1)], 2)
    return torch.cat([unit_records.flatten(1), values.flatten(1)], 1)


def launch(arena: Arena, layer: Operands, clips: tuple[float, float], has_starts: bool, block: Block,
           arrays: Sequence[torch.Tensor], state: State, out: torch.Tensor) -> bool:
    """Queue a block of steps on an arena, whose lock the caller holds; False, after a warning, if CUDA refuses it.

    `clips` of the cell and the projection; `arrays` as in `Steps.run`. Updates `state` (h [2, all slots, P], c [2, all
    slots, D]) and writes the block's rows of `out` [all packed rows + 1, 2 P] in place.
    """
    device = arena.device
    packed = cached((layer.w_h,), "lstm persistent", lambda _: pack(layer))
    size = plan(layer.dim, layer.projection, limits(device), block.slots)["scratch_bytes"]
    scratch = torch.empty(size + _ALIGNMENT, dtype=torch.uint8, device=device)  # reused in stream order
    (meta, packed_rows, batch_sizes), (h, c) = arrays, (part[:, block.slot :] for part in state)
    h_in, c_in = (part[:, : block.slots].clone(memory_format=torch.contiguous_format) for part in (h, c))
    tensors = dict(packed=packed, z=arena.z, scale=arena.scale, meta=meta, packed_rows=packed_rows,
                   batch_sizes=batch_sizes, h_in=h_in, c_in=c_in, h=h, c=c, output=out,
                   initial_h=arena.initial_h if has_starts else None, initial_c=arena.initial_c if has_starts else None,
                   scratch=scratch[-scratch.data_ptr() % _ALIGNMENT :])
    try:
        native_module()[0].cuda_lstm_run(
            **{name: 0 if tensor is None else tensor.data_ptr() for name, tensor in tensors.items()}, dim=layer.dim,
            projection=layer.projection, device=limits(device), steps=block.steps, slots=block.slots,
            stride=block.bucket, state_stride=state[0].shape[1], cell_clip=clips[0], proj_clip=clips[1],
            device_index=device.index or 0, stream=current_stream(device))
    except RuntimeError as error:
        _warn_once("the LSTM runs in CUDA graphs where the persistent kernel does not start: a launch was refused on "
                   "%s (%s)", device, str(error))
        return False
    return True
