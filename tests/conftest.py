import os
import re
import signal
import time
from collections import Counter
from pathlib import Path

import hypothesis
import pytest
import torch

LONG = re.compile(r"^pytestmark = \[?pytest\.mark\.long\b", re.MULTILINE)
hypothesis.settings.register_profile("any machine", deadline=None)  # a busy machine takes longer
hypothesis.settings.load_profile("any machine")
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell's background job ignores SIGINT, and so would the processes that the tests interrupt.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser):
    parser.addoption("--until", type=float, default=float("inf"), metavar="SECONDS", help="skip the tests that have "
                     "not begun at this time, in seconds since the epoch")


def pytest_ignore_collect(collection_path, config):
    """Leave out files of long tests alone, unless they are named, where none is run: they import large libraries."""
    named = [Path(argument.partition("::")[0]).resolve() for argument in config.args]
    if config.option.markexpr != "not long" or collection_path.suffix != ".py" or collection_path in named:
        return None
    return LONG.search(collection_path.read_text(encoding="utf-8")) and True


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


def pytest_terminal_summary(terminalreporter):
    """Name the skips by reason, the most frequent first, in ten lines."""
    counts = Counter(report.longrepr[2].removeprefix("Skipped: ")
                     for report in terminalreporter.stats.get("skipped", ())).most_common()
    for reason, count in counts[:9]:
        terminalreporter.write_line(f"SKIPPED [{count}] {reason}")
    if rest := counts[9:]:
        terminalreporter.write_line(f"SKIPPED [{sum(count for _, count in rest)}] {len(rest)} more reasons")


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory, monkeypatch):
    """Downloads go to a directory of the run, never to the user's cache. Kernels of a GPU run untried."""
    monkeypatch.setenv("ELMO_FAST_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
    monkeypatch.setenv("ELMO_FAST_GPU_TRIAL", "off")


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


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """The folder of a tiny model with random weights."""
    from tests.support.files import write_model

    return write_model(tmp_path_factory.mktemp("model"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    """Skip a test of the native engine, with the reason, where ELMO_FAST_NO_NATIVE=1 disables the engine."""
    try:
        return (yield)
    except RuntimeError as error:
        if os.environ.get("ELMO_FAST_NO_NATIVE") == "1" and "is not available: ELMO_FAST_NO_NATIVE=1" in str(error):
            pytest.skip(str(error))
        raise
