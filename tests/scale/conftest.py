import pytest

from tests.scale.cluster import cluster


@pytest.fixture(scope="module")
def address():
    """The address of a cluster that the tests of a module share."""
    with pytest.MonkeyPatch.context() as monkeypatch, cluster(monkeypatch) as address:
        yield address
