"""Limits of the server. The command makes a flag of every field, so this module imports nothing heavy."""

from dataclasses import dataclass, field


def _limit(default: int, help: str):
    return field(default=default, metadata={"help": help})


@dataclass(frozen=True)
class Limits:
    """Limits of requests and of the server's waits; integers of at least 1."""

    max_texts: int = _limit(1024, "texts in a request")
    max_tokens: int = _limit(50_000, "tokens in a text")
    max_letters: int = _limit(1000, "characters in a token, since the engine caches tokens")
    max_body_bytes: int = _limit(4 << 20, "bytes in the body of a request")
    max_connections: int = _limit(1024, "connections and requests at a time; more requests get 503, and the longest "
                                 "idle connections are closed")
    queue_tokens: int = _limit(1 << 18, "tokens of accepted requests that are not answered yet, which bounds the "
                               "memory of their vectors; more get 429")
    request_seconds: int = _limit(60, "seconds from the end of a request's body to its vectors, else 504")
    keep_alive_seconds: int = _limit(75, "seconds that a connection stays open without a request; a client should "
                                     "close it earlier")
    body_seconds: int = _limit(20, "seconds that a client has for a request's body, else 408")
    write_seconds: int = _limit(30, "seconds that a client may take no bytes of an answer")
    drain_seconds: int = _limit(30, "seconds that running requests have to end after SIGTERM")
