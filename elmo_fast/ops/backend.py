"""Choose the implementation of an op, and say why a faster implementation cannot run.

Importing this module does not import torch: `elmo-fast doctor` and `info` read it.
"""

import functools
import importlib.util
import subprocess
from collections.abc import Sequence
from typing import TYPE_CHECKING

from elmo_fast.engine.backend import check_backend, log_once, native_module
from elmo_fast.environment import install_line
from elmo_fast.ops import trial

if TYPE_CHECKING:
    import torch

OPS = ("char_cnn", "highway", "linear", "projected_lstm")

_TRITON_CAPABILITY = 8, 0  # the oldest GPU that the Triton kernels are built for
# The first Triton that tests run, and the torch that brings it; on compute capability 10 older ones than 3.6 fail to
# compile the char-CNN.
_TRITON, _TRITON_ON_10 = ((3, 4), "2.8"), ((3, 6), "2.10")


def resolve(op: str, backend: str, *tensors: "torch.Tensor", unsupported: str | None = None) -> str:
    """The backend that runs `op` on `tensors`, its operands: `reference`, `torch` or `native`.

    `auto` takes the native kernels if they can run the call, and otherwise torch, and logs once why. A backend that
    is asked for by name and cannot run the call raises `RuntimeError` with the reason. `unsupported` names the feature
    of this call that the native kernels do not support.
    """
    if check_backend(backend) in ("reference", "torch"):
        return backend
    reason = why_not_native(op, tensors, unsupported)
    if reason and backend == "native":
        raise RuntimeError(f"backend: 'native' was asked for {op} and is not available: {reason}")
    if reason:
        log_once(f"{op}: backend 'native' is passed over: {reason}")
    return "torch" if reason else "native"


def why_not_native(op: str, tensors: "Sequence[torch.Tensor]", unsupported: str | None = None) -> str | None:
    """The reason why the native kernels cannot run `op` on `tensors`, or None when they can."""
    import torch

    device = tensors[0].device.type
    if device not in ("cpu", "cuda"):
        return f"this op has no native kernel for {device}"
    if unsupported:
        return f"the native kernels do not support {unsupported}"
    if any(tensor.dtype == torch.float64 for tensor in tensors):
        return "the native kernels compute in float32, and an operand is float64"
    if device == "cuda" and op != "projected_lstm":
        return why_no_triton(tensors[0].device) if op == "linear" else why_no_kernel(tensors[0].device, op)
    if needs_gradient(tensors) and any(tensor.dtype != torch.float32 for tensor in tensors):
        return "the native kernels have gradients in float32 only, and an operand is of another type"
    return native_module()[1] if device == "cpu" else None


def needs_gradient(tensors: "Sequence[torch.Tensor]") -> bool:
    """Whether autograd records a call on these operands."""
    import torch

    return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)


def why_no_kernel(device: "torch.device", family: str) -> str | None:
    """The reason why a family of Triton kernels does not run on `device`, or None when it does."""
    return why_no_triton(device) or trial.trials.why_not(device, family)


@functools.cache
def why_no_triton(device: "torch.device") -> str | None:
    """The reason why the Triton kernels cannot run on `device`, or None when they can."""
    if device.type != "cuda":
        return f"Triton has no kernels for {device.type}"
    import torch

    capability = torch.cuda.get_device_capability(device)
    if capability < _TRITON_CAPABILITY:
        return (f"the Triton kernels need a GPU of compute capability {_TRITON_CAPABILITY[0]}.{_TRITON_CAPABILITY[1]} "
                f"or newer, and this one has {capability[0]}.{capability[1]}")
    try:
        version = triton_version()
    except ImportError as error:
        return f"triton cannot be imported ({error}); {install_line('gpu')} brings it"
    if importlib.util.find_spec("elmo_fast.kernels") is None:
        return "this is a checkout that is not installed, which has no package elmo_fast.kernels: pip install -e ."
    needed, torch_version = _TRITON_ON_10 if capability[0] == 10 else _TRITON
    if version < needed:
        return (f"the Triton kernels need Triton {needed[0]}.{needed[1]} or newer on this GPU, which torch "
                f"{torch_version} brings, and this is {version[0]}.{version[1]}")
    try:
        importlib.import_module("triton").runtime.driver.active.utils  # noqa: B018 (compiled at first use)
    except (RuntimeError, OSError, ImportError, subprocess.CalledProcessError) as error:
        return f"Triton cannot build its launcher, which needs a C compiler and Python.h ({error})"
    return None


def triton_version() -> tuple[int, int]:
    """Major and minor version; `ImportError` without Triton."""
    major, minor = importlib.import_module("triton").__version__.split(".")[:2]
    return int(major), int(minor)
