"""`elmo-fast serve` as a process: signals under load, ports, keys, the example and the commands of docs/serving.md."""

import asyncio
import json
import re
import signal
import socket
import subprocess
import sys
import tomllib

import numpy as np
import pytest

import elmo_fast
from benchmarks import bench_serve
from elmo_fast import cli
from tests.support.files import ROOT, run, start, until
from tests.support.serving import SECONDS, httpx

pytestmark = pytest.mark.long


@pytest.fixture
def serve(model):
    """Starts the command; returns the process and the URL that it prints."""
    processes = []

    def begin(*arguments, name=model):
        processes.append(start(["serve", "--model", name, "--port", "0", *arguments]))
        line = processes[-1].stdout.readline()
        match = re.search(r"at (http://\S+)$", line)
        assert match, line + processes[-1].stderr.read()
        return processes[-1], match[1]

    yield begin
    for process in processes:
        process.kill()
        process.communicate()


def exit_of(process):
    """Exit status and the rest of stderr."""
    _, errors = process.communicate(timeout=SECONDS)
    return process.returncode, errors


COUNTING = """
import sys
from elmo_fast.cli import main
from elmo_fast.serve.batching import Batching

submit, accepted = Batching.submit, []

def count(*arguments):
    job = submit(*arguments)
    accepted.append(1)
    return job

Batching.submit = count
status = main({arguments!r})
print("accepted", len(accepted))
sys.exit(status)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_under_load_loses_no_accepted_request(model, number):
    arguments = ["serve", "--model", str(model), "--port", "0", "--slots", "2"]
    texts = [["word", str(client)] * 200 for client in range(30)]
    expected = elmo_fast.load(model).embed(texts, "average", pool="mean")
    statuses = []

    async def client(http, index):
        while True:
            body = {"texts": [texts[index]] * 4, "layers": "average", "pool": "mean"}
            try:
                answer = await http.post("/v1/embed", json=body)
            except httpx.TransportError:
                return  # refused; accepted requests are counted
            statuses.append(answer.status_code)
            if answer.status_code != 200:
                assert (answer.status_code, answer.json()["error"]["code"]) == (503, "draining")
                return
            for vector in answer.json()["vectors"]:
                np.testing.assert_array_equal(np.array(vector, np.float32), expected[index])
            if len(statuses) == 40:
                process.send_signal(number)

    async def clients(url):
        async with httpx.AsyncClient(base_url=url, timeout=SECONDS) as http:
            await asyncio.gather(*(client(http, index) for index in range(30)))

    process = start(COUNTING.format(arguments=arguments))
    try:
        asyncio.run(clients(re.search(r"at (http://\S+)$", process.stdout.readline())[1]))
        output, errors = process.communicate(timeout=SECONDS)
    finally:
        process.kill()
    assert statuses.count(200) >= 40 and process.returncode == 0, errors
    assert output == f"accepted {statuses.count(200) + 1}\n"  # plus the server's own at its start


def test_the_end_of_an_idle_server_and_of_one_with_a_slow_client(serve):
    process, url = serve()
    process.send_signal(signal.SIGTERM)
    assert exit_of(process) == (0, "")
    process, url = serve("--drain-seconds", "1")
    with socket_of(url) as slow:
        slow.sendall(b"POST /v1/embed HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
        until(lambda: "elmo_fast_requests_in_progress 2.0" in httpx.get(f"{url}/metrics").text)
        process.send_signal(signal.SIGTERM)
        assert exit_of(process)[0] == 0


def test_a_second_signal_ends_at_once(serve):
    process, url = serve("--drain-seconds", "600")
    with socket_of(url) as slow:
        slow.sendall(b"POST /v1/embed HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
        until(lambda: "elmo_fast_requests_in_progress 2.0" in httpx.get(f"{url}/metrics").text)
        process.send_signal(signal.SIGTERM)
        until(lambda: httpx.get(f"{url}/health").status_code == 503)
        process.send_signal(signal.SIGTERM)
        assert exit_of(process)[0] == -signal.SIGTERM


def test_a_port_in_use_and_a_bad_key_are_a_line(serve, capsys, tmp_path):
    _, url = serve()
    port = url.rsplit(":", 1)[1]
    status, _, errors = run(capsys, "serve", "--port", port)
    assert status == 1 and errors.count("\n") == 1 and "--port: expected a free address of this machine" in errors
    for key in (b"\n", b"a b", b"a\nb", b"\xff\xfea", b"PK\5\6\0"):
        (tmp_path / "key").write_bytes(key)
        status, _, errors = run(capsys, "serve", "--api-key-file", tmp_path / "key")
        assert status == 2 and "--api-key-file: expected one line with a key" in errors
    status, _, errors = run(capsys, "serve", "--api-key-file", tmp_path / "none")
    assert status == 2 and "none" in errors
    for flags in (("--state", "carry"), ("--backend", "numpy")):
        status, _, errors = run(capsys, "serve", *flags)
        assert status == 2 and flags[1] in errors


def test_a_key_a_name_and_a_warning(serve, tmp_path):
    (tmp_path / "key").write_text("s3cret\n")
    process, url = serve("--api-key-file", tmp_path / "key", "--name", "mine", "--state", "zero")
    assert httpx.get(f"{url}/v1/models").status_code == 401
    models = httpx.get(f"{url}/v1/models", headers={"Authorization": "Bearer s3cret"}).json()
    assert models["data"][0]["id"] == "mine" and httpx.get(f"{url}/health").json()["state"] == "zero"
    process.send_signal(signal.SIGTERM)
    assert exit_of(process) == (0, "")
    process, _ = serve("--host", "0.0.0.0")
    process.send_signal(signal.SIGTERM)
    assert "without an API key" in exit_of(process)[1]


def test_the_example_client(serve):
    _, url = serve(name="bundled")
    texts = ["a fine play .", "they play outside ."]
    process = subprocess.run([sys.executable, ROOT / "examples/serve_client.py", url, *texts], capture_output=True,
                             text=True, check=True, timeout=SECONDS)
    expected = elmo_fast.load().embed(texts)
    assert process.stdout.splitlines() == [f"{each.shape} {each.mean():+.6f}" for each in expected]


def test_the_commands_of_the_docs(serve, tmp_path):
    """Every block of docs/serving.md with curl runs against a server; curl fails on an error status."""
    page = (ROOT / "docs/serving.md").read_text(encoding="utf-8")
    blocks = [block for block in re.findall(r"```bash\n(.*?)```", page, re.DOTALL) if "curl" in block]
    _, url = serve(name="bundled")
    assert len(blocks) >= 4
    for block in blocks:
        code = block.replace("http://127.0.0.1:8000", url).replace("curl ", "curl -sS --fail-with-body ")
        process = subprocess.run(["bash", "-euc", code], cwd=tmp_path, capture_output=True, text=True, timeout=SECONDS)
        assert process.returncode == 0, code + process.stdout + process.stderr
    with np.load(tmp_path / "vectors.npz") as file:
        np.testing.assert_array_equal(file["0"], elmo_fast.load().embed(["I ate an apple"])[0])


def test_the_python_of_the_docs(serve):
    pytest.importorskip("openai", reason="openai is not installed: make test-integrations")
    page = (ROOT / "docs/serving.md").read_text(encoding="utf-8")
    _, url = serve(name="bundled")
    names = {}
    exec("\n".join(re.findall(r"```python\n(.*?)```", page, re.DOTALL)).replace("http://127.0.0.1:8000", url), names)
    expected = elmo_fast.load().embed(["I ate an apple", "Apple sold a phone"], "average", pool="mean")
    np.testing.assert_array_equal(np.array([each.embedding for each in names["answer"].data], np.float32), expected)


def test_the_benchmark(monkeypatch, tmp_path):
    """A dry run, at sizes that measure nothing."""
    flags = "--size tiny --clients 6 --seconds 1 --texts 40 --rounds 1 --out"
    monkeypatch.setattr(sys, "argv", ["bench_serve", *flags.split(), str(tmp_path / "serve.json")])
    assert bench_serve.main() == 0
    load, single, together = json.loads((tmp_path / "serve.json").read_text())["results"]
    assert load["errors"] == 0 and load["requests"] >= 6 and load["p50"] <= load["p99"] <= load["longest"]
    assert single["median"] > 0 < together["times_as_fast"]


def test_the_image_starts_the_command():
    """No image is built: its entry point is a valid command, and its extras exist."""
    lines = (ROOT / "Dockerfile").read_text(encoding="utf-8").splitlines()
    entry = next(json.loads(line.removeprefix("ENTRYPOINT ")) for line in lines if line.startswith("ENTRYPOINT"))
    parsed = cli.make_parser().parse_args([*entry[1:], "--model", "original", "--api-key-file", "/run/key"])
    assert entry[0] == "elmo-fast" and (parsed.host, parsed.port) == ("0.0.0.0", 8000)
    extras = re.search(r"\.whl\)\[([a-z,]+)\]", "".join(lines))[1].split(",")
    assert set(extras) <= set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])


def test_flags_of_the_docs_are_those_of_the_command(capsys):
    page = (ROOT / "docs/serving.md").read_text(encoding="utf-8")
    documented = dict(re.findall(r"^\| `(--[a-z-]+)` \| ([\d,]+) \|", page, re.MULTILINE))
    _, usage, _ = run(capsys, "serve", "--help")
    usage = " ".join(usage.split())
    for flag, default in documented.items():
        assert re.search(rf"{flag} N [^-]*\(default: {default.replace(',', '')}\)", usage), flag
    assert set(documented) == set(re.findall(r"(--[a-z-]+) N ", usage.split("limits:")[1]))


def socket_of(url):
    """A plain connection."""
    host, port = url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=SECONDS)
