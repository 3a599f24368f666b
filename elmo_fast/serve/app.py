"""The ASGI application: routes for embeddings, health and metrics. Tests and other servers call `create_app`."""

import asyncio
import base64
import contextlib
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any, NamedTuple

import numpy as np

from elmo_fast.arguments import shown
from elmo_fast.embed.api import LoadedElmo
from elmo_fast.environment import extra
from elmo_fast.serve.batching import Batching
from elmo_fast.serve.limits import Limits
from elmo_fast.text.tokenizers import Tokenizer, find_tokenizer
from elmo_fast.vectors.layouts.text_vectors import narrow
from elmo_fast.vectors.spec import OutputSpec

with extra("serve"):
    from fastapi import APIRouter, Depends, FastAPI, Request, Response
    from fastapi.responses import JSONResponse, StreamingResponse

    from elmo_fast.serve import answers, schemas
    from elmo_fast.serve.errors import Refusal, client_gone, install, refusal_of
    from elmo_fast.serve.gate import Gate, Reader
    from elmo_fast.serve.metrics import Metrics
    from elmo_fast.serve.page import router
    from elmo_fast.serve.schemas import described, described_body

_JSON, _BINARY = "application/json", "application/octet-stream"
_ERROR = described(schemas.ErrorAnswer)
_ERRORS: dict[int | str, dict[str, Any]] = dict.fromkeys(
    (400, 401, 403, 408, 413, 415, 421, 422, 429, 500, 503, 504), _ERROR)
_NPZ = {"content": {_BINARY: {"schema": {"type": "string", "format": "binary"}}}}


@dataclass
class Service:
    """State that the routes share: `name` is the model's, `split` the tokenizer of strings, `index` the page's, and
    `host` the name of the server's own.
    """

    batching: Batching
    name: str
    version: str
    limits: Limits = field(default_factory=Limits)
    api_key: str | None = None
    split: Tokenizer = field(default_factory=partial(find_tokenizer, "auto"))
    index: str | None = None
    host: str = "localhost"

    def __post_init__(self):
        self.metrics, self.reader = Metrics(self.batching), Reader(self.limits, self.split)

    def form(self, **arguments) -> OutputSpec:
        """Make an output spec and check that it fits the model; `ValueError` names the field."""
        return OutputSpec(**arguments).check(self.batching.embedder.model.num_layers)

    async def vectors(self, request: Request, texts: list[Sequence[str]]) -> list[np.ndarray]:
        """Compute vectors of tokenized texts. They count as queued tokens until the answer is sent."""
        job = self.batching.submit(texts)
        request.scope["elmo_fast.exit"].callback(job.release)
        vectors = asyncio.wrap_future(job.future)
        disconnect = asyncio.ensure_future(_disconnected(request))
        try:
            await asyncio.wait((vectors, disconnect), timeout=self.limits.request_seconds,
                               return_when=asyncio.FIRST_COMPLETED)
            if vectors.done():
                if error := vectors.exception():
                    raise refusal_of(error) from error
                self.metrics.count_texts(len(texts))
                return vectors.result()
            job.release()
            if disconnect.done():
                raise client_gone()
            raise Refusal(504, f"expected an answer within {self.limits.request_seconds} s; a smaller request or a "
                          "later one may succeed", "timeout", headers={"x-should-retry": "false"})
        finally:
            vectors.cancel()
            disconnect.cancel()

    async def answer(self, pieces: Iterator[bytes], media_type: str) -> Response:
        """Send the pieces of an answer, which are made in the reader's thread; a single one gets its length."""
        first = await self.reader.run(next, pieces)
        if len(first) < answers.PIECE_BYTES:
            return Response(first, media_type=media_type)
        return StreamingResponse(self._rest(first, pieces), media_type=media_type)

    async def _rest(self, piece: bytes, pieces: Iterator[bytes]) -> AsyncIterator[bytes]:
        while piece:
            yield piece
            piece = await self.reader.run(next, pieces, b"")


def create_app(service: Service) -> FastAPI:
    """Make the ASGI application; the service's batching must be running."""
    # FastAPI's pages load their scripts from another host, and its redirections name the host of the request.
    app = FastAPI(title="elmo-fast", version=service.version, summary="ELMo embeddings of texts",
                  redirect_slashes=False, docs_url=None, redoc_url=None)
    page = router(LoadedElmo(service.batching.embedder), service.index, state=service.batching.state,
                  reader=service.reader, vectors=service.vectors)
    for routes in (_status_routes(service), _embed_routes(service), page):
        app.include_router(routes)
    install(app)
    app.add_middleware(Gate, limits=service.limits, metrics=service.metrics, api_key=service.api_key, host=service.host,
                       routes=frozenset([*app.openapi()["paths"], "/", "/openapi.json"]))
    return app


def _status_routes(service: Service) -> APIRouter:
    router = APIRouter()
    model = service.batching.embedder.model
    about = {"model": service.name, "version": service.version, "layers": model.num_layers,
             "dimensions": model.output_dim, "state": service.batching.state, "device": str(model.device)}

    @router.get("/health", responses={503: {"description": "`status` is draining or failing"}})
    async def health() -> dict[str, Any]:
        """Whether requests are accepted."""
        batching = service.batching
        status = "draining" if batching.is_draining else "failing" if batching.is_failing else "ready"
        return JSONResponse({"status": status, **about}, 200 if status == "ready" else 503)

    @router.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
    async def metrics():
        """Metrics for Prometheus."""
        return Response(service.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    @router.get("/v1/models")
    async def models() -> dict[str, Any]:
        """The model, in OpenAI's shape."""
        return {"object": "list", "data": [{"id": service.name, "object": "model", "owned_by": "elmo-fast",
                                            "created": 0}]}

    return router


def _embed_routes(service: Service) -> APIRouter:
    router = APIRouter(prefix="/v1", responses=_ERRORS)
    of_embed = service.reader.of(schemas.EmbedRequest, partial(_embed_work, service))
    of_embeddings = service.reader.of(schemas.EmbeddingsRequest, partial(_embeddings_work, service))
    answers_of_embed = {"content": {**described(schemas.EmbedAnswer)["content"], **_NPZ["content"]}}

    @router.post("/embed", **described_body(schemas.EmbedRequest), responses={200: answers_of_embed, 406: _ERROR})
    async def embed(work: Annotated[_Work, Depends(of_embed)], request: Request):
        """Vectors of texts. With `Accept: application/octet-stream` an `.npz` file of arrays "0", "1", ..."""
        media_type = _accepted_type(request.headers.get("accept", "*/*"))
        vectors = await service.vectors(request, work.texts)

        def pieces() -> Iterator[bytes]:
            arrays = _apply_spec(work, vectors)
            yield from (answers.npz_body(arrays) if media_type == _BINARY else answers.json_body(
                {"model": service.name}, {"tokens": work.texts, "vectors": arrays}))

        return await service.answer(pieces(), media_type)

    @router.post("/embeddings", **described_body(schemas.EmbeddingsRequest), responses={404: _ERROR})
    async def embeddings(work: Annotated[_Work, Depends(of_embeddings)], request: Request):
        """Pooled vectors of texts, in OpenAI's shape."""
        vectors = await service.vectors(request, work.texts)
        count = sum(map(len, work.texts))
        head = {"object": "list", "model": service.name, "usage": {"prompt_tokens": count, "total_tokens": count}}

        def pieces() -> Iterator[bytes]:
            arrays = _apply_spec(work, vectors)
            as_base64 = work.encoding == "base64"
            data = ({"object": "embedding", "index": number,
                     "embedding": base64.b64encode(array.astype("<f4")).decode() if as_base64 else array}
                    for number, array in enumerate(map(_unit, arrays) if work.normalize else arrays))
            yield from answers.json_body(head, {"data": data})

        return await service.answer(pieces(), _JSON)

    return router


class _Work(NamedTuple):
    """A checked request: output spec, tokenized texts, the encoding of vectors, and whether to scale them."""

    form: OutputSpec
    texts: list[Sequence[str]]
    encoding: str = "float"
    normalize: bool = False


def _embed_work(service: Service, body: schemas.EmbedRequest) -> _Work:
    form = service.form(layers=body.layers, pool=body.pool, dtype=body.dtype)
    return _Work(form, service.reader.texts("texts", body.texts, form.pool is not None))


def _embeddings_work(service: Service, body: schemas.EmbeddingsRequest) -> _Work:
    if body.model != service.name:
        raise Refusal(404, f"model: expected {service.name!r}, got {body.model[:80]!r}", "model_not_found", "model")
    if body.dimensions not in (None, size := service.batching.embedder.model.output_dim):
        raise Refusal(422, f"dimensions: expected {size}, which the model has, or none, got {shown(body.dimensions)}",
                      "invalid_value", "dimensions")
    form = service.form(layers=body.layers, pool=body.pool)
    texts = service.reader.texts("input", [body.input] if isinstance(body.input, str) else body.input, True)
    if not texts:
        raise Refusal(422, "input: expected at least one text, got none", "no_texts", "input")
    return _Work(form, texts, body.encoding_format, body.normalize)


def _accepted_type(accept: str) -> str:
    for part in accept.split(","):
        media_type = part.partition(";")[0].strip().lower()
        if media_type in (_JSON, _BINARY):
            return media_type
        if media_type in ("", "*/*", "application/*"):
            return _JSON
    raise Refusal(406, f"Accept: expected {_JSON} or {_BINARY} (.npz), got {accept!r:.80}", "not_acceptable")


def _apply_spec(work: _Work, vectors: list[np.ndarray]) -> list[np.ndarray]:
    """Select, mix and pool vectors as the output spec says, in its dtype; removes the vectors from their list."""
    form, arrays = work.form, []
    for number, tokens in enumerate(work.texts):
        with np.errstate(over="ignore", invalid="ignore"):
            array, vectors[number] = form.apply(vectors[number], tokens).vectors, None
        if isinstance(form.layers, tuple) and not np.isfinite(array).all():
            raise Refusal(422, f"layers: expected smaller factors, for texts[{number}] has values beyond float32",
                          "invalid_value", "layers")
        try:
            arrays.append(narrow(array, np.dtype(form.dtype)))
        except OverflowError:
            raise Refusal(422, f"dtype: expected float32, for texts[{number}] has values beyond float16",
                          "invalid_value", "dtype") from None
    return arrays


def _unit(vector: np.ndarray) -> np.ndarray:
    """The vector at length 1, in its dtype; zeros stay."""
    length = np.linalg.norm(vector.astype(np.float64))
    return (vector / length).astype(vector.dtype) if length else vector


async def _disconnected(request: Request) -> None:
    with contextlib.suppress(asyncio.CancelledError):
        while (await request.receive())["type"] != "http.disconnect":
            pass
