"""Triton kernels run on CPU tensors, by Triton's interpreter: `test_kernels.py` starts these tests with TRITON_INTERPRET=1.

The variable must be there before triton is imported, so they need a process of their own.
"""

import os

import pytest

if os.environ.get("TRITON_INTERPRET") != "1":
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture(scope="session", autouse=True)
def kernels_on_cpu_tensors():
    """The ops that are registered for CUDA alone, registered for the CPU too."""
    import torch

    from elmo_fast.ops import native_cuda

    library = torch.library.Library("elmo_fast", "FRAGMENT")
    for name, (run, *_) in native_cuda.OPS.items():
        library.impl(name, run, "CPU")
    yield
    library._destroy()
