"""The engines of ops: backends, instruction sets and precisions, with limits of their errors against float64."""

import contextlib
from importlib.util import find_spec
from typing import NamedTuple

import pytest
import torch

from elmo_fast.engine.backend import native_module
from elmo_fast.engine.precision import PRECISIONS
from elmo_fast.testing import AGAINST_FLOAT64, GRADIENT_AGAINST_FLOAT64, SAME_MODEL
from tests.support import cuda_ops, ptx_machine
from tests.support.lstm_on_ptx import lstm_on_ptx

native, _missing = native_module()
if native:
    native.set_least_share(0)  # so that small models run on all threads, in teams as well
EXACT = 0 if native else SAME_MODEL  # the products of NumPy and torch depend on the other rows of a batch
needs_native = pytest.mark.skipif(native is None, reason=f"no native module: {_missing}")
ON_TRITON = {"ieee": 2e-6, "tf32": 2e-3, "fp16": 2e-3, "bf16": 1e-2}  # limits of the error of one op, by operands


@contextlib.contextmanager
def isa(name):
    """Caps the instruction set inside a with block, unless `name` is None."""
    with pytest.MonkeyPatch.context() as patch:
        if name:
            patch.setenv("ELMO_FAST_CPU_ISA", name)
        yield


class Engine(NamedTuple):
    """`backend` is an op's, or the operands of Triton kernels, which run as the PTX of sm_80, or "cuda", the GPU's LSTM
    on the CPU, where `isa` has the kernels of `lstm_on_ptx`.
    """

    backend: str = "native"
    isa: str | None = None
    precision: str = "highest"
    dtype: torch.dtype = torch.float32

    @property
    def limits(self):
        """Relative Frobenius errors of results and of gradients; on a GPU's 16-bit operands, those of fp16."""
        if self.dtype == torch.float64:
            return 1e-12, 1e-10
        if self.backend in ON_TRITON:
            return ON_TRITON[self.backend], GRADIENT_AGAINST_FLOAT64
        if self in BF16_WEIGHTS:
            return AGAINST_FLOAT64["bf16 weights"], GRADIENT_AGAINST_FLOAT64
        row = PRECISIONS[self.precision]
        return AGAINST_FLOAT64[row.bounded if self.backend == "cuda" else row.cpu], GRADIENT_AGAINST_FLOAT64

    @property
    def runs_ptx(self):
        """Whether kernels run as PTX, in an interpreter that takes a minute to build."""
        return self.backend in ON_TRITON or (self.backend == "cuda" and self.isa is not None)

    @contextlib.contextmanager
    def active(self):
        """Inside a with block calls of an op may have this engine's backend; gives the patch."""
        cuda = self.backend == "cuda"
        with pytest.MonkeyPatch.context() as patch, contextlib.ExitStack() as stack:
            stack.enter_context(lstm_on_ptx(self.isa, patch) if cuda else isa(self.isa))
            if cuda:
                cuda_ops.in_models(patch, self.precision)
                if cuda_ops.MAY_BE_REGISTERED:
                    stack.enter_context(cuda_ops.registered_on_cpu("projected_lstm"))
            if self.backend in ON_TRITON:
                from tests.support import triton_on_ptx

                triton_on_ptx.on_ptx(patch, 80)
                stack.enter_context(cuda_ops.registered_on_cpu())
            yield patch

    def same(self, actual, expected):
        """Equal to the bit where all sums are ours in a fixed order, to rounding in float64, and to the precision on
        a GPU, where the order of torch's matmul depends on the number of rows and on the processor."""
        if self.backend == "native":
            return torch.equal(actual.nan_to_num(7e9), expected.nan_to_num(7e9))
        if self.backend == "cuda":
            usual = expected.isfinite()
            return (torch.equal(actual[~usual].nan_to_num(7e9), expected[~usual].nan_to_num(7e9))
                    and bool((actual[usual] - expected[usual]).norm() <= self.limits[0] * expected[usual].norm()))
        return torch.allclose(actual, expected, rtol=1e-12, atol=1e-14, equal_nan=True)


def _runs(name, precision):
    with isa(name):
        return native is not None and native.lstm_isa(native.precisions[precision]) == name


REFERENCE, TORCH = (Engine(backend, dtype=torch.float64) for backend in ("reference", "torch"))
NATIVE = Engine()
ISAS = [name for name in ("generic", "neon", "avx2", "avx512") if _runs(name, "highest")]
TILE_ISAS = ["amx"] if _runs("amx", "medium") else []
HIGHEST = [Engine(isa=name) for name in ISAS]
BF16_WEIGHTS = [Engine("native", name, "medium") for name in ISAS]
BF16_DOTS = [Engine("native", "avx512-bf16", "medium")] if _runs("avx512-bf16", "medium") else []
TILES = [Engine("native", name, precision) for name in TILE_ISAS for precision in ("high", "medium")]
LOW_ISAS = [name for name in ("generic", "neon", "neon-dotprod", "avx2", "avx-vnni", "avx512", "avx512-vnni", "amx")
            if _runs(name, "low")]
LOW = [Engine("native", name, "low") for name in LOW_ISAS]
# check_engines compares these bit for bit with another engine: `low` on levels with the vectors of another level.
TWINS = [engine for vectors in (("avx2", "avx-vnni"), ("avx512", "avx512-vnni", "amx"))
         for engine in [each for each in LOW if each.isa in vectors][1:]]
FAST = [Engine("torch"), TORCH, *HIGHEST, *BF16_WEIGHTS, *BF16_DOTS, *TILES, *LOW]
_TRITON_RUNS = find_spec("triton") is not None and ptx_machine.IS_THERE and cuda_ops.MAY_BE_REGISTERED
TRITON = [Engine("ieee"), Engine("fp16", precision="medium")] if _TRITON_RUNS else []
GRAPHS = [Engine("cuda", precision=precision) for precision in PRECISIONS if precision != "low"]  # runs as medium there
GPU = [*GRAPHS, *(Engine("cuda", kernels, precision) for kernels, precision in (
    ("sm_90", "medium"), ("sm_80", "medium"), ("triton sm_90", "medium"), ("triton sm_80", "highest")))]
GPU_GRADIENTS = [Engine("cuda")] * cuda_ops.MAY_BE_REGISTERED + [Engine("cuda", "triton sm_90")] * _TRITON_RUNS
FIXED = [REFERENCE, TORCH, *HIGHEST]  # to the bit, or nearly so in float64
