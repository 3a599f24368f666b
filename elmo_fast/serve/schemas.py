"""Bodies of requests and responses. Requests with unknown fields or wrong types are refused."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from elmo_fast.vectors.spec import POOLS

# Lists are refused at their first error: reporting every element would take minutes for a body of some megabytes.
Tokens = Annotated[list[str], Field(fail_fast=True)]
Factors = Annotated[list[Annotated[float, Field(allow_inf_nan=False)]], Field(fail_fast=True)]
Pool = Literal[*POOLS]


class StrictModel(BaseModel):
    """A request body that refuses unknown fields and wrong types."""

    model_config = ConfigDict(extra="forbid", strict=True)


class EmbedRequest(StrictModel):
    """Texts, and the layers, pooling and type of their vectors."""

    texts: Annotated[list[str | Tokens], Field(
        min_length=1, fail_fast=True,
        description="Strings, which are tokenized, or lists of tokens.")]
    layers: Annotated[Literal["all", "top", "average"] | Factors, Field(
        description="All layers, the top layer, their average, or a factor for each layer.")] = "all"
    pool: Annotated[Pool | None, Field(description="Pool the vectors of the tokens into one vector per text.")] = None
    dtype: Literal["float32", "float16"] = "float32"

    model_config = ConfigDict(json_schema_extra={"examples": [
        {"texts": ["I ate an apple", ["pre", "-", "split"]], "layers": "average", "pool": "mean"}]})


class EmbedAnswer(BaseModel):
    """`vectors[i]` is [layers, tokens, dimensions], less the axes that `layers` and `pool` drop."""

    model: str
    tokens: list[list[str]]
    vectors: list[list]


class EmbeddingsRequest(StrictModel):
    """A request in the format of OpenAI's API, extended by `layers`, `pool` and `normalize`."""

    input: Annotated[str | Tokens, Field(description="A text, or a list of texts.")]
    model: Annotated[str, Field(description="The name listed by /v1/models.")]
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: Annotated[int | None, Field(description="Must be the model's number of dimensions, if given.")] = None
    user: Annotated[str | None, Field(description="Ignored.")] = None
    layers: Literal["top", "average"] | Factors = "average"
    pool: Pool = "mean"
    normalize: Annotated[bool, Field(description="Scale vectors to length 1, as OpenAI's are.")] = False


class Embedding(BaseModel):
    """The vector of a text, as numbers or as base64 of little-endian float32."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class Usage(BaseModel):
    """Number of tokens of the texts, without boundaries."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingsAnswer(BaseModel):
    """A list of vectors in the format of OpenAI's API."""

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
