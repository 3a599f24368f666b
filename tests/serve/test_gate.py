"""The gate: hosts and origins, what is not HTTP or JSON, limits on every route, abuse, threads and memory."""

import contextlib
import json
import os
import re
import socket
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from elmo_fast.embed.api import LoadedElmo
from elmo_fast.explore.contexts import ContextIndex
from tests.support import models
from tests.support.files import start as start_command
from tests.support.files import write_model
from tests.support.serving import SECONDS, embed, httpx, posted, reason, received, texts_of

pytestmark = pytest.mark.long

MOST = 4 << 20  # bytes that a body may have
BODIES = {"/v1/embed": {"texts": ["a play", ["one"]]}, "/v1/embeddings": {"model": "tiny", "input": "a play"},
          "/v1/compare": {"first": "a play", "second": "one"}, "/v1/nearest": {"tokens": ["play"], "position": 0}}
ROUTES = ["/health", "/metrics", "/v1/models", "/openapi.json", "/", "/v1/page"]


@pytest.fixture
def indexed(start):
    index = ContextIndex.build(LoadedElmo(models.bilm()), ["the play began", "a play", "they play"], layers="top")
    return lambda **arguments: start(index=index, **arguments)


def statuses(server, **headers):
    """The status of every route to a request with these headers."""
    with httpx.Client(base_url=server.url, headers=headers, timeout=SECONDS) as client:
        return {*(client.get(route).status_code for route in ROUTES),
                *(client.post(route, json=body).status_code for route, body in BODIES.items())}


def test_hosts_that_another_site_cannot_have(indexed):
    server = indexed(host="gpu.lab.example")
    for host in ("127.0.0.1", "localhost:8000", "LOCALHOST", "[::1]:8000", "10.0.0.7:1", "elmo", "page.localhost",
                 "GPU.lab.example:8000"):
        assert statuses(server, Host=host) == {200}, host
    for host in ("evil.example", "evil.example:8000", "127.0.0.1.evil.example", "localhost.evil.example", "evil.",
                 "localhost:8000.evil.example", "[::1].evil.example", "a@evil.example", "gpu.lab.example.evil.example",
                 "[evil.example]", "lab.example"):
        assert statuses(server, Host=host) == {421}, host
    message = reason(httpx.get(f"{server.url}/v1/page", headers={"Host": "evil.example"}), 421, "unknown_host")
    assert "Host: expected" in message and "evil.example" in message


def test_origins_of_other_pages(indexed):
    server = indexed()
    own = f"127.0.0.1:{server.port}"
    assert statuses(server, Origin=f"http://{own}") == {200}
    for origin in ("null", "http://evil.example", "http://127.0.0.1:1", "http://127.0.0.1", "http://[", "", own):
        assert statuses(server, Origin=origin) == {403}, origin
    answer = httpx.get(server.url, headers={"Origin": "http://evil.example"})
    assert "Origin: expected" in reason(answer, 403, "other_origin")


def test_a_server_with_a_key_answers_every_host(indexed):
    server = indexed(api_key="s3cret")
    more = {"Host": "elmo.example", "Origin": "https://elmo.example"}
    assert statuses(server, Authorization="Bearer s3cret", **more) == {200}
    assert statuses(server, **more) == {200, 401}  # 200 from /health


POST, NAMED = b"POST / HTTP/1.1\r\nHost: a\r\n", b"GET / HTTP/1.1\r\nHost: a\r\n"


@pytest.mark.parametrize("request_bytes", [
    b"hello\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n", NAMED + b"Host: b\r\n\r\n",
    NAMED + b"X: " + b"x" * 100_000 + b"\r\n\r\n", NAMED + b"X: y\r\n" * 20_000, b"GET /" + b"x" * 100_000,
    b"\x16\x03\x01\x02\x00\x01\x00\xff" * 9, POST + b"Content-Length: -1\r\n\r\n",
    POST + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n", POST + b"Transfer-Encoding: gzip, chunked\r\n\r\n",
    posted(b"/v1/embed", b"zz\r\n", b"Transfer-Encoding: chunked\r\n")], ids=range(11))
def test_what_is_not_http_is_refused_in_the_form_of_errors(start, request_bytes):
    server = start()
    with server.connect() as connection, contextlib.suppress(ConnectionError):  # the server may have closed it
        connection.sendall(request_bytes + b"\r\n\r\n")
        connection.shutdown(1)
        head, _, body = received(connection).partition(b"\r\n\r\n")
        assert re.match(rb"HTTP/1.1 4(00|31) ", head)
        error = json.loads(body[: body.index(b"}}") + 2])["error"]
        assert error["code"] in ("malformed_http", "headers_too_large")
        assert re.search("16 KiB|16,384 bytes", error["message"])
    assert embed(server, texts=["a"]).status_code == 200


LONG = b"b" * 1001


@pytest.mark.parametrize("body, status", [
    (b'{"texts": ["a"], "texts": ["%s"]}' % LONG, 413), (b'{"texts": ["%s"], "texts": ["a"]}' % LONG, 200),
    (b'{"texts": ["a"], "layers": [1e999, 0, 0]}', (400, 422)), (b'{"texts": ["a"], "layers": [1e39, 0, 0]}', 422),
    (b'{"texts": ["a"], "layers": [-Infinity]}', 400), (b'{"texts": ["\xed\xa0\x80"]}', 400),
    (b'{"texts": ["\xff"]}', 400), (b'{"texts": ["\\udc00\\ud800"]}', 400), (b"{}" * 9, (400, 422)),
    ('{"texts": ["a"]}'.encode("utf-16"), 400), (b'\xef\xbb\xbf{"texts": ["a"]}', 400),
    (b'{"texts": ["a \\u0000 b"]}', 200), (b'{"texts": [%s""]}' % (b'"",' * 1_000_000), 413),
    (b'{"texts": ["a"], "pool": %s}' % (b"9" * 100_000), (400, 422)),
    (b'{"texts": %s}' % (b'{"a":' * 500_000), (400, 422)),
    (b'{"texts": ["a"], "layers": [%s0]}' % (b"0," * 1_000_000), 422)], ids=range(16))
def test_bodies_at_the_edge_of_json(start, body, status):
    server = start()
    answer = httpx.post(f"{server.url}/v1/embed", content=body, headers={"Content-Type": "application/json"},
                        timeout=SECONDS)
    assert answer.status_code in np.atleast_1d(status)
    if answer.status_code != 200:
        assert set(answer.json()["error"]) == {"message", "type", "param", "code"} and len(answer.text) < 1000


def test_limits_hold_on_every_route(indexed):
    server = indexed(max_letters=5, max_tokens=3, max_body_bytes=300)
    for word, status, words in (("ab\u0301\U0001f600c", 200, ""), ("abcdef", 413, "5 characters in a token"),
                                ("a b c d", 413, "3 tokens"), ("a" * 300, 413, "300 bytes")):
        bodies = {"embed": {"texts": [word]}, "embeddings": {"model": "tiny", "input": ["a", word]},
                  "compare": {"first": "a", "second": word}, "nearest": {"tokens": word.split(), "position": 0}}
        for route, body in bodies.items():
            answer = httpx.post(f"{server.url}/v1/{route}", json=body)
            assert answer.status_code == status and words in answer.text, (route, word)


@pytest.mark.parametrize("method", ["OPTIONS", "PUT", "DELETE", "PATCH", "TRACE", "BREW"])
def test_other_methods_and_upgrades(start, method):
    server = start()
    for route in (*ROUTES, *BODIES):
        reason(httpx.request(method, server.url + route), 405, "method_not_allowed")
    upgrade = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Key": "x", "Sec-WebSocket-Version": "13"}
    assert httpx.get(f"{server.url}/health", headers=upgrade).status_code == 200
    reason(httpx.get(f"{server.url}/v1/embed", headers=upgrade), 405, "method_not_allowed")


def test_pipelined_requests_are_answered_in_order(start):
    server = start()
    bodies = [json.dumps({"texts": [["a"] * (number % 7)], "pool": None}).encode() for number in range(100)]
    last = b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    with server.connect() as connection:
        connection.sendall(b"".join(posted(b"/v1/embed", body) for body in bodies) + last)
        answers = re.findall(rb'"tokens":(\[\[.*?\]\])', received(connection))
    assert [len(json.loads(answer)[0]) for answer in answers] == [number % 7 for number in range(100)]


def test_silent_connections_make_room(start):
    """More connections than the server has room for, silent or in the middle of headers; and more requests."""
    server = start(max_connections=20, keep_alive_seconds=2, body_seconds=60)
    with contextlib.ExitStack() as stack:
        silent = [stack.enter_context(server.connect()) for _ in range(60)]
        for connection in silent[::2]:
            with contextlib.suppress(ConnectionError):
                connection.sendall(b"GET / HTTP/1.1\r\nHost")
        assert embed(server, texts=["a"]).status_code == 200
        time.sleep(3)
        assert not server.server.server_state.connections  # also those that have sent a part of the headers
        for _ in range(20):
            stack.enter_context(server.connect()).sendall(posted(b"/v1/embed", b"{")[:-1])
        while server.metric("requests_in_progress") < 20:
            time.sleep(0.01)
        assert "at most 20 requests" in reason(embed(server, texts=["a"]), 503, "too_many_requests")
        assert httpx.get(f"{server.url}/health").status_code == 200


def test_the_bodies_of_all_requests_are_bounded(start):
    server = start(max_body_bytes=1000)
    head = posted(b"/v1/embed", b"", b"Content-Length: 1000\r\n")
    with contextlib.ExitStack() as stack:
        for _ in range(64):
            stack.enter_context(server.connect()).sendall(head + b" " * 999)
        full = httpx.post(f"{server.url}/v1/embed", content=b" " * 999, timeout=SECONDS)
        assert "at most 64,000 bytes" in reason(full, 503, "too_many_bytes")
    while server.metric("requests_in_progress"):
        time.sleep(0.01)
    assert embed(server, texts=["a"]).status_code == 200


ABUSES = {
    "lists of wrong elements": [posted(b"/v1/embed", body % (value * (MOST // len(value) - 9))[:-1])
                                for body in (b'{"texts": [%s]}', b'{"texts": [[%s]]}', b'{"x": [%s]}')
                                for value in (b"1,", b'"a",', b"[],", b"{},", b'"",')],
    "deep lists": [posted(b"/v1/embed", b"[" * MOST), posted(b"/v1/embed", b'{"texts": ' + b"[" * (MOST - 9))],
    "many keys": [posted(b"/v1/embed", b"{%s}" % b",".join(b'"%d": 1' % number for number in range(300_000)))],
    "the same key": [posted(b"/v1/embed", b"{%s}" % b",".join([b'"texts": ["a"]'] * 250_000))],
    "long texts": [posted(b"/v1/embed", b'{"texts": ["They, %s"]}' % (text * (MOST // len(text) - 9)))
                   for text in (b"don't, ", b"1,", b" ", b"a", "\u2019".encode(), "x\u2019 ".encode(),
                                "\U00011001".encode(), b"J. ", b"a.a ", b"\\u0301")],
    "long words on the page": [posted(route, json.dumps(body).encode()) for route, body in (
        (b"/v1/compare", {"first": "1," * 10**6, "second": " " * 10**6 + "b."}),
        (b"/v1/nearest", {"tokens": ["x" * 10**6] * 4, "position": 0}),
        (b"/v1/nearest", {"tokens": ["x"] * 10**6, "position": 0}))],
    "silence": [b""] * 30 + [b"POST /v1/embed HTTP/1.1\r\nHost"] * 30 + [posted(b"/v1/embed", b"{")[:-1]] * 30,
    "small chunks": [posted(b"/v1/embed", b"1\r\n \r\n" * 20_000, b"Transfer-Encoding: chunked\r\n")],
    "headers": [b"GET / HTTP/1.1\r\nHost: x\r\n" + b"a: b\r\n" * 3000] * 20,
    "pipelined": [b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n" * 2000, b"BREW / HTTP/1.1\r\nHost: x\r\n\r\n" * 5000],
    "bodies that no route wants": [posted(b"/none", b"[" * MOST)] * 10 + [posted(b"/health", b"x" * MOST)] * 5,
}


@pytest.fixture(scope="module")
def command(tmp_path_factory):
    """The command as a process, and its URL."""
    model = write_model(tmp_path_factory.mktemp("model"))
    process = start_command(["serve", "--model", model, "--port", "0", "--name", "tiny", "--max-connections", "80"])
    yield process, re.search(r"at (http://\S+)$", process.stdout.readline())[1]
    process.kill()
    process.communicate()


def processor_seconds(process):
    """Processor time of a process, which other processes of the machine do not change."""
    user, system = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def send(url, content):
    """Send bytes on a connection of their own, as far as the server reads them."""
    with contextlib.suppress(OSError), socket_of(url) as connection:
        connection.settimeout(5)
        connection.sendall(content)
        connection.recv(1 << 16)
        time.sleep(2)


def socket_of(url):
    """A plain connection."""
    return socket.create_connection((httpx.URL(url).host, httpx.URL(url).port), timeout=SECONDS)


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="no /proc")
@pytest.mark.parametrize("abuse", ABUSES)
def test_health_answers_within_a_second(command, abuse):
    process, url = command
    threads = [threading.Thread(target=send, args=(url, content)) for content in ABUSES[abuse]]
    for thread in threads:
        thread.start()
    seconds = []
    for _ in range(40):
        before = processor_seconds(process)
        assert httpx.get(f"{url}/health", timeout=SECONDS).status_code == 200
        seconds.append(processor_seconds(process) - before)
        time.sleep(0.05)
    for thread in threads:
        thread.join(SECONDS)
    assert max(seconds) < 1, seconds
    assert httpx.post(f"{url}/v1/embed", json={"texts": ["a"]}, timeout=SECONDS).status_code == 200


def resident(process):
    """Resident memory in MiB."""
    return int(re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{process.pid}/status").read_text())[1]) / 1024


def sizes_after_requests(process, url, count):
    """Resident memory in MiB, 20 times during requests of every route, some of which are refused."""
    long, sizes = ["x" * 1000] * 30, []
    bodies = [*BODIES.items(), ("/v1/embed", {"texts": [long], "layers": "top"}),
              ("/v1/embed", {"texts": ["\ud800"]}), ("/v1/embed", {"texts": texts_of([400])}),
              ("/v1/compare", {"first": "x" * 2000, "second": "a"}), ("/v1/nearest", {"tokens": long, "position": 1}),
              ("/v1/embeddings", {"model": "other", "input": ["a"]})]
    with httpx.Client(base_url=url, timeout=SECONDS) as client:
        for number in range(count):
            route, body = bodies[number % len(bodies)]
            if number % 3 == 0:
                client.get([*ROUTES, f"/{number}"][number % 7])
            else:
                client.post(route, content=json.dumps(body), headers={"Content-Type": "application/json"})
            if number % (count // 20) == 0:
                sizes.append(resident(process))
    return sizes


def test_memory_stays_after_many_requests(command):
    sizes = sizes_after_requests(*command, 2000)
    assert max(sizes) - sizes[len(sizes) // 2] < 4, sizes
