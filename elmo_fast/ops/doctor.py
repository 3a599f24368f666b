"""Report versions, processor and GPUs of this machine, and the backend of every op."""

import os
import platform

import torch

from elmo_fast.arguments import SIZES
from elmo_fast.environment import affinity, cores, cpu_quota, version
from elmo_fast.ops import choices
from elmo_fast.ops.backend import LADDER, OPS, native_module, resolve, why_no_triton, why_not
from elmo_fast.ops.cpu import runs_as, supports_precision
from elmo_fast.ops.precision import PRECISIONS
from elmo_fast.ops.projected_lstm.cuda import choice, persistent

_PACKAGES = ("elmo-fast", "torch", "triton", "numpy", "h5py", "fsspec", "tqdm")


def report() -> list[str]:
    """Lines on versions, processor, GPUs, and for every op the backend in use and why faster backends are not."""
    versions = {name: version(name) for name in _PACKAGES} | {"torch": torch.__version__}  # with its build: +cpu
    devices = [torch.device("cuda", index) for index in range(torch.cuda.device_count())]
    lstm = (line for device in devices for line in lstm_lines(device))
    return [f"Python       {platform.python_version()} on {platform.system()} {platform.machine()}",
            "packages     " + ", ".join(f"{name} {number}" for name, number in versions.items()),
            *_processor(), *_gpus(), *_backends(), *lstm]


def lstm_lines(device: torch.device) -> list[str]:
    """Lines on the LSTM's two paths on a GPU and their recorded timings. Launches nothing."""
    triton, forced = why_no_triton(device), os.environ.get(choice.VARIABLE)
    kernels = "Triton" if not triton else f"torch operations: {triton}"
    measured = [f"auto         {name}: {choices.fastest(found[-1])} ({_times(found[-1])}"
                f"{'' if choices.is_settled(found) else '; will be measured again'})"
                for name, found in choices.recorded(device).items() if found]
    return [f"LSTM graph   runs, its small kernels {kernels} ({device})",
            f"LSTM persistent  {_persistent(device)} ({device})",
            *(measured or ["auto         measures both ways at first use; nothing is measured here yet"]),
            *([f"LSTM forced  {choice.VARIABLE}={forced} is set: the other path is not taken"] if forced else [])]


def _times(measured: choices.Measured) -> str:
    return ", ".join(f"{way} {1e6 * seconds:.0f} us" for way, seconds in measured.items())


def _persistent(device: torch.device) -> str:
    if reason := persistent.lacks(device):
        return f"not there: {reason}"
    unfit = [f"{dim} cells: {reason}" for dim, projection, _ in SIZES.values()
             if (reason := persistent.does_not_fit(device, dim, projection, persistent.MOST_SLOTS))]
    return "runs in 'medium' where it is measured to be faster" + "".join(f"; not for {each}" for each in unfit)


def _processor() -> list[str]:
    module, reason = native_module()
    quota = cpu_quota()
    threads = (f"threads      {min(torch.get_num_threads(), cores())}: the least of PyTorch's "
               f"{torch.get_num_threads()}, {affinity()} processors to run on, and "
               f"{'no quota' if quota is None else f'a quota of {quota:g}'}")
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
               for isa, features in module.engines().items() if isa != "amx-emulated"}
    if "amx" in lacking and not lacking["amx"] and not module.amx_permitted():
        lacking["amx"] = ["the system's permission"]
    said = {"sse4a": "an AMD processor"}  # which has sse4a, and on which the products of avx512-bf16 are fast
    return "".join(f"; {isa} needs {', '.join(said.get(name, name) for name in names)}"
                   for isa, names in lacking.items() if names)


def _gpus() -> list[str]:
    if not torch.cuda.is_available():
        return ["GPU          none that torch can use"]
    names = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
    return [f"GPU {index}        {each.name}, sm_{each.major}{each.minor}, {each.total_memory / 2**30:.0f} GiB"
            for index, each in enumerate(names)]


def _backends() -> list[str]:
    lines, (_, absent) = [], native_module()  # another line of the report says why the module is absent
    for device in ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]:
        operand = torch.empty(0, device=device)
        for op in OPS:
            chosen = resolve(op, "auto", operand)
            reasons = {name: why_not(op, name, [operand]) for name in LADDER[: LADDER.index(chosen)]}
            passed = [f"{name}: {'not there' if reason == absent else reason}" for name, reason in reasons.items()]
            lines.append(f"{device:<12} {op} runs on {chosen}" + (f" ({'; '.join(passed)})" if passed else ""))
    return lines
