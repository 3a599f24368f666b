"""What this machine offers, and which backend each op would use."""

import importlib.metadata
import os
import platform

import torch

from elmo_fast.ops import cuda_limits, cuda_tiers
from elmo_fast.ops.backend import LADDER, OPS, native_module, resolve, why_not
from elmo_fast.ops.native_cpu import runs_precision
from elmo_fast.ops.precision import PRECISIONS
from elmo_fast.ops.stepwise_lstm import why_no_triton

_PACKAGES = ("elmo-fast", "torch", "triton", "numpy", "h5py", "fsspec", "tqdm")
_PUBLISHED = ((1024, 128), (2048, 256), (4096, 512))  # cells and projected values of the published models


def report() -> list[str]:
    """Lines on versions, processor, GPUs, and for every op the backend in use and why faster ones are not."""
    devices = [torch.device("cuda", index) for index in range(torch.cuda.device_count())]
    return [*_versions(), *_processor(), *_gpus(), *_backends(), *(line for each in devices for line in tier_lines(each))]


def tier_lines(device: torch.device) -> list[str]:
    """Lines on the LSTM's tiers on a GPU, and on what A's small kernels are. Launches nothing."""
    triton = why_no_triton(device)
    steps = f"LSTM steps   {'Triton kernels' if not triton else 'torch operations: ' + triton} ({device})"
    return [*(f"LSTM tier {tier}  {_tier(tier, device)} ({device})" for tier in cuda_tiers.TIERS), steps, *_forced_tier()]


def _tier(tier: str, device: torch.device) -> str:
    if tier == "A":
        return "runs"
    if reason := cuda_tiers.why_not(tier, device):
        return f"not there: {reason}"
    of, lanes = cuda_limits.limits(device), 8
    unfit = [f"{dim} cells: {reason}" for dim, projection in _PUBLISHED
             if (reason := cuda_limits.why_not(tier, of, dim, projection, lanes=lanes, steps=cuda_limits.FEWEST_STEPS))]
    return "runs in 'medium', after a self-test at first use" + "".join(f"; not for {each}" for each in unfit)


def _forced_tier() -> list[str]:
    forced = os.environ.get(cuda_tiers.VARIABLE)
    return [f"LSTM tier    {cuda_tiers.VARIABLE}={forced} is set: no other is taken"] if forced else []


def _versions() -> list[str]:
    found = {name: _version(name) for name in _PACKAGES}
    return [f"Python       {platform.python_version()} on {platform.system()} {platform.machine()}",
            "packages     " + ", ".join(f"{name} {version}" for name, version in found.items())]


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _processor() -> list[str]:
    module, reason = native_module()
    threads = f"threads      {torch.get_num_threads()}"
    if module is None:
        return [threads, f"native       not there: {reason}"]
    features = [name for name, there in module.cpu_features().items() if there]
    return [threads, f"native       loaded; instruction set {module.cpu_isa()}",
            f"features     {', '.join(features) or 'none that matter'}",
            "precision    " + "; ".join(f"{name} runs as {_runs_as(name)}" for name in PRECISIONS)]


def _runs_as(precision: str) -> str:
    return precision if runs_precision(precision) else "highest (16-bit products need AMX)"


def _gpus() -> list[str]:
    if not torch.cuda.is_available():
        return ["GPU          none that torch can use"]
    names = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
    return [f"GPU {index}        {each.name}, sm_{each.major}{each.minor}, {each.total_memory / 2**30:.0f} GiB"
            for index, each in enumerate(names)]


def _backends() -> list[str]:
    lines = []
    devices = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
    for device in map(torch.device, devices):
        operand = torch.empty(0, device=device)
        for op in OPS:
            chosen = resolve(op, "auto", operand)
            passed = [f"{name}: {why_not(op, name, [operand])}" for name in LADDER[: LADDER.index(chosen)]]
            lines.append(f"{device.type:<12} {op} runs on {chosen}" + (f" ({'; '.join(passed)})" if passed else ""))
    return lines
