"""Metrics in Prometheus' format, in a separate registry."""

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest

from elmo_fast.serve.batching import Batching

_SECONDS = (.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60)


class Metrics:
    """The metrics of a server and its queue that `/metrics` shows."""

    def __init__(self, batching: Batching):
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        self._requests = self._make(Counter, "requests", "Answered requests", ("route", "status"))
        self._seconds = self._make(Histogram, "request_seconds", "Seconds from a request's first byte to its last",
                                   ("route",), buckets=_SECONDS)
        self._tokens = self._make(Counter, "tokens", "Tokens computed, with the boundaries of texts")
        self._texts = self._make(Counter, "texts", "Texts in answers")
        self._occupancy = self._make(Histogram, "chunk_texts", "Texts in a chunk of steps; short ones share a slot",
                                     buckets=[1 << bit for bit in range(batching.slots.bit_length() + 4)])
        self.running = 0  # requests whose answers are not sent
        for name, text, value in (
                ("requests_in_progress", "Requests whose answers are not sent", lambda: self.running),
                ("queue_tokens", "Tokens of accepted requests that are not answered", lambda: batching.held_tokens),
                ("queue_limit_tokens", "Most tokens of accepted requests", lambda: batching.queue_tokens),
                ("waiting_texts", "Accepted texts that have not begun", lambda: batching.waiting_texts),
                ("running_texts", "Texts in slots", lambda: batching.running_texts),
                ("slots", "Texts that can run at a time", lambda: batching.slots),
                ("draining", "1 after SIGTERM", lambda: batching.is_draining),
                ("failing", "1 when the engine fails", lambda: batching.is_failing)):
            self._make(Gauge, name, text).set_function(value)
        batching.on_chunk = self._count_chunk

    def _make(self, metric: Callable, name: str, text: str, labels: tuple[str, ...] = (), **arguments):
        return metric(f"elmo_fast_{name}", text, labels, registry=self._registry, **arguments)

    def _count_chunk(self, texts: int, tokens: int) -> None:
        self._tokens.inc(tokens)
        self._occupancy.observe(texts)

    def count_request(self, route: str, status: int, seconds: float) -> None:
        """Count an answer that was sent."""
        self._requests.labels(route, str(status)).inc()
        self._seconds.labels(route).observe(seconds)

    def count_texts(self, texts: int) -> None:
        """Count texts whose vectors are sent."""
        self._texts.inc(texts)

    def text(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        return generate_latest(self._registry)
