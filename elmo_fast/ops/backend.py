"""Which implementation of an op runs: the one place that decides, and can say why."""

import functools
import importlib
import logging
import os

import torch

BACKENDS = ("auto", "reference", "torch", "native")
OPS = ("char_cnn", "highway", "projected_lstm")

LADDER = ("native", "torch", "reference")
_NO_KERNEL = "this op has no native kernel for {device}"
_NATIVE_KERNELS: dict[str, frozenset[str]] = {op: frozenset() for op in OPS}

logger = logging.getLogger(__name__)


def check_backend(backend: str) -> str:
    """The argument itself, or `ValueError` when it is none of `BACKENDS`."""
    if backend not in BACKENDS:
        raise ValueError(f"backend: expected one of {', '.join(BACKENDS)}, got {backend!r}")
    return backend


def resolve(op: str, backend: str, device: torch.device) -> str:
    """The backend that runs `op` on `device`: `reference`, `torch` or `native`.

    `auto` takes the fastest that is there and logs once what it passed over. A backend asked for by name that
    is not there raises `RuntimeError` with the reason.
    """
    if backend != "auto":
        reason = why_not(op, check_backend(backend), device)
        if reason:
            raise RuntimeError(f"backend: {backend!r} was asked for {op} and is not available: {reason}")
        return backend
    for candidate in LADDER:
        reason = why_not(op, candidate, device)
        if not reason:
            return candidate
        _log_once(op, candidate, reason)
    raise AssertionError("the reference runs everywhere")


def why_not(op: str, backend: str, device: torch.device) -> str | None:
    """None when `backend` can run `op` on `device`, else the reason it cannot."""
    if backend != "native":
        return None
    if device.type not in _NATIVE_KERNELS[op]:
        return _NO_KERNEL.format(device=device.type)
    return native_module()[1] if device.type == "cpu" else None


@functools.cache
def native_module():
    """The compiled module and None, or None and the reason it is not used."""
    if os.environ.get("ELMO_FAST_NO_NATIVE") == "1":
        return None, "ELMO_FAST_NO_NATIVE=1 is set"
    try:
        return importlib.import_module("elmo_fast._native"), None
    except ImportError as error:
        return None, _build_record() or f"the native module cannot be loaded ({error})"


def _build_record() -> str | None:
    try:
        return importlib.import_module("elmo_fast._build_info").NATIVE_SKIPPED
    except (ImportError, AttributeError):
        return None


@functools.cache
def _log_once(op: str, backend: str, reason: str) -> None:
    logger.info("%s: backend %r is passed over: %s", op, backend, reason)
