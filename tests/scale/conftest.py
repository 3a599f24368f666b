import pytest

from tests.scale.cluster import cluster
from tests.support.files import write_model


@pytest.fixture(scope="module")
def address():
    """The address of a cluster that the tests of a module share."""
    with pytest.MonkeyPatch.context() as monkeypatch, cluster(monkeypatch) as address:
        yield address


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("model"))
