"""The server under load: clients that ask without a pause, mixed lengths; and batching beside one request at a time.

`elmo-fast serve` runs in a process of its own with a random model, and the clients in this one. Every answer is
compared to the bit with `LoadedElmo.embed`, and one that differs, or any error, ends the run without a file.
"""

import asyncio
import contextlib
import itertools
import json
import math
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.request import urlopen

import numpy as np

from benchmarks import common, models

_MEMORY = "process_resident_memory_bytes"
_DOCUMENT_TOKENS = 2000
_DOCUMENT_SHARE = .02  # of the requests ask for a document, the others for a sentence
_ALONE_TEXTS = 200  # sentences that the comparison with one request at a time asks for at least, in a round


@dataclass(frozen=True)
class Question:
    """A request and the body of its answer, whose texts have `tokens` tokens."""

    request: bytes
    answer: bytes
    tokens: int


@dataclass
class Load:
    """Seconds and tokens of every request, the tokens answered in `seconds`, and samples of memory in bytes."""

    latencies: list[tuple[float, int]] = field(default_factory=list)
    tokens: int = 0
    seconds: float = 0
    memory: list[float] = field(default_factory=list)

    def figures(self) -> dict:
        """Rates, and percentiles in seconds of all requests and of sentences and documents apart."""
        found = {"requests": len(self.latencies), "seconds": self.seconds, "tokens_per_s": self.tokens / self.seconds,
                 "requests_per_s": len(self.latencies) / self.seconds}
        for name, accepts in (("", lambda tokens: True), ("sentence_", lambda tokens: tokens < _DOCUMENT_TOKENS),
                              ("document_", lambda tokens: tokens >= _DOCUMENT_TOKENS)):
            chosen = [seconds for seconds, tokens in self.latencies if accepts(tokens)]
            if chosen:
                found |= {f"{name}p{rank}": float(np.percentile(chosen, rank)) for rank in (50, 99)}
                found[f"{name}longest"] = max(chosen)
        return found


def main() -> int:
    """Measure and write the JSON; 1 with the reason on stderr where something failed."""
    parser = common.make_parser(__doc__, "serve-SIZE.json", ("--clients", 200, "clients at a time"),
                                ("--seconds", 60, "seconds of load"), ("--slots", 64, "slots of the server"),
                                ("--rounds", 5, "rounds of batching beside one request at a time"),
                                ("--texts", 2000, "texts to draw from"))
    parser.add_argument("--size", choices=list(common.SIZES), default="small", help="(default: %(default)s)")
    arguments = parser.parse_args()
    return common.run_and_write(arguments, measure, f"serve-{arguments.size}.json", report)


def measure(arguments) -> dict:
    """The document of results."""
    sentences, source = common.running_text(arguments.texts)
    with tempfile.TemporaryDirectory() as folder:
        models.write_files(Path(folder), arguments.size)
        questions = _questions(Path(folder), sentences)
        documents, short = questions[: len(questions) - len(sentences)], questions[len(questions) - len(sentences):]
        with _server(Path(folder), arguments) as (process, port):
            asyncio.run(_ask(port, short[:100], 10, 0))  # warm, checked
            few = short[: max(_ALONE_TEXTS, 4 * arguments.clients)]
            rates = common.alternate({clients: lambda clients=clients: asyncio.run(_ask(port, few, clients, 0)).tokens
                                      for clients in (1, arguments.clients)}, arguments.rounds)
            before = _metrics(port)
            load = asyncio.run(_ask(port, _mixed(short, documents), arguments.clients, arguments.seconds,
                                    lambda: _metrics(port)[_MEMORY]))
            after = _metrics(port)
            process.terminate()
            if process.wait(60):
                raise RuntimeError(f"the server ended with {process.returncode}")
    ratios = np.divide(rates[arguments.clients], rates[1])
    settings = {"size": arguments.size, "clients": arguments.clients, "slots": arguments.slots, "text": source,
                "document_tokens": _DOCUMENT_TOKENS, "document_share": _DOCUMENT_SHARE,
                "answers": "mean over tokens of the layers' average, .npz", "equal_to_the_bit": len(load.latencies)}
    results = [
        {"way": "load", "errors": 0, **load.figures(), "resident_mib_before": before[_MEMORY] / 2**20,
         "resident_mib_peak": max(load.memory) / 2**20,
         "texts_a_chunk": (after["chunk_texts_sum"] - before["chunk_texts_sum"])
         / (after["chunk_texts_count"] - before["chunk_texts_count"])},
        {"way": "one request at a time", **common.Timing.of(rates[1]).as_dict(), "unit": "tokens/s"},
        {"way": "all clients", **common.Timing.of(rates[arguments.clients]).as_dict(), "unit": "tokens/s",
         "times_as_fast": float(np.median(ratios))}]
    return common.document(f"serve {arguments.size}", settings, common.rounded(results))


def report(document: dict) -> str:
    """A line for the load and a line for the ratio."""
    load, alone, together = document["results"]
    return (f"{load['requests']} requests, no error: {load['tokens_per_s']:,.0f} tokens/s, p50 {load['p50']:.3f} s, "
            f"p99 {load['p99']:.3f} s, {load['resident_mib_peak']:.0f} MiB\n"
            f"one request at a time {alone['median']:,.0f} tokens/s, together {together['median']:,.0f}: "
            f"{together['times_as_fast']:.2f} times as fast")


def _questions(folder: Path, sentences: list[list[str]]) -> list[Question]:
    """Documents, a twentieth as many as sentences, then the sentences."""
    from elmo_fast import load
    from elmo_fast.serve.answers import npz_body

    words = list(itertools.chain(*sentences))
    count = max(1, len(sentences) // 20)
    starts = np.random.default_rng(0).integers(0, max(1, len(words) - _DOCUMENT_TOKENS), count)
    documents = [(words[start:] + words)[:_DOCUMENT_TOKENS] for start in starts]
    texts = [*documents, *sentences]
    vectors = load(folder).embed(texts, "average", pool="mean")
    return [Question(_request(text), b"".join(npz_body([vector])), len(text)) for text, vector in zip(texts, vectors)]


def _request(text: list[str]) -> bytes:
    body = json.dumps({"texts": [text], "layers": "average", "pool": "mean"}).encode()
    head = ("POST /v1/embed HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            f"Accept: application/octet-stream\r\nContent-Length: {len(body)}\r\n\r\n")
    return head.encode() + body


def _mixed(sentences: list[Question], documents: list[Question]) -> Iterator[Question]:
    generator = np.random.default_rng(1)
    while True:
        chosen = documents if generator.random() < _DOCUMENT_SHARE else sentences
        yield chosen[generator.integers(len(chosen))]


@contextlib.contextmanager
def _server(folder: Path, arguments) -> Iterator[tuple[subprocess.Popen, int]]:
    command = [sys.executable, "-m", "elmo_fast.cli", "serve", "--model", folder, "--port", "0", "--slots",
               arguments.slots, "--max-connections", 2 * arguments.clients + 10]
    environment = {**os.environ, "PYTHONPATH": str(common.ROOT)}
    if arguments.threads:
        environment["OMP_NUM_THREADS"] = str(arguments.threads)
    process = subprocess.Popen(list(map(str, command)), env=environment, stdout=subprocess.PIPE, text=True)
    try:
        found = re.search(r":(\d+)$", process.stdout.readline())
        if found is None:
            raise RuntimeError("the server did not start")
        yield process, int(found[1])
    finally:
        process.kill()
        process.communicate()


async def _ask(port: int, questions, clients: int, seconds: float, sample: Callable[[], float] | None = None) -> Load:
    """Ask all questions, or for so many `seconds`, with so many clients; `sample` measures memory every second."""
    source, began = iter(questions), time.perf_counter()
    load = Load()
    end = began + seconds if seconds else math.inf

    async def client() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        while time.perf_counter() < end and (question := next(source, None)):
            start = time.perf_counter()
            writer.write(question.request)
            head = await reader.readuntil(b"\r\n\r\n")
            body = await reader.readexactly(int(re.search(rb"content-length: (\d+)", head)[1]))
            if not head.startswith(b"HTTP/1.1 200") or body != question.answer:
                raise RuntimeError(f"expected the vectors of `embed`, got {head[:20]!r} {body[:300]!r}")
            load.latencies.append((time.perf_counter() - start, question.tokens))
            load.tokens += question.tokens
        writer.close()

    async def watch() -> None:
        while True:
            load.memory.append(await asyncio.to_thread(sample))
            await asyncio.sleep(1)

    watching = asyncio.create_task(watch()) if sample else None
    await asyncio.gather(*(client() for _ in range(clients)))
    if watching:
        watching.cancel()
    load.seconds = time.perf_counter() - began
    return load


def _metrics(port: int) -> dict[str, float]:
    with urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        lines = [line.rsplit(" ", 1) for line in answer.read().decode().splitlines() if line[:1] != "#"]
    return {name.removeprefix("elmo_fast_"): float(value) for name, value in lines}


if __name__ == "__main__":
    sys.exit(main())
