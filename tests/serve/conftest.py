import pytest

from tests.support import models


@pytest.fixture
def start():
    """Starts servers, which end with the test."""
    from tests.support.serving import Running

    servers = []

    def begin(state="warm", **arguments):
        servers.append(Running(models.bilm(state=state), **arguments).__enter__())
        return servers[-1]

    yield begin
    for server in servers:
        server.__exit__()
