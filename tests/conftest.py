import os
import re
import signal
import time
from pathlib import Path

import hypothesis
import pytest
import torch

hypothesis.settings.register_profile("any machine", deadline=None)  # a busy machine takes longer
hypothesis.settings.load_profile("any machine")
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell's background job ignores SIGINT, and so would the processes that the tests interrupt.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser):
    parser.addoption("--until", type=float, default=float("inf"), metavar="SECONDS", help="skip the tests that have "
                     "not begun at this time, in seconds since the epoch")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    if time.time() > item.config.getoption("until"):
        pytest.skip("the time of --until is over")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Mark tests that run PTX as long; refuse names with an address, which differs between pytest-xdist's processes."""
    for item in items:
        values = item.callspec.params.values() if hasattr(item, "callspec") else ()
        if any(getattr(value, "runs_ptx", False) for value in values):
            item.add_marker(pytest.mark.long)
    assert not [item.nodeid for item in items if re.search(r" at 0x[0-9a-f]{6}", item.nodeid)]


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory, monkeypatch):
    """Downloads go to a directory of the run, never to the user's cache."""
    monkeypatch.setenv("ELMO_FAST_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))


@pytest.fixture(autouse=True)
def poisoned_memory():
    """Fill uninitialized tensors with NaN, so that a read of an unwritten value is detected."""
    if not torch.are_deterministic_algorithms_enabled():  # setting the flag takes a millisecond
        torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = True


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of texts and TensorFlow-written fixtures beside the checkout."""
    default = Path(__file__).resolve().parents[2] / "shared"
    path = Path(os.environ.get("ELMO_FAST_SHARED", default))
    if not (path / "fixtures").is_dir():
        pytest.skip(f"no test data at {path} (set ELMO_FAST_SHARED)")
    return path


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    """Skip a test of the native engine, with the reason, where ELMO_FAST_NO_NATIVE=1 disables the engine."""
    try:
        return (yield)
    except RuntimeError as error:
        if os.environ.get("ELMO_FAST_NO_NATIVE") == "1" and "is not available: ELMO_FAST_NO_NATIVE=1" in str(error):
            pytest.skip(str(error))
        raise
