"""Choose the implementation of an op, and say why a faster implementation cannot run.

Importing this module does not import torch: `elmo-fast doctor` and `info` read it.
"""

import functools
import importlib.util
import logging
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from elmo_fast.arguments import BACKENDS, check_choice
from elmo_fast.environment import install_line
from elmo_fast.ops.precision import PRECISIONS

if TYPE_CHECKING:
    import torch

OPS = ("char_cnn", "highway", "linear", "projected_lstm")
LADDER = ("native", "torch", "reference")

_TRITON_CAPABILITY = 8, 0  # the oldest GPU that the Triton kernels are built for
# The first Triton that can be used, and the torch that brings it: 3.4 keeps the tiles that it has timed
# (`cache_results`); on compute capability 10 older ones than 3.6 fail to compile the char-CNN.
_TRITON, _TRITON_ON_10 = ((3, 4), "2.8"), ((3, 6), "2.10")

logger = logging.getLogger(__name__)
log_once = functools.cache(logger.info)
check_backend = functools.partial(check_choice, "backend", choices=BACKENDS)


def resolve(op: str, backend: str, *tensors: "torch.Tensor", unsupported: str | None = None) -> str:
    """The backend that runs `op` on `tensors`, its operands: `reference`, `torch` or `native`.

    `auto` takes the fastest backend that can run the call and logs once why faster backends cannot. A backend that
    is asked for by name and cannot run the call raises `RuntimeError` with the reason. `unsupported` names the feature
    of this call that the native kernels do not support.
    """
    if backend != "auto":
        reason = why_not(op, check_backend(backend), tensors, unsupported)
        if reason:
            raise RuntimeError(f"backend: {backend!r} was asked for {op} and is not available: {reason}")
        return backend
    for candidate in LADDER:
        reason = why_not(op, candidate, tensors, unsupported)
        if not reason:
            return candidate
        log_once(f"{op}: backend {candidate!r} is passed over: {reason}")
    raise RuntimeError(f"backend: expected one that can run {op}, got none: {reason}")


def why_not(op: str, backend: str, tensors: "Sequence[torch.Tensor]", unsupported: str | None = None) -> str | None:
    """The reason why `backend` cannot run `op` on `tensors`, or None when it can."""
    import torch

    if backend != "native":
        is_dropped = any(tensor.is_meta for tensor in tensors) and not all(tensor.is_meta for tensor in tensors)
        return "the fp32 weights were dropped (drop_fp32); read the model again" if is_dropped else None
    device = tensors[0].device.type
    if device not in ("cpu", "cuda"):
        return f"this op has no native kernel for {device}"
    if unsupported:
        return f"the native kernels do not support {unsupported}"
    if any(tensor.dtype == torch.float64 for tensor in tensors):
        return "the native kernels compute in float32, and an operand is float64"
    if device == "cuda" and op != "projected_lstm":
        return why_no_triton(tensors[0].device)
    if needs_gradient(tensors) and any(tensor.dtype != torch.float32 for tensor in tensors):
        return "the native kernels have gradients in float32 only, and an operand is of another type"
    return native_module()[1] if device == "cpu" else None


def needs_gradient(tensors: "Sequence[torch.Tensor]") -> bool:
    """Whether autograd records a call on these operands."""
    import torch

    return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)


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
        return f"triton cannot be imported ({error}); {install_line('triton')} brings it"
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


@functools.cache
def native_module():
    """The compiled module and None, or None and the reason why the module is not used. It uses PyTorch's threads."""
    module, reason = native_build()
    if module is not None:
        module.use_openmp_threads()
    return module, reason


@functools.cache
def native_build():
    """As `native_module`, for questions about this machine: nothing is computed, so torch need not be loaded."""
    if os.environ.get("ELMO_FAST_NO_NATIVE") == "1":
        return None, "ELMO_FAST_NO_NATIVE=1 is set"
    try:
        return importlib.import_module("elmo_fast._native"), None
    except ImportError as error:
        try:
            skipped = importlib.import_module("elmo_fast._build_info").NATIVE_SKIPPED
        except (ImportError, AttributeError):
            skipped = None
        root = Path(__file__).parents[2]
        is_missing = isinstance(error, ModuleNotFoundError) and error.name == "elmo_fast._native"
        if is_missing and not skipped and (root / "setup.py").exists():
            skipped = (f"{root} has the sources, without the module: start Python elsewhere to use an installed "
                       "elmo-fast, or install this one (pip install -e .)")
            logger.warning("the native module is not used: %s", skipped)
        return None, skipped or f"the native module cannot be loaded ({error})"


def number_of(precision: str) -> int:
    """The engine's number of a precision."""
    return native_build()[0].precisions[precision]


def supports_precision(precision: str) -> bool:
    """Whether the engine has kernels for `precision` on this machine."""
    module = native_build()[0]
    return module is not None and precision in module.precisions and bool(module.lstm_isa(number_of(precision)))


def effective_precision(precision: str) -> str:
    """`precision`, or `highest` where the processor does not support it, which is logged once."""
    if supports_precision(precision):
        return precision
    log_once(f"precision {precision!r} runs as 'highest': this processor has no {PRECISIONS[precision].needs}")
    return "highest"


def runs_as(precision: str) -> str:
    """What the engine computes where `precision` is asked for, in words: `medium` has two kinds of products."""
    if not supports_precision(precision):
        return "highest"
    module = native_build()[0]
    has_products = module.lstm_isa(number_of(precision)) != module.lstm_isa(number_of("highest"))
    return precision if precision != "medium" or has_products else "medium (weights in bf16, products in fp32)"
