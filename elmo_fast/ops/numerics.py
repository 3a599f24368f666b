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


_REDUCED = "tf32", "bf16"  # values of the flags that are not IEEE
# Settings that let cuBLAS sum products of 16-bit operands in 16 bits, or refuse fp32 results; torch 2.6 lacks the
# first.
_SUMS_IN_16_BITS = tuple(name for name in ("allow_fp16_accumulation", "allow_fp16_reduced_precision_reduction",
                                           "allow_bf16_reduced_precision_reduction")
                         if hasattr(torch._C, f"_get_cublas_{name}"))

_active = contextvars.ContextVar("precision", default="highest")
_lock = threading.Lock()
_holders: list[tuple[str, str]] = []  # the value of torch's flags that every open `numerics` asks for, and its device
_before: dict = {}  # values before the first `numerics` was opened: of flags, of "older", and of cuBLAS's settings


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
        with _held("tf32" if operands == "tf32" else "ieee", device.type), _autocast(device.type, operands == "bf16"):
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
def _held(wanted: str, device: str):
    """Hold torch's process-wide settings of matrix products while any thread needs them, then restore them.

    When threads disagree, the strictest value applies. A setting that already has the value is not changed.
    """
    _change(_holders.append, (wanted, device))
    try:
        yield
    finally:
        _change(_holders.remove, (wanted, device))


def _change(edit: Callable[[tuple[str, str]], None], holder: tuple[str, str]) -> None:
    with _lock:
        if not _holders:
            _before.update((flag, fp32_precision(*flag)) for flag in FP32_FLAGS)
            _before.update(older=_older_setting())
            _before.update((name, _sums_of(name)) for name in _SUMS_IN_16_BITS)
        edit(holder)
        wanted, devices = map(set, zip(*_holders)) if _holders else (set(), set())
        _set_flags("ieee" if "ieee" in wanted else "tf32" if wanted else None)
        for name in _SUMS_IN_16_BITS:
            before = _before[name]
            value = (False, *before[1:]) if "cuda" in devices else before
            if _sums_of(name) != value:
                getattr(torch._C, f"_set_cublas_{name}")(*value)


def _sums_of(name: str) -> tuple[bool, ...]:
    """The value of a setting of `_SUMS_IN_16_BITS`, in newer versions of torch with whether sums may be split."""
    value = getattr(torch._C, f"_get_cublas_{name}")()
    return value if isinstance(value, tuple) else (value,)


def _older_setting() -> str | None:
    """`torch.get_float32_matmul_precision()`; None where the flags contradict it, which makes torch's getters raise."""
    try:
        torch._C._get_cublas_allow_tf32()
        return torch.get_float32_matmul_precision()
    except RuntimeError:
        return None


def _set_flags(wanted: str | None) -> None:
    """Set torch's flags to `ieee`, to `tf32` on CUDA and otherwise IEEE, or for None to the values before.

    Where the older settings agree with the flags they are set in their place, so that other threads can read both at
    any moment. Of the older ones, `set_float32_matmul_precision` sets the CPU's flag as well.
    """
    older, values = _before["older"], {flag: fp32_precision(*flag) for flag in FP32_FLAGS}
    if wanted == "tf32":
        is_set = values["cuda", "matmul"] in _REDUCED
    else:
        targets = _before if wanted is None else dict.fromkeys(values, "ieee")
        is_set = all(value == targets[flag] or not {value, targets[flag]} & {*_REDUCED}
                     for flag, value in values.items())
    if older and not is_set:
        word = {"ieee": "highest", "tf32": "high", None: older}[wanted]
        if _before.get(("mkldnn", "matmul"), "tf32") in _REDUCED:
            torch.set_float32_matmul_precision(word)
        else:
            torch._C._set_cublas_allow_tf32(word != "highest")
    for flag in FP32_FLAGS:
        before = _before[flag]
        value = before if wanted is None or before == "none" else "ieee"
        if wanted == "tf32" and flag[0] == "cuda":
            value = "tf32"
        if (wanted is None or not older) and fp32_precision(*flag) != value:
            set_fp32_precision(*flag, value)
