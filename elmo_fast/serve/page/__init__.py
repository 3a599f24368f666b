"""The page at `/` and its routes: token-by-token similarities of two sentences, and nearest contexts of a word."""

import base64
import dataclasses
import hashlib
import os
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from elmo_fast.embed.api import LoadedElmo
from elmo_fast.environment import extra
from elmo_fast.errors import ConfigurationError
from elmo_fast.explore.comparison import compare
from elmo_fast.explore.contexts import ContextIndex
from elmo_fast.explore.nearest import context_of, open_index
from elmo_fast.explore.pages import COSINE_STYLE
from elmo_fast.text.tokenizers import Tokenizer, find_tokenizer

with extra("serve"):
    from fastapi import APIRouter, Depends, HTTPException
    from fastapi.responses import HTMLResponse, Response
    from msgspec import Meta, Struct

    from elmo_fast.serve.answers import json_response
    from elmo_fast.serve.bodies import BodyReader
    from elmo_fast.serve.schemas import described_body

MOST_TOKENS = 60  # in a sentence on the page
_PAGE = Path(__file__).with_name("page.html")
# Nothing is loaded from other servers, and only the page's script runs.
_POLICY = ("default-src 'none'; style-src 'unsafe-inline'; script-src '{}'; connect-src 'self'; img-src data:; "
           "base-uri 'none'; form-action 'none'; frame-ancestors 'self'")
_Token = Annotated[str, Meta(max_length=2000)]
_Sentence = Annotated[str, Meta(max_length=20000)]


class CompareRequest(Struct, forbid_unknown_fields=True):
    """Two sentences, which the server's tokenizer splits."""

    first: _Sentence
    second: _Sentence


class NearestRequest(Struct, forbid_unknown_fields=True):
    """A tokenized sentence and the position of the word in it, counted from 0."""

    tokens: Annotated[list[_Token], Meta(min_length=1, max_length=MOST_TOKENS)]
    position: Annotated[int, Meta(ge=0)]
    top: Annotated[int, Meta(ge=1, le=100)] = 10
    any_word: Annotated[bool, Meta(description="Search all tokens, not only the occurrences of the word.")] = False


def router(elmo: LoadedElmo, index: ContextIndex | str | os.PathLike | None = None,
           tokenizer: str | Tokenizer = "auto") -> APIRouter:
    """Routes of the page: `/`, `/v1/page`, `/v1/compare` and `/v1/nearest`.

    `index` may be the path of a file; `tokenizer` is as in `LoadedElmo.embed`, and several threads of the server call
    it at a time.
    """
    index, split = None if index is None else _checked_index(elmo, index), find_tokenizer(tokenizer)
    routes, reader, (page, policy) = APIRouter(), BodyReader(), _page()
    about = {"layers": elmo.num_layers, "most_tokens": MOST_TOKENS, "index": None if index is None else {
        "tokens": len(index), "texts": len(index.texts), "layers": _layers_text(index)}}

    @routes.get("/", include_in_schema=False)
    def show_page() -> HTMLResponse:
        return HTMLResponse(page, headers=policy)

    @routes.get("/v1/page")
    def describe() -> dict[str, Any]:
        """Describe the model's layers, the limit of tokens, and the index."""
        return about

    @routes.post("/v1/compare", **described_body(CompareRequest))
    def compare_sentences(body: Annotated[CompareRequest, Depends(reader.of(CompareRequest))]) -> Response:
        """Tokens, and dot products between the layers of two sentences: `cross` [layers, layers, T1, T2], `first`
        [layers, layers, T1] and `second` [layers, layers, T2] of tokens with themselves, `means` [3, layers, layers].

        The cosines of a mixture of the layers with weights w are `w cross w / sqrt((w first w) (w second w))`.
        """
        return json_response(_compare(elmo, list(split(body.first)), list(split(body.second))))

    @routes.post("/v1/nearest", **described_body(NearestRequest))
    def find_nearest(body: Annotated[NearestRequest, Depends(reader.of(NearestRequest))]) -> Response:
        """Find the contexts in the indexed corpus whose vectors are nearest to that of a word in a sentence."""
        return json_response(_nearest(elmo, index, body))

    return routes


def _page() -> tuple[str, dict[str, str]]:
    """The page with its style and script inlined, and the header that allows only this script."""
    page, style, script = (_PAGE.with_suffix(kind).read_text(encoding="utf-8") for kind in (".html", ".css", ".js"))
    page = page.replace("<style>", f"<style>{COSINE_STYLE}{style}").replace("<script>", f"<script>{script}")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return page, {"Content-Security-Policy": _POLICY.format(f"sha256-{digest}")}


def _checked_index(elmo: LoadedElmo, index: ContextIndex | str | os.PathLike) -> ContextIndex:
    """Open an index; `ConfigurationError` unless it has vectors of this model, computed with the server's state."""
    if isinstance(index, (str, os.PathLike)):
        path, index = index, open_index(index)
        if index is None:
            raise ConfigurationError("index: expected a file of vectors, which `elmo-fast nearest --save` or embed "
                                     f"wrote, got {path}")
    if index.check(elmo).state != elmo.state:
        raise ConfigurationError(f"index: expected vectors of the server's state {elmo.state}, got {index.state}")
    index.occurrences("")  # indexes the words before the first request
    return index


def _compare(elmo: LoadedElmo, first: list[str], second: list[str]) -> dict[str, Any]:
    for name, tokens in (("first", first), ("second", second)):
        if not 1 <= len(tokens) <= MOST_TOKENS:
            raise HTTPException(422, f"The {name} sentence has {len(tokens)} tokens; expected 1 to {MOST_TOKENS}.")
    comparison = compare(elmo, first, second, elmo.state)
    products = *comparison.products(), comparison.mean_products()
    # As float32, numbers in an answer have at most nine significant digits.
    arrays = (np.ascontiguousarray(values, np.float32) for values in products)
    return {"first_tokens": first, "second_tokens": second, **dict(zip(("cross", "first", "second", "means"), arrays))}


def _nearest(elmo: LoadedElmo, index: ContextIndex | None, body: NearestRequest) -> dict[str, Any]:
    if index is None:
        raise HTTPException(404, "the server was started without an index of a corpus (--index)")
    if body.position >= len(body.tokens):
        raise HTTPException(422, f"position: expected a number below {len(body.tokens)}, got {body.position}")
    word = body.tokens[body.position]
    occurrences = index.occurrences(word)
    if not len(occurrences) and not body.any_word:
        return {"occurrences": 0, "neighbours": []}
    vector = elmo.embed([body.tokens], index.layers, index.state)[0][body.position]
    neighbours = []
    for near in index.nearest(vector, body.top, among=None if body.any_word else occurrences):
        context = context_of(index, near.number, near.similarity)
        neighbours.append({**dataclasses.asdict(context), "tokens": list(index.texts[near.text])})
    return {"occurrences": len(occurrences), "neighbours": neighbours}


def _layers_text(index: ContextIndex) -> str:
    titles = {"average": "average of the layers", "top": "top layer"}
    if isinstance(index.layers, str):
        return titles[index.layers]
    if isinstance(index.layers, int):
        return f"layer {index.layers}"
    numbers = [number for number, factor in enumerate(index.layers) if factor]
    return f"layer {numbers[0]}" if len(numbers) == 1 else "mixture of layers"
