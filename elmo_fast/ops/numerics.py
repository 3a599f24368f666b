"""Apply a `precision` to plain torch operations, regardless of the process-wide flags and autocast."""

import contextlib
import contextvars
import threading
from collections.abc import Callable

import torch

from elmo_fast.engine.precision import OPERANDS, PRECISIONS
from elmo_fast.ops.device import refuse_meta

if hasattr(torch._C, "_get_fp32_precision_getter"):
    FP32_FLAGS = (("cuda", "matmul"), ("mkldnn", "matmul"))
    fp32_precision, set_fp32_precision = torch._C._get_fp32_precision_getter, torch._C._set_fp32_precision_setter
else:  # before torch 2.9 a single setting applied to every library
    FP32_FLAGS = (("cuda", "matmul"),)
    _WORDS = {"ieee": "highest", "tf32": "high", "bf16": "medium"}

    def fp32_precision(*_) -> str:
        return next(value for value, word in _WORDS.items() if word == torch.get_float32_matmul_precision())

    def set_fp32_precision(_library: str, _op: str, value: str) -> None:
        torch.set_float32_matmul_precision(_WORDS[value])


_active = contextvars.ContextVar("precision", default="highest")
_lock = threading.Lock()
_holders: list[str] = []  # the value of torch's flags that every open `numerics` asks for
_before: dict[tuple[str, str], str] = {}  # the flags' values before the first `numerics` was opened


def full_precision(value: torch.Tensor | None) -> torch.Tensor | None:
    """`value` in the type to compute in: float32 for 16-bit parameters, else unchanged."""
    return value.float() if value is not None and value.dtype in (torch.float16, torch.bfloat16) else value


def type_of(operands: str) -> torch.dtype:
    """The type that holds `operands` of `precision.OPERANDS`."""
    return getattr(torch, OPERANDS[operands].dtype)


@contextlib.contextmanager
def numerics(precision: str, device: torch.device):
    """Run the body's matrix products in `precision` on `device`.

    `highest` is IEEE fp32 (or fp64 where the operands are). On CUDA `high` permits tf32 and `medium` runs
    products on bf16 operands. On the CPU plain torch computes both as `highest`. Autocast around the call
    has no effect.
    """
    refuse_meta(device)
    operands = PRECISIONS[precision].gpu if device.type == "cuda" else "ieee"
    token = _active.set(precision)
    try:
        with _held("tf32" if operands == "tf32" else "ieee"), _autocast(device.type, operands == "bf16"):
            yield
    finally:
        _active.reset(token)


def _autocast(device: str, enabled: bool) -> contextlib.AbstractContextManager:
    if not enabled and not torch.is_autocast_enabled(device):
        return contextlib.nullcontext()
    return torch.autocast(device, dtype=torch.bfloat16, enabled=enabled)


def gemm(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> None:
    """out = a b for matrices or batches of matrices; sums are fp32 for every operand type."""
    product = torch.mm if a.dim() == 2 else torch.bmm
    if a.dtype != torch.float32 and not _has_fp32_results(a.device):
        out.copy_(product(a.float(), b.float()))
    elif out.dtype == a.dtype:
        product(a, b, out=out)
    else:
        product(a, b, out_dtype=out.dtype, out=out)


def _has_fp32_results(device: torch.device) -> bool:
    """Whether torch's products of 16-bit operands have fp32 results: on GPUs since 2.8 (`out_dtype`)."""
    return device.type == "cuda" and torch.__version__ >= (2, 8)


def gradient_numerics(precision: str, device: torch.device):
    """The `numerics` of gradients: tf32 where products have 16-bit operands, which stays close to the true values."""
    return numerics("highest" if PRECISIONS[precision].gpu == "ieee" else "high", device)


def active_precision() -> str:
    """The precision of the innermost `numerics` around the call, `highest` outside of any."""
    return _active.get()


@contextlib.contextmanager
def _held(wanted: str):
    """Hold torch's process-wide fp32 matmul precision while any thread needs it, then restore it.

    When threads disagree, the strictest value applies. A flag that already means IEEE is not changed.
    """
    _change(_holders.append, wanted)
    try:
        yield
    finally:
        _change(_holders.remove, wanted)


def _change(edit: Callable[[str], None], wanted: str) -> None:
    with _lock:
        if not _holders:
            _before.update((flag, fp32_precision(*flag)) for flag in FP32_FLAGS)
        edit(wanted)
        for flag, before in _before.items():
            value = before if not _holders or before == "none" else "ieee"
            if _holders and "ieee" not in _holders and flag[0] == "cuda":
                value = "tf32"
            if fp32_precision(*flag) != value:
                set_fp32_precision(*flag, value)
