"""The native module: whether it is there, why not, and which precisions it computes in here."""

import functools
import importlib
import logging
from pathlib import Path

from elmo_fast.arguments import BACKENDS, check_choice
from elmo_fast.engine.precision import PRECISIONS
from elmo_fast.environment import is_set

logger = logging.getLogger(__name__)
log_once = functools.cache(logger.info)
check_backend = functools.partial(check_choice, "backend", choices=BACKENDS)


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
    if is_set("ELMO_FAST_NO_NATIVE"):
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
