"""Collects the facts about a machine that decide a timing, without host names and paths."""

import platform
import re
import sys
from pathlib import Path
from types import ModuleType

import numpy as np

from elmo_fast.environment import cores, version


def _cpu() -> dict:
    text = Path("/proc/cpuinfo").read_text(encoding="utf-8") if Path("/proc/cpuinfo").exists() else ""
    model = re.search(r"model name\s*: (.*)", text)
    flags = set(re.search(r"flags\s*: (.*)", text).group(1).split()) if "flags" in text else set()
    features = ("avx2", "fma", "avx512f", "avx512_vnni", "avx512_bf16", "amx_tile", "amx_bf16")
    return {
        "model": model.group(1) if model else platform.processor() or platform.machine(),
        "cores": cores(),
        "features": [name for name in features if name in flags],
    }


def _gpu(torch: ModuleType | None) -> dict | None:
    if torch is None or not torch.cuda.is_available():
        return None
    facts = torch.cuda.get_device_properties(0)
    return {
        "name": facts.name,
        "capability": f"{facts.major}.{facts.minor}",
        "multiprocessors": facts.multi_processor_count,
        "memory_gib": round(facts.total_memory / 2**30, 1),
        "l2_mib": round(getattr(facts, "L2_cache_size", 0) / 2**20, 1),
    }


def machine() -> dict:
    """Return the facts that decide a timing, without host names and paths; those of torch where it is imported."""
    torch = sys.modules.get("torch")
    return {
        "cpu": _cpu(),
        "gpu": _gpu(torch),
        "python": platform.python_version(),
        "torch": torch and torch.__version__,
        "torch_threads": torch and torch.get_num_threads(),
        "cuda": torch and torch.version.cuda,
        "cudnn": torch and torch.backends.cudnn.version(),
        "triton": version("triton"),
        "numpy": np.__version__,
    }
