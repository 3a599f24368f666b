"""The server's limits of size, time and room, its errors and its end, with slow, large, late and absent clients."""

import json
import re
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.support.files import until
from tests.support.serving import SECONDS, embed, httpx, posted, reason, received, texts_of

pytestmark = pytest.mark.long


@pytest.mark.parametrize("chunked", [False, True])
def test_a_large_body_is_refused_before_it_has_arrived(start, chunked):
    server = start(max_body_bytes=1000)
    head = "Transfer-Encoding: chunked" if chunked else "Content-Length: 10000000"
    with server.connect() as connection:
        connection.sendall(f"POST /v1/embed HTTP/1.1\r\nHost: x\r\n{head}\r\n\r\n".encode())
        if chunked:
            connection.sendall(b"7d0\r\n" + b" " * 2000 + b"\r\n")
        assert connection.recv(12) == b"HTTP/1.1 413"  # before the rest is sent
        connection.shutdown(1)
        assert b"at most 1,000 bytes" in received(connection)
    body = json.dumps({"texts": ["a" * 10_000_000]})
    assert "1,000 bytes" in reason(httpx.post(f"{server.url}/v1/embed", content=body), 413, "body_too_large")
    assert embed(server, texts=["a"]).status_code == 200


def test_a_slow_body_is_cut_off(start):
    server = start(body_seconds=1)
    with server.connect() as body:
        body.sendall(b"POST /v1/embed HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
        answer = received(body)
        assert b"408" in answer[:20] and b"expected it within 1 s" in answer
    assert embed(server, texts=["a"]).status_code == 200


def test_an_idle_connection_is_kept(start):
    """The server keeps idle connections longer than clients do: otherwise requests could meet a closing connection."""
    request = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"
    with start(keep_alive_seconds=1).connect() as brief, start().connect() as idle:
        for connection in (brief, idle):
            connection.sendall(request)
            until(lambda: connection.recv(1 << 16).endswith(b"}"))  # noqa: B023
        assert received(brief) == b""  # closed
        time.sleep(6)  # httpx keeps a connection for 5 s, as does uvicorn by default
        idle.sendall(request)
        until(lambda: idle.recv(1 << 16).endswith(b"}"))


def test_a_client_that_reads_nothing_is_cut_off(start):
    server = start(write_seconds=1)
    with server.connect() as connection:
        connection.setsockopt(1, 8, 4096)  # SO_RCVBUF
        connection.sendall(posted(b"/v1/embed", json.dumps({"texts": texts_of([40_000])}).encode()))
        until(lambda: server.metric('request_seconds_count{route="/v1/embed"}') == 1)
    assert server.batching.held_tokens == server.metric("requests_in_progress") == 0


def test_a_full_queue_is_429(start):
    server = start(queue_tokens=20)
    server.gate.close()
    with ThreadPoolExecutor() as pool:
        first = pool.submit(embed, server, texts=texts_of([10]))
        server.gate.wait()
        response = embed(server, texts=texts_of([10]))
        assert "no room for 12 more" in reason(response, 429, "queue_full")
        assert re.fullmatch(r"[1-9]\d*", response.headers["retry-after"])
        server.gate.open()
        assert first.result().status_code == 200
    until(lambda: server.batching.held_tokens == 0)
    assert embed(server, texts=texts_of([10])).status_code == 200


def test_a_late_answer_is_504(start):
    server = start(request_seconds=1)
    server.gate.close()
    late = embed(server, texts=texts_of([9000, 9000]))
    assert "within 1 s" in reason(late, 504, "timeout") and late.headers["x-should-retry"] == "false"
    page = httpx.post(f"{server.url}/v1/compare", json={"first": "a b", "second": "c"}, timeout=SECONDS)
    assert "within 1 s" in reason(page, 504, "timeout")
    until(lambda: server.batching.held_tokens == 0)
    server.gate.open()
    until(lambda: server.batching.running_texts == 0)
    assert embed(server, texts=["a"]).status_code == 200


def test_a_server_of_one_connection(start):
    server = start(max_connections=1)
    assert httpx.get(f"{server.url}/health").status_code == 200


def test_a_client_that_disconnects_frees_its_texts(start):
    server = start(slots=1)
    server.gate.close()
    with server.connect() as connection:
        connection.sendall(posted(b"/v1/embed", json.dumps({"texts": texts_of([9000] * 5)}).encode()))
        server.gate.wait()
        assert server.batching.waiting_texts == 4
    until(lambda: server.batching.held_tokens == 0)
    assert server.batching.waiting_texts == 0
    server.gate.open()
    until(lambda: server.batching.running_texts == 0)
    until(lambda: server.metric('requests_total{route="/v1/embed",status="499"}') == 1)
    assert embed(server, texts=["a"]).status_code == 200


def test_an_engine_error_is_500_and_the_server_continues(start):
    server = start(slots=1)
    server.gate.errors = [RuntimeError("no memory")] * 3
    for _ in range(3):
        assert httpx.get(f"{server.url}/health").status_code == 200
        response = embed(server, texts=texts_of([4094, 4094, 1]))  # the last two have not begun
        assert reason(response, 500, "engine_error") == "RuntimeError: no memory"
        assert (server.batching.waiting_texts, server.batching.running_texts) == (0, 0)
    health = httpx.get(f"{server.url}/health")
    assert (health.status_code, health.json()["status"]) == (503, "failing")
    assert embed(server, texts=["a"]).status_code == 200
    assert httpx.get(f"{server.url}/health").json() == {
        "status": "ready", "model": "tiny", "version": "1.2.3", "layers": 3, "dimensions": 22, "state": "warm",
        "device": "cpu"}


def test_draining_refuses_and_finishes(start):
    server = start()
    server.gate.close()
    with ThreadPoolExecutor() as pool:
        first = pool.submit(embed, server, texts=["a"])
        server.gate.wait()
        server.server.handle_exit(15, None)
        response = embed(server, texts=["a"])
        assert "shutting down" in reason(response, 503, "draining") and response.headers["connection"] == "close"
        health = httpx.get(f"{server.url}/health")
        assert (health.status_code, health.json()["status"]) == (503, "draining")
        server.gate.open()
        assert first.result().status_code == 200
    server._thread.join(SECONDS)
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{server.url}/health")


def test_requests_that_outlast_draining_are_cut_off(start):
    server = start(drain_seconds=1)
    server.gate.close()
    with ThreadPoolExecutor() as pool:
        late = pool.submit(embed, server, texts=["a"])
        server.gate.wait()
        server.server.handle_exit(15, None)
        assert "has shut down" in reason(late.result(), 503, "draining")
    server._thread.join(SECONDS)
    assert not server._thread.is_alive()
