"""Shared by the tests of sources: a separate cache of downloads, and a server of them."""

import contextlib

import pytest

from tests.support.sources import served


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("ELMO_FAST_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def serve():
    """A function that serves a directory, as `served` does, until the test ends."""
    with contextlib.ExitStack() as stack:
        yield lambda *arguments, **options: stack.enter_context(served(*arguments, **options))
