"""Bodies of requests: read up to the first wrong element."""

import json
import random

import pytest

from tests.support.serving import SECONDS

for library in ("fastapi", "uvicorn", "prometheus_client", "msgspec", "orjson", "httpx"):
    pytest.importorskip(library, reason=f"{library} is not installed: make test-integrations")

import httpx  # noqa: E402
import msgspec  # noqa: E402

from elmo_fast.serve import bodies, schemas  # noqa: E402
from elmo_fast.serve.errors import Refusal  # noqa: E402
from elmo_fast.serve.page import CompareRequest, NearestRequest  # noqa: E402
from elmo_fast.text.tokenizers import find_tokenizer  # noqa: E402

MANY = 20_000
LISTS = {
    "texts": '{"texts": [%s]}', "texts of tokens": '{"texts": [[%s]]}', "layers": '{"texts": ["a"], "layers": [%s]}',
    "input": '{"model": "tiny", "input": [%s]}', "tokens": '{"position": 0, "tokens": [%s]}',
    "first": '{"first": [%s]}',
}
MODELS = {"input": schemas.EmbeddingsRequest, "tokens": NearestRequest, "first": CompareRequest}


@pytest.mark.parametrize("value", ["1", "null", "{}", "[]", "[[]]", '{"a": 1}', "true", "1e999", "NaN", '"a"'])
@pytest.mark.parametrize("name", LISTS)
def test_a_body_of_wrong_elements_has_a_short_error(name, value):
    text = LISTS[name] % ", ".join([value] * MANY)
    decoder = msgspec.json.Decoder(MODELS.get(name, schemas.EmbedRequest))
    try:
        bodies.read(text.encode(), decoder)
    except Refusal as error:
        assert error.status_code in (400, 422) and len(error.detail) < 1000  # noqa: PT017
    else:
        assert value == '"a"' or (name, value) in [("layers", "1"), ("texts", "[]")]


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
    assert answer.status_code in (400, 404, 413, 422) and len(answer.text) < 1000
    assert answer.json()["error"]["message"]


@pytest.mark.long
def test_an_answer_of_many_tokens_and_few_values(start):
    texts = [[f"word{number % 40}" for number in range(5000)], ["é"]]
    body = json.dumps({"texts": texts, "layers": "top", "pool": "mean"})
    answer = httpx.post(f"{start().url}/v1/embed", content=body,
                        headers={"Content-Type": "application/json"}, timeout=SECONDS)
    assert answer.headers["transfer-encoding"] == "chunked" and answer.json()["tokens"] == texts


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
