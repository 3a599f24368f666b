"""Report versions, processor and GPUs of this machine, and the backend of every op.

torch, whose import takes seconds, is imported only where it may see a GPU.
"""

import platform
import sys
from typing import TYPE_CHECKING

from elmo_fast.arguments import SIZES
from elmo_fast.engine.backend import native_build, runs_as, supports_precision
from elmo_fast.engine.precision import PRECISIONS
from elmo_fast.environment import affinity, cores, cpu_quota, may_have_gpu, version
from elmo_fast.ops import trial
from elmo_fast.ops.backend import OPS, why_no_triton

if TYPE_CHECKING:
    import torch

_PACKAGES = ("elmo-fast", "torch", "triton", "numpy", "h5py", "pooch", "fsspec", "tqdm")


def report(gpu: bool = False) -> list[str]:
    """Lines on versions, processor, GPUs, and for every op the backend in use and why faster backends are not.

    With `gpu`, first waits for the trials of all GPU kernels, of the LSTM's in the sizes of published models.
    """
    devices = _gpu_devices()
    if gpu:
        with trial.waiting():
            for device in devices:
                for family in _families(device):
                    trial.trials.why_not(device, family)
    versions = {name: version(name) for name in _PACKAGES}
    if "torch" in sys.modules:
        versions["torch"] = sys.modules["torch"].__version__  # with its build: +cu130
    of_gpus = [line for device in devices
               for line in (*_gpu_backends(device), *lstm_lines(device), *_trial_lines(device))]
    return [f"Python       {platform.python_version()} on {platform.system()} {platform.machine()}",
            "packages     " + ", ".join(f"{name} {number}" for name, number in versions.items()),
            *_processor(), *_gpus(devices), *_backends(), *of_gpus]


def _gpu_devices() -> list["torch.device"]:
    """The GPUs that torch can use; torch is not imported if it is a build for CPUs, or there is no NVIDIA driver."""
    if "torch" not in sys.modules and not may_have_gpu():
        return []
    import torch

    return [torch.device("cuda", index) for index in range(torch.cuda.device_count())]


def lstm_lines(device: "torch.device") -> list[str]:
    """Lines on the LSTM's two paths on a GPU. Launches nothing."""
    triton = why_no_triton(device)
    kernels = "Triton" if not triton else f"torch operations: {triton}"
    return [f"LSTM graph   runs, its small kernels {kernels} ({device})",
            f"LSTM persistent  {_persistent(device)} ({device})"]


def _trial_lines(device: "torch.device") -> list[str]:
    return [f"trial        {family}: {trial.trials.describe(device, family)} ({device})"
            for family in _families(device)]


def _families(device: "torch.device") -> list[str]:
    """The families of kernels that `device` can run."""
    from elmo_fast.ops.projected_lstm.cuda import persistent

    of_triton = [] if why_no_triton(device) else ["char_cnn", "highway", "pointwise"]
    sizes = [] if persistent.lacks(device) else [
        (dim, projection) for dim, projection, _ in SIZES.values()
        if not persistent.does_not_fit(device, dim, projection, 1)]
    return [*of_triton, "captures", *(persistent.family_of(*size) for size in sizes)]


def _persistent(device: "torch.device") -> str:
    from elmo_fast.ops.projected_lstm.cuda import persistent

    if reason := persistent.lacks(device):
        return f"not there: {reason}"
    unfit = [f"{dim} cells: {reason}" for dim, projection, _ in SIZES.values()
             if (reason := persistent.does_not_fit(device, dim, projection, persistent.MOST_SLOTS))]
    return f"runs in 'medium' for up to {persistent.MOST_SLOTS} slots" + "".join(f"; not for {each}" for each in unfit)


def _processor() -> list[str]:
    module, reason = native_build()
    quota = cpu_quota()
    limits = f"{affinity()} processors to run on, and {'no quota' if quota is None else f'a quota of {quota:g}'}"
    if "torch" in sys.modules:
        number = sys.modules["torch"].get_num_threads()
        threads = f"threads      {min(number, cores())}: the least of PyTorch's {number}, {limits}"
    else:
        threads = f"threads      at most {cores()}: the least of PyTorch's or OMP_NUM_THREADS, {limits}"
    if module is None:
        return [threads, f"native       not there: {reason}"]
    return [threads, f"native       loaded; instruction set {module.cpu_isa()}{_other_engines(module)}",
            f"precision    {precisions_here()}"]


def precisions_here() -> str:
    """What every precision runs as on this CPU."""
    return "; ".join(f"{name} runs as {_runs_as(name)}" for name in PRECISIONS)


def _runs_as(precision: str) -> str:
    needs = PRECISIONS[precision].needs
    return runs_as(precision) + (f" (it needs {needs})" if needs and not supports_precision(precision) else "")


def _other_engines(module) -> str:
    """The engines of the build that this processor cannot run, and the features that it lacks for them."""
    features_present = module.cpu_features()
    lacking = {isa: [name for name, needed in features.items() if needed and not features_present[name]]
               for isa, features in module.engines().items()}
    if "amx" in lacking and not lacking["amx"] and not module.amx_permitted():
        lacking["amx"] = ["the system's permission"]
    return "".join(f"; {isa} needs {', '.join(names)}" for isa, names in lacking.items() if names)


def _gpus(devices: list["torch.device"]) -> list[str]:
    if not devices:
        return ["GPU          none that torch can use"]
    import torch

    found = [torch.cuda.get_device_properties(device) for device in devices]
    return [f"GPU {index}        {gpu.name}, sm_{gpu.major}{gpu.minor}, {gpu.total_memory / 2**30:.0f} GiB"
            for index, gpu in enumerate(found)]


def _gpu_backends(device: "torch.device") -> list[str]:
    triton = why_no_triton(device)
    of_triton = f"torch (native: {triton})" if triton else "native, after its trial"
    return [f"{device!s:<12} {op} runs on {'native' if op == 'projected_lstm' else of_triton}" for op in OPS]


def _backends() -> list[str]:
    on_cpu = "torch (native: not there)" if native_build()[0] is None else "native"  # another line says why
    return [f"{'cpu':<12} {op} runs on {on_cpu}" for op in OPS]
