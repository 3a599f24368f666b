"""Options of the benchmarks that pytest runs, and the result file of the one shape that they write."""

import time
from pathlib import Path

import pytest
import torch

from benchmarks.bench_ops import cases


def pytest_addoption(parser) -> None:
    add = parser.addoption
    add("--rows", type=Path, metavar="FILE", help="write the rows there as JSON, after every case")
    add("--device", choices=("cpu", "cuda"), default="cpu", help="of the char encoder and gpu/, whose cpu is a dry run")
    add("--seconds", type=float, metavar="N", help="skip the cases that would begin later than that")


def pytest_sessionstart(session) -> None:
    session.config.stash[cases.BEGAN] = time.monotonic()


@pytest.fixture(scope="session")
def device(request) -> torch.device:
    name = request.config.getoption("--device")
    if name == "cuda" and not torch.cuda.is_available():
        pytest.exit("--device cuda: torch sees no CUDA device", returncode=2)
    return torch.empty(0, device=name).device


@pytest.fixture(autouse=True)
def _within_time(request):
    seconds = request.config.getoption("--seconds")
    if seconds is not None and time.monotonic() - request.config.stash[cases.BEGAN] > seconds:
        pytest.skip(f"no time is left of {seconds:.0f} s")


def pytest_runtest_makereport(item, call) -> None:
    """A case that fails or is skipped leaves its reason, so that a run that is ended has all that was done."""
    if call.excinfo:
        cases.leave_reason(item.config, item.name, call.excinfo.exconly())
