"""Downloads use the proxy of the environment; errors name the cause."""

import contextlib
import http.server
import re
import socket
import threading

import pytest

from elmo_fast.weights.sources import fetch
from tests.support.files import run
from tests.support.sources import left

pytestmark = pytest.mark.usefixtures("cache")


@contextlib.contextmanager
def proxy(monkeypatch, status=200):
    """A proxy that answers every request with `{}` and a status; yields the requested URLs."""
    urls = []

    class Proxy(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            urls.append(self.path)
            self.send_response(status)
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"{}" if self.command == "GET" else b"")

        do_HEAD = do_GET

        def log_message(self, *_):
            pass

    for name in ("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Proxy) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield urls, f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.parametrize("name", ["http_proxy", "HTTP_PROXY"])
def test_a_download_goes_through_the_proxy(monkeypatch, name):
    with proxy(monkeypatch) as (urls, url):
        monkeypatch.setenv(name, url)
        assert fetch("http://models.invalid/options.json").read_bytes() == b"{}"
    assert set(urls) == {"http://models.invalid/options.json"}


def free_port():
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return server.getsockname()[1]


@pytest.mark.parametrize("url, cause", [
    ("http://127.0.0.1:PORT/w", "ConnectionError: .*port=PORT.*Connection refused"),
    ("http://models.invalid/w", "ConnectionError: .*host='models.invalid', port=80.*resolve"),
    ("https://127.0.0.1:PORT/w", "ConnectionError: .*port=PORT.*Connection refused")])
def test_a_failed_connection_names_its_cause(monkeypatch, capsys, cache, url, cause):
    with proxy(monkeypatch):
        pass
    port = str(free_port())
    url, cause = url.replace("PORT", port), cause.replace("PORT", port)
    with pytest.raises(OSError, match=f"^{url}: the download failed .*{cause}") as caught:
        fetch(url)
    assert not isinstance(caught.value, FileNotFoundError) and caught.value.__cause__ is not None
    status, _, error = run(capsys, "info", "--options-file", url, "--weight-file", url)
    assert status == 1 and re.search(cause, error) and left(cache) == []
