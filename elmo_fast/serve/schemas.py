"""Bodies of requests and answers: unknown fields and wrong types are refused."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from elmo_fast.vectors.spec import POOLS

# Lists are refused at their first fault: an error for every element would take minutes for a body of some megabytes.
Tokens = Annotated[list[str], Field(fail_fast=True)]
Factors = Annotated[list[Annotated[float, Field(allow_inf_nan=False)]], Field(fail_fast=True)]
Pool = Literal[*POOLS]


class StrictModel(BaseModel):
    """A body that is refused with unknown fields or wrong types."""

    model_config = ConfigDict(extra="forbid", strict=True)


class EmbedRequest(StrictModel):
    """Texts and what is wanted of their vectors."""

    texts: Annotated[list[str | Tokens], Field(
        min_length=1, fail_fast=True,
        description="Strings, which are split, or lists of tokens, which are taken as they are.")]
    layers: Annotated[Literal["all", "top", "average"] | Factors, Field(
        description="All layers, the top one, their average, or a factor for every layer.")] = "all"
    pool: Annotated[Pool | None, Field(description="One vector a text in place of one a token.")] = None
    dtype: Literal["float32", "float16"] = "float32"

    model_config = ConfigDict(json_schema_extra={"examples": [
        {"texts": ["I ate an apple", ["pre", "-", "split"]], "layers": "average", "pool": "mean"}]})


class EmbedAnswer(BaseModel):
    """`vectors[i]` is [layers, tokens, dimensions], less the axes that `layers` and `pool` drop."""

    model: str
    tokens: list[list[str]]
    vectors: list[list]


class EmbeddingsRequest(StrictModel):
    """A request in OpenAI's shape; `layers` and `pool` are additions."""

    input: Annotated[str | Tokens, Field(description="A text, or a list of texts.")]
    model: Annotated[str, Field(description="The name that /v1/models shows.")]
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: Annotated[int | None, Field(description="Refused, unless it is the model's own.")] = None
    user: Annotated[str | None, Field(description="Not used.")] = None
    layers: Literal["top", "average"] | Factors = "average"
    pool: Pool = "mean"


class Embedding(BaseModel):
    """A text's vector: numbers, or base64 of little-endian float32."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class Usage(BaseModel):
    """Tokens of the texts, without boundaries."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingsAnswer(BaseModel):
    """A list of vectors, as OpenAI gives it."""

    object: Literal["list"]
    model: str
    usage: Usage
    data: list[Embedding]


class Health(BaseModel):
    """`status` is `ready` (200), or `draining` or `failing` (503)."""

    status: Literal["ready", "draining", "failing"]
    model: str
    version: str
    layers: int
    dimensions: int
    state: str
    device: str
