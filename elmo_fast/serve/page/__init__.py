"""The page at `/` and its routes: token-by-token similarities of two sentences, and nearest contexts of a word."""

import base64
import dataclasses
import hashlib
import os
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from elmo_fast.embed.api import LoadedElmo
from elmo_fast.environment import extra
from elmo_fast.errors import ConfigurationError
from elmo_fast.explore.comparison import Comparison
from elmo_fast.explore.contexts import ContextIndex
from elmo_fast.explore.nearest import context_of, open_index
from elmo_fast.explore.pages import COSINE_STYLE
from elmo_fast.serve.limits import Limits
from elmo_fast.text.tokenizers import Tokenizer, find_tokenizer
from elmo_fast.vectors.spec import OutputSpec

with extra("serve"):
    from fastapi import APIRouter, Depends, HTTPException, Request
    from fastapi.responses import HTMLResponse, Response
    from msgspec import Meta, Struct

    from elmo_fast.serve.answers import json_response
    from elmo_fast.serve.gate import Reader
    from elmo_fast.serve.schemas import described_body

MOST_TOKENS = 60  # in a sentence on the page
_PAGE = Path(__file__).with_name("page.html")
# Nothing is loaded from other servers, and only the page's script runs.
_POLICY = ("default-src 'none'; style-src 'unsafe-inline'; script-src '{}'; connect-src 'self'; img-src data:; "
           "base-uri 'none'; form-action 'none'; frame-ancestors 'self'")
# Vectors [layers, T, dim] of the texts of a request.
Vectors = Callable[[Request, list[Sequence[str]]], Awaitable[list[np.ndarray]]]


class CompareRequest(Struct, forbid_unknown_fields=True):
    """Two sentences, which the server's tokenizer splits."""

    first: str
    second: str


class NearestRequest(Struct, forbid_unknown_fields=True):
    """A tokenized sentence and the position of the word in it, counted from 0."""

    tokens: Annotated[list[str], Meta(min_length=1, max_length=MOST_TOKENS)]
    position: Annotated[int, Meta(ge=0)]
    top: Annotated[int, Meta(ge=1, le=100)] = 10
    any_word: Annotated[bool, Meta(description="Search all tokens, not only the occurrences of the word.")] = False


def router(elmo: LoadedElmo, index: ContextIndex | str | os.PathLike | None = None,
           tokenizer: str | Tokenizer = "auto", *, state: str | None = None, reader: Reader | None = None,
           vectors: Vectors | None = None) -> APIRouter:
    """Routes of the page: `/`, `/v1/page`, `/v1/compare` and `/v1/nearest`.

    `index` may be the path of a file; `tokenizer` is as in `LoadedElmo.embed`. One thread reads bodies and computes,
    unless the server gives its `reader`, and `vectors` of `state`.
    """
    reader, state = reader or Reader(Limits(), find_tokenizer(tokenizer)), state or elmo.state
    index, routes, (page, policy) = _checked_index(elmo, state, index), APIRouter(), _page()
    of_sentences = reader.of(CompareRequest, partial(_checked_sentences, reader))
    of_word = reader.of(NearestRequest, partial(_checked_word, reader, index))
    vectors = vectors or (lambda _, texts: reader.run(elmo.embed, texts, "all", state))

    @routes.get("/", include_in_schema=False)
    async def show_page() -> HTMLResponse:
        return HTMLResponse(page, headers=policy)

    @routes.get("/v1/page")
    async def describe() -> dict[str, Any]:
        """Describe the model's layers, the limit of tokens, and the index."""
        return {"layers": elmo.num_layers, "most_tokens": MOST_TOKENS, "index": _described(index)}

    @routes.post("/v1/compare", **described_body(CompareRequest))
    async def compare(request: Request, texts: Annotated[list, Depends(of_sentences)]) -> Response:
        """Tokens, and dot products between the layers of two sentences: `cross` [layers, layers, T1, T2], `first`
        [layers, layers, T1] and `second` [layers, layers, T2] of tokens with themselves, `means` [3, layers, layers].

        The cosines of a mixture of the layers with weights w are `w cross w / sqrt((w first w) (w second w))`.
        """
        return await reader.run(_compare, texts, await vectors(request, texts))

    @routes.post("/v1/nearest", **described_body(NearestRequest))
    async def nearest(request: Request, body: Annotated[Any, Depends(of_word)]) -> Response:
        """Find the contexts in the indexed corpus whose vectors are nearest to that of a word in a sentence."""
        if not body.any_word and not len(index.occurrences(body.tokens[body.position])):
            return json_response({"occurrences": 0, "neighbours": []})
        return await reader.run(_nearest, index, body, (await vectors(request, [body.tokens]))[0])

    return routes


def _page() -> tuple[str, dict[str, str]]:
    """The page with its style and script inlined, and the header that allows only this script."""
    page, style, script = (_PAGE.with_suffix(kind).read_text(encoding="utf-8") for kind in (".html", ".css", ".js"))
    page = page.replace("<style>", f"<style>{COSINE_STYLE}{style}").replace("<script>", f"<script>{script}")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return page, {"Content-Security-Policy": _POLICY.format(f"sha256-{digest}")}


def _checked_index(elmo: LoadedElmo, state: str, index: ContextIndex | str | os.PathLike | None
                   ) -> ContextIndex | None:
    """Open an index; `ConfigurationError` unless it has vectors of this model, computed with the server's state."""
    if index is None:
        return None
    if isinstance(index, (str, os.PathLike)):
        path, index = index, open_index(index)
        if index is None:
            raise ConfigurationError("index: expected a file of vectors, which `elmo-fast nearest --save` or embed "
                                     f"wrote, got {path}")
    if index.check(elmo).state != state:
        raise ConfigurationError(f"index: expected vectors of the server's state {state}, got {index.state}")
    index.occurrences("")  # indexes the words before the first request
    return index


def _checked_sentences(reader: Reader, body: CompareRequest) -> list[Sequence[str]]:
    texts = {"first": reader.tokens("first", body.first), "second": reader.tokens("second", body.second)}
    for name, tokens in texts.items():
        if not 1 <= len(tokens) <= MOST_TOKENS:
            raise HTTPException(422, f"The {name} sentence has {len(tokens)} tokens; expected 1 to {MOST_TOKENS}.")
    return list(texts.values())


def _checked_word(reader: Reader, index: ContextIndex | None, body: NearestRequest) -> NearestRequest:
    if index is None:
        raise HTTPException(404, "the server was started without an index of a corpus (--index)")
    reader.tokens("tokens", body.tokens)
    if body.position >= len(body.tokens):
        raise HTTPException(422, f"position: expected a number below {len(body.tokens)}, got {body.position}")
    return body


def _compare(texts: list[Sequence[str]], vectors: list[np.ndarray]) -> Response:
    comparison = Comparison(*texts, *vectors)
    products = *comparison.products(), comparison.mean_products()
    # As float32, numbers in an answer have at most nine significant digits.
    arrays = (np.ascontiguousarray(values, np.float32) for values in products)
    return json_response({"first_tokens": texts[0], "second_tokens": texts[1],
                          **dict(zip(("cross", "first", "second", "means"), arrays))})


def _nearest(index: ContextIndex, body: NearestRequest, vectors: np.ndarray) -> Response:
    """The answer for a word whose sentence has these vectors, float32 [layers, T, dim]."""
    occurrences = index.occurrences(body.tokens[body.position])
    vector = OutputSpec(index.layers).apply(vectors, body.tokens).vectors[body.position]
    neighbours = []
    for near in index.nearest(vector, body.top, among=None if body.any_word else occurrences):
        context = context_of(index, near.number, near.similarity)
        neighbours.append({**dataclasses.asdict(context), "tokens": list(index.texts[near.text])})
    return json_response({"occurrences": len(occurrences), "neighbours": neighbours})


def _described(index: ContextIndex | None) -> dict[str, Any] | None:
    if index is None:
        return None
    titles = {"average": "average of the layers", "top": "top layer"}
    other = f"layer {index.layers}" if isinstance(index.layers, int) else "mixture of layers"
    layers = titles[index.layers] if isinstance(index.layers, str) else other
    return {"tokens": len(index), "texts": len(index.texts), "layers": layers}
