"""The ASGI application: routes for embeddings, health and metrics. Tests and other servers call `create_app`."""

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any, NamedTuple

import numpy as np

from elmo_fast.arguments import shown
from elmo_fast.environment import extra
from elmo_fast.serve.batching import Batching, SharedElmo
from elmo_fast.serve.limits import Limits
from elmo_fast.text.tokenizers import Tokenizer, find_tokenizer
from elmo_fast.vectors.spec import OutputSpec

with extra("serve"):
    from fastapi import APIRouter, Depends, FastAPI, Request, Response
    from fastapi.responses import JSONResponse, StreamingResponse

    from elmo_fast.serve import answers, schemas
    from elmo_fast.serve.bodies import BodyReader
    from elmo_fast.serve.errors import Refusal, client_gone, install, refusal_of, timed_out
    from elmo_fast.serve.guard import Guard
    from elmo_fast.serve.metrics import Metrics
    from elmo_fast.serve.page import router as page_routes
    from elmo_fast.serve.schemas import described, described_body

# Most values plus bytes of tokens in an answer sent in one piece, and most values mixed and pooled in the event loop.
_MAX_ONE_PIECE, _MAX_IN_LOOP = 1 << 13, 1 << 16
_JSON, _BINARY = "application/json", "application/octet-stream"
_ERROR = described(schemas.ErrorAnswer)
_ERRORS: dict[int | str, dict[str, Any]] = dict.fromkeys((400, 401, 408, 413, 415, 422, 429, 500, 503, 504), _ERROR)
_NPZ = {"content": {_BINARY: {"schema": {"type": "string", "format": "binary"}}}}


@dataclass
class Service:
    """State that the routes share: `name` is the model's, `split` the tokenizer of strings, `index` the page's."""

    batching: Batching
    name: str
    version: str
    limits: Limits = field(default_factory=Limits)
    api_key: str | None = None
    split: Tokenizer = field(default_factory=partial(find_tokenizer, "auto"))
    index: str | None = None

    def __post_init__(self):
        self.metrics = Metrics(self.batching)

    def form(self, **arguments) -> OutputSpec:
        """Make an output spec and check that it fits the model; `ValueError` names the field."""
        return OutputSpec(**arguments).check(self.batching.embedder.model.num_layers)

    def tokens(self, texts: Sequence[str | Sequence[str]], name: str, pooled: bool) -> list[Sequence[str]]:
        """Split texts into tokens; `Refusal` for texts beyond the limits, and for empty texts to be pooled."""
        if len(texts) > self.limits.max_texts:
            raise Refusal(413, f"{name}: expected at most {self.limits.max_texts:,} texts, got {len(texts):,}",
                          "too_many_texts", name)
        tokenized: list[Sequence[str]] = []
        for number, text in enumerate(texts):
            tokens = self.split(text) if isinstance(text, str) else text
            tokenized.append(tokens)
            if len(tokens) > self.limits.max_tokens:
                raise Refusal(413, f"{name}[{number}]: expected at most {self.limits.max_tokens:,} tokens, got "
                              f"{len(tokens):,}", "too_many_tokens", name)
            if max(map(len, tokens), default=0) > self.limits.max_letters:
                raise Refusal(413, f"{name}[{number}]: expected at most {self.limits.max_letters:,} characters in a "
                              "token", "token_too_long", name)
            if pooled and not tokens:
                raise Refusal(422, f"{name}[{number}]: expected at least one token to pool, got none",
                              "no_tokens", name)
        return tokenized

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
            raise timed_out(self.limits.request_seconds)
        finally:
            vectors.cancel()
            disconnect.cancel()


def create_app(service: Service) -> FastAPI:
    """Make the ASGI application; the service's batching must be running."""
    # FastAPI's pages load their scripts from another host, and its redirections name the host of the request.
    app = FastAPI(title="elmo-fast", version=service.version, summary="ELMo embeddings of texts",
                  redirect_slashes=False, docs_url=None, redoc_url=None)
    page = page_routes(SharedElmo(service.batching, service.limits.request_seconds), service.index, service.split)
    for router in (_status_routes(service), _embed_routes(service), page):
        app.include_router(router)
    install(app)
    routes = frozenset([*app.openapi()["paths"], "/", "/openapi.json"])
    app.add_middleware(Guard, limits=service.limits, metrics=service.metrics, api_key=service.api_key,
                       routes=routes)
    return app


def _status_routes(service: Service) -> APIRouter:
    router = APIRouter()
    model = service.batching.embedder.model
    about = {"model": service.name, "version": service.version, "layers": model.num_layers,
             "dimensions": model.output_dim, "state": service.batching.state, "device": str(model.device)}

    @router.get("/health", responses={200: described(schemas.Health), 503: described(schemas.Health)})
    async def health():
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
    router, reader = APIRouter(prefix="/v1", responses=_ERRORS), BodyReader()
    of_embed = reader.of(schemas.EmbedRequest, partial(_embed_work, service))
    of_embeddings = reader.of(schemas.EmbeddingsRequest, partial(_embeddings_work, service))

    answers_of_embed = {"content": {**described(schemas.EmbedAnswer)["content"], **_NPZ["content"]}}

    @router.post("/embed", **described_body(schemas.EmbedRequest), responses={200: answers_of_embed, 406: _ERROR})
    async def embed(work: Annotated[_Work, Depends(of_embed)], request: Request):
        """Vectors of texts. With `Accept: application/octet-stream` an `.npz` file of arrays "0", "1", ..."""
        media_type = _accepted_type(request.headers.get("accept", "*/*"))
        form, texts = work[:2]
        vectors = await service.vectors(request, texts)
        arrays = await _run_off_loop(vectors, partial(_apply_spec, form, texts, vectors))
        if media_type == _BINARY:
            return _answer(answers.npz_body(arrays), arrays, _BINARY)
        pieces = answers.json_body({"model": service.name}, {"tokens": texts, "vectors": arrays})
        return _answer(pieces, arrays, _JSON, len(await request.body()))

    @router.post("/embeddings", **described_body(schemas.EmbeddingsRequest),
                 responses={200: described(schemas.EmbeddingsAnswer), 404: _ERROR})
    async def embeddings(work: Annotated[_Work, Depends(of_embeddings)], request: Request):
        """Pooled vectors of texts, in OpenAI's shape."""
        form, texts, encoding, normalize = work
        vectors = await service.vectors(request, texts)
        arrays = await _run_off_loop(vectors, partial(_apply_spec, form, texts, vectors))
        data = ({"object": "embedding", "index": number,
                 "embedding": answers.base64_of(array) if encoding == "base64" else array}
                for number, array in enumerate(map(_unit, arrays) if normalize else arrays))
        count = sum(map(len, texts))
        head = {"object": "list", "model": service.name, "usage": {"prompt_tokens": count, "total_tokens": count}}
        return _answer(answers.json_body(head, {"data": data}), arrays, _JSON)

    return router


class _Work(NamedTuple):
    """A checked request: output spec, tokenized texts, the encoding of vectors, and whether to scale them."""

    form: OutputSpec
    texts: list[Sequence[str]]
    encoding: str = "float"
    normalize: bool = False


def _embed_work(service: Service, body: schemas.EmbedRequest) -> _Work:
    form = service.form(layers=body.layers, pool=body.pool, dtype=body.dtype)
    return _Work(form, service.tokens(body.texts, "texts", form.pool is not None))


def _embeddings_work(service: Service, body: schemas.EmbeddingsRequest) -> _Work:
    _check_model(service, body)
    form = service.form(layers=body.layers, pool=body.pool)
    texts = service.tokens([body.input] if isinstance(body.input, str) else body.input, "input", True)
    if not texts:
        raise Refusal(422, "input: expected at least one text, got none", "no_texts", "input")
    return _Work(form, texts, body.encoding_format, body.normalize)


def _check_model(service: Service, body: schemas.EmbeddingsRequest) -> None:
    if body.model != service.name:
        raise Refusal(404, f"model: expected {service.name!r}, got {body.model[:80]!r}", "model_not_found", "model")
    size = service.batching.embedder.model.output_dim
    if body.dimensions not in (None, size):
        raise Refusal(422, f"dimensions: expected {size}, which the model has, or none, got {shown(body.dimensions)}",
                      "invalid_value", "dimensions")


def _accepted_type(accept: str) -> str:
    for part in accept.split(","):
        media_type = part.partition(";")[0].strip().lower()
        if media_type in (_JSON, _BINARY):
            return media_type
        if media_type in ("", "*/*", "application/*"):
            return _JSON
    raise Refusal(406, f"Accept: expected {_JSON} or {_BINARY} (.npz), got {accept!r:.80}", "not_acceptable")


def _apply_spec(form: OutputSpec, texts: Sequence[Sequence[str]], vectors: list[np.ndarray]) -> list[np.ndarray]:
    """Select, mix and pool vectors as `form` says, in its dtype; removes the vectors from their list."""
    arrays = []
    for number, tokens in enumerate(texts):
        with np.errstate(over="ignore", invalid="ignore"):
            array, vectors[number] = form.apply(vectors[number], tokens).vectors, None
        if isinstance(form.layers, tuple) and not np.isfinite(array).all():
            raise Refusal(422, f"layers: expected smaller factors, for texts[{number}] has values beyond float32",
                          "invalid_value", "layers")
        if form.dtype == "float16":
            with np.errstate(over="ignore"):
                array = array.astype(np.float16)
            if not np.isfinite(array).all():
                raise Refusal(422, f"dtype: expected float32, for texts[{number}] has values beyond float16",
                              "invalid_value", "dtype")
        arrays.append(np.ascontiguousarray(array))
    return arrays


def _unit(vector: np.ndarray) -> np.ndarray:
    """The vector at length 1, in its dtype; zeros stay."""
    length = np.linalg.norm(vector.astype(np.float64))
    return (vector / length).astype(vector.dtype) if length else vector


async def _run_off_loop(arrays: Sequence[np.ndarray], function: Callable[[], Any]) -> Any:
    if sum(array.size for array in arrays) <= _MAX_IN_LOOP:
        return function()
    return await asyncio.to_thread(function)


def _answer(pieces: Iterator[bytes], arrays: Sequence[np.ndarray], media_type: str, size: int = 0) -> Response:
    """Send an answer in one piece if it is small, else stream it. `size` is at least its tokens' bytes."""
    if size + sum(array.size for array in arrays) <= _MAX_ONE_PIECE:
        return Response(b"".join(pieces), media_type=media_type)
    return StreamingResponse(pieces, media_type=media_type)


async def _disconnected(request: Request) -> None:
    with contextlib.suppress(asyncio.CancelledError):
        while (await request.receive())["type"] != "http.disconnect":
            pass
