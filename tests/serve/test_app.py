"""The routes of a listening server: numbers to the bit, refusals, OpenAI's client, the key."""

import asyncio
import base64
import io

import numpy as np
import pytest

from elmo_fast.embed.api import LoadedElmo
from tests.support import models
from tests.support.files import until
from tests.support.serving import SECONDS, embed, equal, httpx, reason, texts_of

pytestmark = pytest.mark.long

BINARY = {"Accept": "application/octet-stream"}
TEXTS = ["a fine play .", ["pre split", "tokens", "\u00e9\u4e2d\U0001f600"], "  one  "]
TOKENS = [["a", "fine", "play", "."], ["pre split", "tokens", "\u00e9\u4e2d\U0001f600"], ["one"]]


def arrays(response):
    """The arrays of an `.npz` answer, in order."""
    assert response.status_code == 200 and response.headers["content-type"] == "application/octet-stream"
    with np.load(io.BytesIO(response.content)) as file:
        return [file[str(number)] for number in range(len(file.files))]


@pytest.mark.parametrize("state", ["warm", "zero"])
@pytest.mark.parametrize("layers, pool", [("all", None), ("top", None), ("average", "mean"), ([.5, .25, 0], "max"),
                                          ("all", "first_last"), (0, None), (2, "mean")])
def test_vectors_are_those_of_embed(start, state, layers, pool):
    server = start(state)
    expected = LoadedElmo(models.bilm()).embed(TOKENS, layers, state, pool)
    body = {"texts": TEXTS, "layers": layers, "pool": pool}
    answer = embed(server, **body).json()
    assert (answer["model"], answer["tokens"]) == ("tiny", TOKENS)
    assert equal([np.array(each, np.float32) for each in answer["vectors"]], expected)
    assert equal(arrays(httpx.post(f"{server.url}/v1/embed", json=body, headers=BINARY)), expected)
    halves = arrays(httpx.post(f"{server.url}/v1/embed", json={**body, "dtype": "float16"}, headers=BINARY))
    assert equal(halves, [each.astype(np.float16) for each in expected])


def test_large_answers_come_in_pieces(start):
    server = start()
    texts = [*texts_of([3000, 0, 2000]), ["\u00e9"]]
    expected = LoadedElmo(models.bilm()).embed(texts)
    answer = embed(server, texts=texts)
    assert answer.headers["transfer-encoding"] == "chunked"
    assert equal([np.array(each, np.float32).reshape(like.shape) for each, like in
                  zip(answer.json()["vectors"], expected)], expected)
    assert equal(arrays(httpx.post(f"{server.url}/v1/embed", json={"texts": texts}, headers=BINARY)), expected)
    until(lambda: server.batching.held_tokens == 0)


def test_values_beyond_float16_are_refused(start):
    factors = [1e38, 0, 0]
    assert embed(start(), texts=["a"], layers=factors, pool="mean").status_code == 200
    assert "layers: expected smaller factors" in reason(
        embed(start(), texts=["a b"], layers=[3e38, 3e38, 3e38], pool="mean"), 422, "invalid_value")
    assert "beyond float16" in reason(embed(start(), texts=["a"], layers=factors, dtype="float16"), 422,
                                      "invalid_value")


def test_many_clients_at_a_time(start):
    """Forty clients with ten requests each, of both routes."""
    server = start(slots=4)
    generator = np.random.default_rng(0)
    requests = [texts_of(generator.integers(1, 120, generator.integers(1, 5)), seed) for seed in range(400)]
    expected = [LoadedElmo(models.bilm()).embed(texts, "average", pool="mean") for texts in requests]

    async def client(numbers, results):
        async with httpx.AsyncClient(base_url=server.url, timeout=SECONDS) as http:
            for number in numbers:
                if number % 2:
                    body = {"texts": requests[number], "layers": "average", "pool": "mean"}
                    results[number] = arrays(await http.post("/v1/embed", json=body, headers=BINARY))
                else:
                    body = {"input": [" ".join(text) for text in requests[number]], "model": "tiny"}
                    data = (await http.post("/v1/embeddings", json=body)).json()["data"]
                    results[number] = [np.array(each["embedding"], np.float32) for each in data]

    async def clients():
        results = {}
        await asyncio.gather(*(client(range(begin, 400, 40), results) for begin in range(40)))
        return results

    results = asyncio.run(clients())
    assert all(equal(results[number], expected[number]) for number in range(400))
    assert server.metric('requests_total{route="/v1/embed",status="200"}') == 200
    assert server.metric('request_seconds_count{route="/v1/embeddings"}') == 200
    assert server.metric("texts_total") == sum(map(len, requests))
    assert server.metric("tokens_total") == sum(len(text) + 2 for texts in requests for text in texts)
    assert server.metric("chunk_texts_sum") > server.metric("chunk_texts_count")  # requests shared chunks
    until(lambda: server.metric("queue_tokens") == 0)


def test_openai_client(start):
    openai = pytest.importorskip("openai", reason="openai is not installed: make test-integrations")
    server = start()
    expected = list(LoadedElmo(models.bilm()).encode(["a fine play.", "one"]))
    units = [(vector / np.linalg.norm(vector.astype(np.float64))).astype(np.float32) for vector in expected]
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        for form in (openai.omit, "float", "base64"):  # the client requests base64 by default
            answer = client.embeddings.create(model="tiny", input=["a fine play.", "one"], encoding_format=form)
            assert (answer.model, answer.usage.prompt_tokens, answer.usage.total_tokens) == ("tiny", 5, 5)
            vectors = [np.frombuffer(base64.b64decode(each.embedding), "<f4") if form == "base64" else
                       np.array(each.embedding, np.float32) for each in answer.data]
            assert equal(vectors, expected) and [each.index for each in answer.data] == [0, 1]
        single = client.embeddings.create(model="tiny", input="one", dimensions=len(expected[0]))
        assert equal([np.array(single.data[0].embedding, np.float32)], expected[1:])
        unit = client.embeddings.create(model="tiny", input="one", extra_body={"normalize": True})
        assert equal([np.array(unit.data[0].embedding, np.float32)], units[1:])
        for layers in ("top", 1):
            answer = client.embeddings.create(model="tiny", input="one", extra_body={"layers": layers, "pool": "max"})
            assert equal([np.array(answer.data[0].embedding, np.float32)],
                         LoadedElmo(models.bilm()).embed(["one"], layers, pool="max"))
        assert [model.id for model in client.models.list()] == ["tiny"]
        with pytest.raises(openai.NotFoundError, match="expected 'tiny', got 'other'"):
            client.embeddings.create(model="other", input="one")
        with pytest.raises(openai.UnprocessableEntityError, match="dimensions: expected 22"):
            client.embeddings.create(model="tiny", input="one", dimensions=3)
        with pytest.raises(openai.UnprocessableEntityError, match="at least one token"):
            client.embeddings.create(model="tiny", input=["one", ""])
        with pytest.raises(openai.UnprocessableEntityError, match="input\\[0\\]: Expected `str`, got `array`"):
            client.embeddings.create(model="tiny", input=[[1, 2]])


@pytest.mark.parametrize("body, status, code, message", [
    ('{"texts": ["a"', 400, "malformed_json", "not JSON, or has a lone surrogate: Input data was truncated"),
    ('{"texts": ["a\\ud800b"]}', 400, "malformed_json", "lone surrogate"),
    ('{"texts": ["a"], "layers": [1, 2, NaN]}', 400, "malformed_json", "(byte 34)"),
    ("", 422, "invalid_body", "expected a JSON object"), ("null", 422, "invalid_body", "expected a JSON object"),
    ("[" * 100_000, 422, "invalid_body", "expected a JSON object"),
    ('{"texts": []}', 422, "invalid_value", "texts: Expected `array` of length >= 1"),
    ('{"texts": [1]}', 422, "invalid_value", "texts[0]: Expected `str | array`, got `int`"),
    ('{"texts": [["a", null]]}', 422, "invalid_value", "texts[0][1]: Expected `str`, got `null`"),
    ('{"texts": ["a"], "layer": "top"}', 422, "invalid_value", "layer: Object contains unknown field `layer`"),
    ('{"texts": ["a"], "layers": "bottom"}', 422, "invalid_value",
     "layers: Invalid enum value 'bottom', expected one of all, top, average"),
    ('{"texts": ["a"], "layers": [1, 2]}', 422, "invalid_value", "layers: expected 3 numbers"),
    *((f'{{"texts": ["a"], "layers": {number}}}', 422, "invalid_value",
       "layers: expected the number of a layer, 0 to 2") for number in (3, -1, "9" * 18)),
    *((f'{{"texts": ["a"], "layers": {value}}}', 422, "invalid_value", "layers: Expected `")
      for value in ("1.5", "true", "null")),
    ('{"texts": ["a", ""], "pool": "mean"}', 422, "no_tokens", "texts[1]: expected at least one token to pool"),
    ('{"texts": ["a a a a"]}', 413, "too_many_tokens", "texts[0]: expected at most 3 tokens, got 4"),
    ('{"texts": ["a", "' + "b" * 1001 + '"]}', 413, "token_too_long",
     "texts[1]: expected at most 1,000 characters in a token"),
    ('{"texts": ["a", "a", "a", "a", "a"]}', 413, "too_many_texts", "texts: expected at most 4 texts, got 5"),
    ('{"texts": ["a a a", "a a a", "a a a", "a a a"]}', 413, "too_many_tokens", "at most 16 tokens in a request"),
])
def test_bad_requests_get_the_reason(start, body, status, code, message):
    server = start(max_texts=4, max_tokens=3, queue_tokens=16)
    headers = {"Content-Type": "application/json"}
    assert message in reason(httpx.post(f"{server.url}/v1/embed", content=body, headers=headers), status, code)
    assert embed(server, texts=["a"]).status_code == 200


@pytest.mark.parametrize("text", ["\\ud800", "k" * 50_000, "\u00e9" * 3000])
def test_refusals_are_short_whatever_the_client_sent(start, text):
    server = start()
    for route, fields in (("embed", '"texts": ["a"], "%s": 1'), ("embed", '"texts": ["a"], "dtype": "%s"'),
                          ("embed", '"texts": ["%s"], "x": 1'), ("embeddings", '"model": "%s", "input": "a"'),
                          ("compare", '"first": "%s"'), ("nearest", '"tokens": ["%s"], "position": 1')):
        answer = httpx.post(f"{server.url}/v1/{route}", content="{%s}" % (fields % text), timeout=SECONDS,
                            headers={"Content-Type": "application/json"})
        assert answer.status_code in (400, 404, 413, 422) and len(answer.text) < 1000
        assert answer.json()["error"]["message"]


def test_headers_that_do_not_fit(start):
    url = f"{start().url}/v1/embed"
    body = b'{"texts": ["a"]}'
    json_type = {"Content-Type": "application/json"}
    assert "application/json" in reason(httpx.post(url, content=body), 415, "not_json")
    encoded = {**json_type, "Content-Encoding": "gzip"}
    assert "Content-Encoding" in reason(httpx.post(url, content=body, headers=encoded), 415, "encoded_body")
    accept = {**json_type, "Accept": "text/html"}
    assert "octet-stream" in reason(httpx.post(url, content=body, headers=accept), 406, "not_acceptable")
    for accept in ("*/*", "text/html, application/json;q=0.9", "application/*"):
        assert httpx.post(url, content=body, headers={**json_type, "Accept": accept}).json()["model"] == "tiny"
    reason(httpx.get(url), 405, "method_not_allowed")
    assert httpx.post(url, content=body, headers={**json_type, "Content-Encoding": "Identity"}).status_code == 200
    for more in ("/", "/more"):
        reason(httpx.post(f"{url}{more}", content=body, headers=json_type), 404, "not_found")


def test_an_api_key(start):
    server = start(api_key="s3cret-\u00e9")
    body = {"json": {"texts": ["a"]}, "timeout": SECONDS}
    url = f"{server.url}/v1/embed"
    for header in (None, "Bearer", "Bearer wrong", "s3cret-\u00e9", "Basic ???", "Basic c2VjcmV0"):
        headers = {} if header is None else {"Authorization": header.encode()}
        answer = httpx.post(url, headers=headers, **body)
        reason(answer, 401, "invalid_api_key")
        assert answer.headers["www-authenticate"].startswith("Basic")
    assert httpx.post(url, headers={"Authorization": "Bearer s3cret-\u00e9".encode()}, **body).status_code == 200
    basic = base64.b64encode("anyone:s3cret-\u00e9".encode()).decode()
    assert httpx.post(url, headers={"Authorization": f"Basic {basic}"}, **body).status_code == 200
    assert httpx.get(f"{server.url}/health").status_code == 200
    for path in ("/metrics", "/openapi.json", "/v1/models", "/", "/other"):
        assert httpx.get(server.url + path).status_code == 401


def test_openapi_and_metrics(start):
    server = start()
    schema = httpx.get(f"{server.url}/openapi.json").json()
    assert {"/health", "/metrics", "/v1/embed", "/v1/embeddings", "/v1/models"} <= set(schema["paths"])
    answers = schema["paths"]["/v1/embed"]["post"]["responses"]
    assert {"200", "400", "401", "406", "413", "422", "429", "500", "503", "504"} <= set(answers)
    assert set(answers["200"]["content"]) == {"application/json", "application/octet-stream"}
    assert "ErrorAnswer" in str(answers["422"])
    for path, field in (("embed", "texts"), ("embeddings", "input"), ("compare", "first"), ("nearest", "tokens")):
        fields = schema["paths"][f"/v1/{path}"]["post"]["requestBody"]["content"]["application/json"]["schema"]
        assert field in fields["required"] and fields["additionalProperties"] is False
    for path in ("/one", "/two"):
        httpx.get(server.url + path)
    metrics = httpx.get(f"{server.url}/metrics")
    assert metrics.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert 'elmo_fast_requests_total{route="other",status="404"} 2.0' in metrics.text
    assert "process_resident_memory_bytes" in metrics.text


def test_head_is_answered_where_get_is(start):
    server = start()
    with httpx.Client(base_url=server.url) as client:  # one connection, which a body would disturb
        for path in ("/", "/health", "/metrics", "/openapi.json", "/v1/models", "/v1/page"):
            head, get = client.head(path), client.get(path)
            assert head.status_code == get.status_code == 200 and head.content == b""
            assert head.headers["content-type"] == get.headers["content-type"] and head.headers["content-length"] != "0"
        assert client.head("/v1/embed").status_code == 405 and client.head("/docs").status_code == 404
    assert server.metric('requests_total{route="/health",status="200"}') == 2
