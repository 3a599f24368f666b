"""Bodies of requests and responses. Requests with unknown fields or wrong types are refused."""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from elmo_fast.arguments import LayerName, Pool

Texts = Annotated[list[str | list[str]], Meta(
    min_length=1, description="Strings, which are tokenized, or lists of tokens.",
    examples=[["I ate an apple", ["pre", "-", "split"]]])]


class EmbedRequest(Struct, forbid_unknown_fields=True):
    """Texts, and the layers, pooling and type of their vectors."""

    texts: Texts
    layers: Annotated[LayerName | int | list[float], Meta(
        description="All layers, the top one, their average, the number of one, or a factor for each layer.")] = "all"
    pool: Annotated[Pool | None, Meta(description="Pool the vectors of the tokens into one vector per text.")] = None
    dtype: Literal["float32", "float16"] = "float32"


class EmbedAnswer(Struct):
    """`vectors[i]` is [layers, tokens, dimensions], less the axes that `layers` and `pool` drop."""

    model: str
    tokens: list[list[str]]
    vectors: list[list]


class EmbeddingsRequest(Struct, forbid_unknown_fields=True):
    """A request in the format of OpenAI's API, extended by `layers`, `pool` and `normalize`."""

    input: Annotated[str | list[str], Meta(description="A text, or a list of texts.")]
    model: Annotated[str, Meta(description="The name listed by /v1/models.")]
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: Annotated[int | None, Meta(description="Must be the model's number of dimensions, if given.")] = None
    user: Annotated[str | None, Meta(description="Ignored.")] = None
    layers: Literal["top", "average"] | int | list[float] = "average"
    pool: Pool = "mean"
    normalize: Annotated[bool, Meta(description="Scale vectors to length 1, as OpenAI's are.")] = False


class ErrorAnswer(Struct):
    """The body of every answer from 400 on: `message`, `type`, the field `param` or null, and `code`."""

    error: dict[str, str | None]


def described_body(kind: type[Struct]) -> dict[str, Any]:
    """Return arguments of a route that show its JSON body in the API's description."""
    return {"openapi_extra": {"requestBody": {"required": True, **described(kind)}}}


def described(kind: type[Struct]) -> dict[str, Any]:
    """Return the description of a JSON body or answer, whose fields are no structures."""
    components = msgspec.json.schema_components([kind])[1]
    return {"content": {"application/json": {"schema": components[kind.__name__]}}}
