"""The two small kernels of an LSTM step in Triton: compiled ahead of time for GPUs that are not here."""

import importlib.util
import subprocess
from pathlib import Path

import pytest
import torch

triton = pytest.importorskip("triton")
TOOL = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"


@pytest.fixture(scope="module")
def kernels():
    """The kernels as they compile, whatever the environment says about the interpreter."""
    path = Path(__file__).parent.parent / "kernels" / "lstm_pointwise.py"
    spec = importlib.util.spec_from_file_location("compiled_lstm_pointwise", path)
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("TRITON_INTERPRET", raising=False)
        spec.loader.exec_module(module)
        yield module


def pointers(kernel, number):
    """Types of the arguments, those of the operands' type left open."""
    names = {
        "_gates": {"zh": "*fp32", "z": number, "scale": "*fp32", "bias": "*fp32", "meta": "*i32", "fresh_c": "*fp32",
                   "c": "*fp32", "m": number, "dim": "i32", "slots": "i32", "cell_clip": "fp32", "SCALED": "constexpr",
                   "BLOCK": "constexpr"},
        "_hidden": {"r": "*fp32", "meta": "*i32", "after": "*i32", "fresh_h": "*fp32", "h": "*fp32", "operand": number,
                    "out": "*fp32", "projection": "i32", "slots": "i32", "proj_clip": "fp32", "BLOCK": "constexpr"},
    }
    return names[kernel]


@pytest.mark.parametrize("capability", [80, 90])
@pytest.mark.parametrize("kernel", ["_gates", "_hidden"])
@pytest.mark.parametrize("number", ["*fp32", "*fp16", "*bf16"])
def test_compiles_without_spills(kernels, kernel, number, capability, tmp_path):
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    constants = {"BLOCK": kernels._BLOCK} | ({"SCALED": number == "*fp16"} if kernel == "_gates" else {})
    source = ASTSource(getattr(kernels, kernel), pointers(kernel, number), constexprs=constants)
    compiled = triton.compile(source, target=GPUTarget("cuda", capability, 32), options={"num_warps": 4})
    (tmp_path / "kernel.cubin").write_bytes(compiled.asm["cubin"])
    said = subprocess.run([TOOL, "-res-usage", tmp_path / "kernel.cubin"], capture_output=True, text=True, check=True).stdout
    resources = dict(part.split(":") for part in said.split("Function")[-1].split() if part.count(":") == 1 and part[-1] != ":")
    assert int(resources["STACK"]) == 0 and int(resources["LOCAL"]) == 0
    assert int(resources["REG"]) <= 64  # four blocks of 128 threads and more on a multiprocessor


def keys(kernel, *arguments, **constants):
    """What Triton tells the variants of a kernel apart by, for some arguments."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import make_backend
    from triton.runtime.jit import create_function_from_signature

    binder = create_function_from_signature(kernel.signature, kernel.params, make_backend(GPUTarget("cuda", 90, 32)))
    return tuple(binder(*arguments, **constants)[1])


@pytest.mark.parametrize("slots", [1, 3, 16, 64])
def test_calls_of_a_layer_run_the_same_variants(kernels, slots):
    """Whatever the slots, the step of a chunk and the clips are: so a warm-up loads what a capture needs."""
    def keys_of(slots, step, clip):
        big = torch.empty(64)
        meta, out = torch.empty(17, 3, slots, dtype=torch.int32), torch.empty(16, slots, 22)
        gates = big, big, big, big, meta[step], big, big, big, 37, slots, clip
        hidden = big, meta[step], meta[step + 1], big, big, big, out[step], 11, slots, clip
        return keys(kernels._gates, *gates, SCALED=True, BLOCK=64), keys(kernels._hidden, *hidden, BLOCK=16)

    expected = keys_of(8, 0, 3.0)
    assert "D" in str(expected) and all(keys_of(slots, step, clip) == expected for step in range(5) for clip in (0.1, 1.0))
