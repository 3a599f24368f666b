"""Bodies of requests: read beside the event loop, value by value, up to the first fault."""

import json
import random
import threading

import pytest

from tests.support.files import until
from tests.support.serving import SECONDS, embed, reason

for library in ("fastapi", "uvicorn", "prometheus_client", "httpx"):
    pytest.importorskip(library, reason=f"{library} is not installed: make test-integrations")

import httpx  # noqa: E402
from fastapi import HTTPException  # noqa: E402
from fastapi.exceptions import RequestValidationError  # noqa: E402

from elmo_fast.serve import bodies, schemas  # noqa: E402
from elmo_fast.serve.app import Service  # noqa: E402
from elmo_fast.serve.page import CompareRequest, NearestRequest  # noqa: E402
from elmo_fast.text.tokenizers import find_tokenizer  # noqa: E402

MANY = 20_000
LISTS = {
    "texts": '{"texts": [%s]}', "texts of tokens": '{"texts": [[%s]]}', "layers": '{"texts": ["a"], "layers": [%s]}',
    "input": '{"model": "tiny", "input": [%s]}', "tokens": '{"position": 0, "tokens": [%s]}',
    "first": '{"first": [%s]}',
}
MODELS = {"input": schemas.EmbeddingsRequest, "tokens": NearestRequest, "first": CompareRequest}
ROUTES = {"input": "/v1/embeddings", "tokens": "/v1/nearest", "first": "/v1/compare"}


def read(text, values=1000, lists=100):
    return bodies.read_json(text.encode("utf-8", "surrogatepass"), values, lists)


def value_of(rng, depth=0):
    kind = rng.randrange(8 if depth < 4 else 6)
    if kind < 6:
        return (rng.choice(["", "a", 'é"\\\n', "\ud800", "\U0001f600"]), rng.randrange(-9, 99), rng.random(), None,
                True, 1e300)[kind]
    inner = [value_of(rng, depth + 1) for _ in range(rng.randrange(4))]
    return inner if kind == 6 else {f"k{number}": value for number, value in enumerate(inner)}


def test_values_and_errors_are_those_of_json():
    rng = random.Random(0)
    for _ in range(400):
        value = value_of(rng)
        text = json.dumps(value, ensure_ascii=rng.random() < 0.5, indent=rng.choice([None, 1]))
        assert read(f" {text}\n") == json.loads(text)
        text = text[: rng.randrange(len(text))] + rng.choice(["", ",", "]", "}", "x", '"', ":", "1"])
        try:
            expected = json.loads(text)
        except json.JSONDecodeError as error:
            with pytest.raises(RequestValidationError) as found:
                read(text)
            assert (found.value.errors()[0]["ctx"]["error"], found.value.errors()[0]["loc"][-1]) in (  # noqa: PT017
                (error.msg, error.pos), ("Expecting property name enclosed in double quotes", error.pos),
                ("Expecting value", error.pos), ("Expecting value", error.pos + 1)), text
        else:
            assert read(text) == expected


@pytest.mark.parametrize("text, error, words", [
    ("[" * 100_000, HTTPException, "at most 8 lists and objects in each other"),
    ('{"a":' * 100_000, HTTPException, "at most 8 lists"), ("1" * 5000, HTTPException, "4300 digits"),
    ("[" + "1," * 2000 + "1]", HTTPException, "no more values"), ("[" + "[]," * 200 + "1]", HTTPException, "lists"),
    ('{"texts": 1, "texts": 2}', RequestValidationError, "given twice"),
    (json.dumps(dict.fromkeys(map(str, range(100)), 1)), RequestValidationError, "at most 64 keys"),
])
def test_reading_ends_at_a_limit(text, error, words):
    with pytest.raises(error) as found:
        read(text)
    assert words in str(getattr(found.value, "detail", "")) + str(getattr(found.value, "errors", list)())


@pytest.mark.parametrize("value", ["1", "null", "{}", "[]", "[[]]", '{"a": 1}', "true", "1e999", "NaN", '"a"'])
@pytest.mark.parametrize("name", LISTS)
def test_a_body_of_wrong_elements_has_few_errors(name, value):
    text = LISTS[name] % ", ".join([value] * MANY)
    model = MODELS.get(name, schemas.EmbedRequest)
    try:
        bodies._read(text.encode(), model, (4 * MANY, 4 * MANY), None)
    except RequestValidationError as error:
        assert len(error.errors()) <= 5 and len(str(error.errors())) < 1000  # noqa: PT017
    else:
        assert value == '"a"' or (name, value) in [("layers", "1"), ("texts", "[]")]


@pytest.mark.long
@pytest.mark.parametrize("name", LISTS)
def test_bodies_are_read_and_split_beside_the_loop(start, name, monkeypatch):
    server, threads = start(), []
    read, tokens = bodies._read, Service.tokens
    monkeypatch.setattr(bodies, "_read", lambda *given: threads.append(threading.current_thread().name) or read(*given))
    monkeypatch.setattr(Service, "tokens",
                        lambda *given: threads.append(threading.current_thread().name) or tokens(*given))
    for value in ("1", '"a"', "[]"):
        answer = httpx.post(server.url + ROUTES.get(name, "/v1/embed"), content=LISTS[name] % ", ".join([value] * 2000),
                            headers={"Content-Type": "application/json"}, timeout=SECONDS)
        assert answer.status_code in (200, 404, 413, 422) and (answer.status_code == 200 or len(answer.text) < 1000)
    assert len(threads) >= 3 and all(each.startswith("elmo-fast bodies") for each in threads)


@pytest.mark.long
@pytest.mark.parametrize("fields", [
    '"texts": ["a"], "%s": 1', '"texts": ["a"], "dtype": "%s"', '"texts": ["%s"], "x": 1', '"texts": "%s"',
    '"model": "%s", "input": "a"', '"model": "tiny", "input": "a", "encoding_format": "%s"', '"first": "%s"',
    '"tokens": ["%s"], "position": 1'])
@pytest.mark.parametrize("text", ["\\ud800", "k" * 50_000, "\\u0000", "é" * 3000, '\\"' * 3000])
def test_refusals_are_short_whatever_the_client_sent(start, fields, text):
    server = start()
    kind = "embeddings" if "model" in fields else "compare" if "first" in fields else (
        "nearest" if "tokens" in fields else "embed")
    answer = httpx.post(f"{server.url}/v1/{kind}", content="{%s}" % (fields % text),
                        headers={"Content-Type": "application/json"}, timeout=SECONDS)
    assert answer.status_code in (404, 413, 422) and len(answer.text) < 1000
    assert answer.json()["error"]["message"]


@pytest.mark.long
def test_an_answer_of_many_tokens_and_few_values(start):
    texts = [[f"word{number % 40}" for number in range(5000)], ["é\ud800"]]
    body = json.dumps({"texts": texts, "layers": "top", "pool": "mean"})
    answer = httpx.post(f"{start().url}/v1/embed", content=body,
                        headers={"Content-Type": "application/json"}, timeout=SECONDS)
    assert answer.headers["transfer-encoding"] == "chunked" and answer.json()["tokens"] == texts


@pytest.mark.long
def test_many_small_chunks_are_parsed_piece_by_piece(start, monkeypatch):
    from uvicorn.protocols.http.h11_impl import H11Protocol

    server, sizes, take = start(), [], H11Protocol.data_received
    monkeypatch.setattr(H11Protocol, "data_received", lambda own, data: sizes.append(len(data)) or take(own, data))
    body = b'{"texts": ["a"]%s}' % (b" " * 20_000)
    with server.connect() as connection:
        connection.sendall(b"POST /v1/embed HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                           b"Transfer-Encoding: chunked\r\n\r\n" + b"".join(b"1\r\n%c\r\n" % byte for byte in body)
                           + b"0\r\n\r\n")
        assert until(lambda: connection.recv(12)) == b"HTTP/1.1 200"
    assert sum(sizes) > 120_000 and max(sizes) <= 4096
    assert embed(server, texts=["a"]).status_code == 200


@pytest.mark.parametrize("tokenizer", ["whitespace", "penn", "simple"])
def test_long_texts_are_split_like_short_ones(tokenizer):
    rng, split = random.Random(1), find_tokenizer(tokenizer)
    pieces = ["".join(rng.choices("ab1_.,é\u0301\u0940\u200c\U0001f600\U000e0101\u0663", k=rng.randrange(1, 9)))
              for _ in range(40_000)]
    text = "".join(piece + rng.choice(" \t\u2028") for piece in pieces)
    assert split(text) == [token for piece in pieces for token in split(piece)]


@pytest.mark.long
def test_the_description_shows_bodies(start):
    paths = httpx.get(f"{start().url}/openapi.json").json()["paths"]
    for path, field in (("embed", "texts"), ("embeddings", "input"), ("compare", "first"), ("nearest", "tokens")):
        shown = paths[f"/v1/{path}"]["post"]["requestBody"]["content"]["application/json"]["schema"]
        assert field in shown["required"] and shown["additionalProperties"] is False


@pytest.mark.long
def test_a_key_given_twice_is_refused(start):
    answer = httpx.post(f"{start().url}/v1/embed", content='{"texts": ["a"], "texts": ["b"]}',
                        headers={"Content-Type": "application/json"})
    assert reason(answer, 422, "invalid_value") == "texts: Key given twice"
